"""The registration report as text and as JSON."""

from __future__ import annotations

import io
import json

from klamm.registrations.report import NOTHING_YET, Report, SupportRow, summary, write_report


def row(software: str, version: str, config: str, clients: int, total: int, *users: str) -> SupportRow:
    return SupportRow(
        software=software,
        version=version,
        config=config,
        clients=clients,
        clients_total=total,
        users=users,
        last_registered_ms=1_700_000_000_000,
    )


REPORT = Report(
    rows=(
        row("klamm", "1.0", "acks", 2, 2, "alice", "bob"),
        row("klamm", "1.0", "session.timeout.ms", 1, 2, "alice"),
        row("other", "7", "acks", 0, 3),
        row("other", "7", "session.timeout.ms", 0, 3),
    ),
    clients=5,
    records=6,
)


def text(report: Report) -> str:
    output = io.StringIO()
    write_report(report, output, output_format="human")
    return output.getvalue()


def test_the_table_names_software_configs_and_how_far_they_reach() -> None:
    shown = text(REPORT)
    for part in ("klamm", "1.0", "acks", "2 of 2", "0 of 3", "alice, bob", "2023-11-14 22:13:20"):
        assert part in shown


def test_the_summary_says_who_would_follow_and_who_would_not() -> None:
    assert summary(REPORT) == [
        "5 clients, 6 records.",
        "If acks is set: 2 of 5 clients follow; not all of other 7.",
        "If session.timeout.ms is set: 1 of 5 clients follow; not all of klamm 1.0, other 7.",
    ]


def test_where_everybody_follows_nobody_is_named() -> None:
    report = Report(rows=(row("klamm", "1.0", "acks", 1, 1, "alice"),), clients=1, records=1)
    assert summary(report)[1] == "If acks is set: 1 of 1 clients follow."


def test_a_topic_without_registrations_says_so() -> None:
    assert text(Report(rows=(), clients=0, records=0)) == f"{NOTHING_YET}\n"


def test_many_users_are_shortened() -> None:
    report = Report(rows=(row("klamm", "1.0", "acks", 5, 5, "a", "b", "c", "d", "e"),), clients=5, records=5)
    assert "a, b, c and 2 more" in text(report)


def test_as_json_everything_is_there() -> None:
    output = io.StringIO()
    write_report(REPORT, output, output_format="json")
    document = json.loads(output.getvalue())
    assert document["clients"] == 5
    assert document["rows"][0]["users"] == ["alice", "bob"]
