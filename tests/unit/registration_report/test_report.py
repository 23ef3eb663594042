"""The registration report as text and as JSON."""

from __future__ import annotations

import dataclasses
import io
import json

from klamm.registration_report.page import render
from klamm.registration_report.report import (
    IgnoringClient,
    Reach,
    Report,
    SupportRow,
    VersionWindow,
    report_of,
)
from klamm.registration_report.text import NOTHING_YET, summary, write_report


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
    unreadable=1,
    reach=(
        Reach(config="acks", following=2, clients=5),
        Reach(config="retries", following=5, clients=5),
    ),
    users=(Reach(config="acks", following=2, clients=5, user="bob"),),
    users_total=1,
    ignoring=(
        IgnoringClient(config="acks", user="bob", client_id="app1", software="other", version="7"),
        IgnoringClient(
            config="acks", user="bob", client_id="app2", software="other", version="7", supported_configs=None
        ),
    ),
    ignoring_total=3,
    windows=(VersionWindow(start_ms=5, software="other", version="7", clients=3),),
    versions_total=2,
)


def text(report: Report) -> str:
    output = io.StringIO()
    write_report(report, output, output_format="human")
    return output.getvalue()


def test_table_shows_software_configs_and_reach() -> None:
    shown = text(REPORT)
    for part in ("klamm", "1.0", "acks", "2 of 2", "0 of 3", "alice, bob", "2023-11-14 22:13:20"):
        assert part in shown


def test_summary_lists_following_and_ignoring_clients() -> None:
    """K649-22: EntityCompatibility lists, per software name+version that registered under the entity, the configs it
    supports.
    """
    assert summary(REPORT) == [
        "5 clients, 6 records.",
        "1 of 6 records are not registrations and were left out.",
        "If acks is set: 2 of 5 clients would follow, 3 would ignore it:",
        "  bob app1 (other 7, registered [])",
        "  bob app2 (other 7, unknown, never registered)",
        "  and 1 more",
        "If retries is set: 5 of 5 clients would follow.",
    ]


def test_topic_without_registrations_is_reported() -> None:
    assert text(Report(rows=(), clients=0, records=0)) == f"{NOTHING_YET}\n"


def test_many_users_are_shortened() -> None:
    report = Report(rows=(row("klamm", "1.0", "acks", 5, 5, "a", "b", "c", "d", "e"),), clients=5, records=5)
    assert "a, b, c and 2 more" in text(report)


def test_unregistered_clients_are_counted_separately() -> None:
    # given
    reach = Reach(config="acks", following=12, clients=14, unknown=2)
    client = IgnoringClient(
        config="acks", user="bob", client_id="a", software="unknown", version="unknown", supported_configs=None
    )
    report = Report(rows=(), clients=14, records=12, reach=(reach,), ignoring=(client,), never_registered=2)
    # then
    assert summary(report) == [
        "14 clients, 12 records.",
        "2 of 14 clients never registered; which configs they support is unknown.",
        "If acks is set: 12 of 14 clients would follow, 2 would ignore it (2 never registered):",
        "  bob a (unknown, unknown, never registered)",
        "  and 1 more",
    ]


def test_clients_with_an_enforced_config_are_counted_and_marked() -> None:
    """K649-96: also those that the report does not name."""
    # given
    named = tuple(dataclasses.replace(one, is_enforced=one.supported_configs is None) for one in REPORT.ignoring)
    reach = (Reach(config="acks", following=2, clients=5, unknown=2, enforced=2),)
    # when
    lines = summary(dataclasses.replace(REPORT, reach=reach, ignoring=named))
    # then
    assert lines[2:] == [
        "If acks is set: 2 of 5 clients would follow, 3 would ignore it (2 never registered);"
        " the broker would enforce it for 2 of them:",
        "  bob app1 (other 7, registered [])",
        "  bob app2 (other 7, unknown, never registered, enforced)",
        "  and 1 more",
    ]


def test_json_contains_the_whole_report() -> None:
    output = io.StringIO()
    write_report(REPORT, output, output_format="json")
    document = json.loads(output.getvalue())
    assert document["clients"] == 5
    assert document["rows"][0]["users"] == ["alice", "bob"]


def test_client_names_are_not_interpreted_as_markup() -> None:
    report = Report(rows=(row("[red]x", "[/]", "[bold]", 1, 1, "[blink]"),), clients=1, records=1)
    shown = text(report)
    for part in ("[red]x", "[/]", "[bold]", "[blink]"):
        assert part in shown


def test_report_round_trips_as_json() -> None:
    output = io.StringIO()
    write_report(REPORT, output, output_format="json")
    assert report_of(json.loads(output.getvalue())) == REPORT


def test_timestamp_outside_the_calendar_is_shown_as_a_number() -> None:
    report = Report(
        rows=(dataclasses.replace(row("a", "1", "acks", 1, 1), last_registered_ms=1 << 61),), clients=1, records=1
    )
    assert str(1 << 61) in text(report)


def test_control_characters_of_client_names_are_escaped() -> None:
    odd = IgnoringClient(
        config="acks", user="a\n", client_id="\x1b[2J", software="s", version="1", supported_configs=("\r",)
    )
    rows = (row("soft\nware", "1\x1b", "acks", 2, 2, *(f"{number}" * 60 for number in range(3)), "last\n"),)
    report = dataclasses.replace(REPORT, ignoring=(odd,), rows=rows)
    assert r"  a\n \x1b[2J (s 1, registered [\r])" in summary(report)
    shown = text(report)
    assert "\x1b" not in shown
    assert r"soft\nware" in shown
    assert "and 1 more" in shown


def test_empty_client_id_is_shown_as_none() -> None:
    nameless = dataclasses.replace(REPORT.ignoring[0], client_id="")
    report = dataclasses.replace(REPORT, ignoring=(nameless,))
    assert "  bob (none) (other 7, registered [])" in summary(report)
    assert ">(none)<" in render(report, title="t")
