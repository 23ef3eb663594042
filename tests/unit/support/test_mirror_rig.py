"""The checker of the mirror's rig finds each kind of damage."""

from __future__ import annotations

from tests.support.mirror_rig import judge, record

WANTED = [record(number) for number in range(20)]


def test_a_partition_that_is_whole_and_in_order_has_no_finding() -> None:
    assert judge(WANTED, WANTED) == (0, 0, 0, 0, 0)


def test_what_is_lost_is_found() -> None:
    assert judge(WANTED, WANTED[:7] + WANTED[9:]) == (2, 0, 0, 0, 0)


def test_what_was_copied_again_is_found_as_one_repeat() -> None:
    assert judge(WANTED, WANTED[:12] + WANTED[8:]) == (0, 4, 0, 0, 1)


def test_what_changed_places_is_found() -> None:
    swapped = [*WANTED[:5], WANTED[6], WANTED[5], *WANTED[7:]]
    assert judge(WANTED, swapped).out_of_order == 1


def test_a_changed_part_of_a_record_is_found() -> None:
    right = WANTED[5]
    for other in (
        right._replace(key=b"x"),
        right._replace(value=b"x"),
        right._replace(headers=()),
        right._replace(timestamp=1),
    ):
        assert judge(WANTED, [*WANTED[:5], other, *WANTED[6:]])[:3] == (1, 0, 1)
