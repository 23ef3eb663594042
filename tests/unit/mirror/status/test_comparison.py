"""Differences that ``klamm mirror verify`` reports."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from klamm.mirror.status.verify import Findings, Fingerprint, compare


def _side(letters: str, first: int = 0) -> list[Fingerprint]:
    return [Fingerprint(first + at, letter.encode()) for at, letter in enumerate(letters)]


def test_equal_records_match_at_any_offsets() -> None:
    assert compare(_side("abc"), _side("abc", first=70)) == Findings(same=3)


def test_missing_record_is_reported_by_source_offset() -> None:
    assert compare(_side("abcde", first=10), _side("abde")) == Findings(same=4, missing=1, first_missing=12)


def test_duplicate_is_reported_by_target_offset() -> None:
    assert compare(_side("abcd"), _side("abcbcd")) == Findings(same=4, surplus=2, first_surplus=3)


def test_changed_record_counts_as_missing_and_surplus() -> None:
    assert compare(_side("abc"), _side("aXc")) == Findings(
        same=2, missing=1, first_missing=1, surplus=1, first_surplus=1
    )


def test_missing_first_and_last_records_are_reported() -> None:
    assert compare(_side("abcd"), _side("abc")) == Findings(same=3, missing=1, first_missing=3)
    assert compare(_side("abcd"), _side("bcd")) == Findings(same=3, missing=1, first_missing=0, leading_missing=1)
    assert compare(_side("bcd"), _side("abcd")) == Findings(same=3, surplus=1, first_surplus=0, leading_surplus=1)


def test_unmirrored_records_are_not_missing() -> None:
    assert compare(_side("abcde"), _side("abc"), mirrored_to=2) == Findings(same=3)
    assert compare(_side("abcde"), _side("ac"), mirrored_to=2) == Findings(same=2, missing=1, first_missing=1)


def test_empty_partitions_match() -> None:
    assert compare([], []) == Findings()


@given(st.text("abc", max_size=30), st.text("abc", max_size=30))
def test_every_record_is_counted_once(source: str, target: str) -> None:
    # when
    comparison = compare(_side(source), _side(target))
    # then
    assert comparison.same + comparison.missing == len(source)
    assert comparison.same + comparison.surplus == len(target)
    assert (not comparison.missing and not comparison.surplus) == (source == target)
