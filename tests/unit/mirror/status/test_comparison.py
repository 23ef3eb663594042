"""What ``klamm mirror verify`` finds when two sides are not the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from klamm.mirror.status.verify import Findings, Fingerprint, compare


def _side(letters: str, first: int = 0) -> list[Fingerprint]:
    return [Fingerprint(first + at, letter.encode()) for at, letter in enumerate(letters)]


def test_equal_sides_are_equal_wherever_they_begin() -> None:
    assert compare(_side("abc"), _side("abc", first=70)) == Findings(same=3)


def test_a_lost_record_is_named_by_its_offset_on_the_source() -> None:
    assert compare(_side("abcde", first=10), _side("abde")) == Findings(same=4, missing=1, first_missing=12)


def test_duplicates_are_named_by_their_offset_on_the_target() -> None:
    assert compare(_side("abcd"), _side("abcbcd")) == Findings(same=4, surplus=2, first_surplus=3)


def test_a_changed_record_is_missing_and_too_much() -> None:
    assert compare(_side("abc"), _side("aXc")) == Findings(
        same=2, missing=1, first_missing=1, surplus=1, first_surplus=1
    )


def test_a_lost_end_and_a_lost_beginning_are_found() -> None:
    assert compare(_side("abcd"), _side("abc")) == Findings(same=3, missing=1, first_missing=3)
    assert compare(_side("abcd"), _side("bcd")) == Findings(same=3, missing=1, first_missing=0, leading_missing=1)
    assert compare(_side("bcd"), _side("abcd")) == Findings(same=3, surplus=1, first_surplus=0, leading_surplus=1)


def test_what_is_not_mirrored_yet_is_not_missing_and_may_be_there() -> None:
    assert compare(_side("abcde"), _side("abc"), mirrored_to=2) == Findings(same=3)
    assert compare(_side("abcde"), _side("ac"), mirrored_to=2) == Findings(same=2, missing=1, first_missing=1)


def test_nothing_at_all_is_equal() -> None:
    assert compare([], []) == Findings()


@given(st.text("abc", max_size=30), st.text("abc", max_size=30))
def test_every_record_of_both_sides_is_counted_once(source: str, target: str) -> None:
    # when
    found = compare(_side(source), _side(target))
    # then
    assert found.same + found.missing == len(source)
    assert found.same + found.surplus == len(target)
    assert (not found.missing and not found.surplus) == (source == target)
