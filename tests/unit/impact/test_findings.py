"""Findings: levels, names and the stable form for programs."""

from __future__ import annotations

import pytest

from klamm.impact.findings import Finding, Impact, ImpactLevel, Names, moment


def test_names_list_ten_then_count() -> None:
    names = Names.of(f"topic-{number:02}" for number in range(13))

    assert names.first == tuple(f"topic-{number:02}" for number in range(10))
    assert str(names).endswith("topic-09 and 3 more")


def test_impact_has_level_and_bytes_of_its_findings() -> None:
    impact = Impact(
        findings=(
            Finding(
                kind="records_deleted",
                level=ImpactLevel.LOSS,
                resource="topic a",
                message="5 bytes",
                figures={"deleted_bytes": 5, "unread_records": 3},
                names={"groups": Names.of(["g"])},
            ),
            Finding(
                kind="x", level=ImpactLevel.NOTICE, resource="topic b", message="text", figures={"deleted_bytes": 7}
            ),
        )
    )

    assert impact.level is ImpactLevel.LOSS
    assert impact.deleted_bytes == 12
    assert impact.stranded_groups == {"g"}


def test_impact_without_findings_has_level_none_in_its_document() -> None:
    assert Impact().document() == {"level": "none", "findings": [], "unknown": []}
    assert Impact().lines() == ["Impact: none"]


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [
        (1_700_000_000_000, "2023-11-14 22:13:20 UTC"),
        (1_700_000_000_000_000, "1700000000000000 ms"),
        (2**63 - 1, "9223372036854775807 ms"),
    ],
)
def test_timestamp_that_no_calendar_has_is_shown_as_number(timestamp: int, text: str) -> None:
    assert moment(timestamp) == text
