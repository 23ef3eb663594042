"""The checker of the mirror's rig finds each kind of damage."""

from __future__ import annotations

from tests.support.mirror_rig import judge, record
from tests.support.mirror_rig_topics import due_after_compaction, due_of_deleted_source, due_of_deleted_target

WANTED = [record(number) for number in range(20)]


def test_complete_ordered_partition_has_no_finding() -> None:
    assert judge(WANTED, WANTED) == (0, 0, 0, 0, 0)


def test_lost_records_are_reported() -> None:
    assert judge(WANTED, WANTED[:7] + WANTED[9:]) == (2, 0, 0, 0, 0)


def test_repeated_records_are_reported_as_one_repeat() -> None:
    assert judge(WANTED, WANTED[:12] + WANTED[8:]) == (0, 4, 0, 0, 1)


def test_reordered_records_are_reported() -> None:
    swapped = [*WANTED[:5], WANTED[6], WANTED[5], *WANTED[7:]]
    assert judge(WANTED, swapped).out_of_order == 1


def test_changed_record_is_reported() -> None:
    right = WANTED[5]
    for other in (
        right._replace(key=b"x"),
        right._replace(value=b"x"),
        right._replace(headers=()),
        right._replace(timestamp=1),
    ):
        assert judge(WANTED, [*WANTED[:5], other, *WANTED[6:]])[:3] == (1, 0, 1)


def test_compacted_partition_needs_only_records_still_on_the_source() -> None:
    left = WANTED[15:]
    assert judge(due_after_compaction(WANTED, WANTED[5:], left), WANTED[5:]) == (0, 0, 0, 0, 0)
    assert judge(due_after_compaction(WANTED, WANTED[5:18], left), WANTED[5:18]).lost == 2
    assert judge(due_after_compaction(WANTED, WANTED, left), [*WANTED[1:], WANTED[0]]).out_of_order == 1


def test_deleted_source_topic_may_lack_only_its_last_records() -> None:
    for arrived in (12, 15, 20):
        assert due_of_deleted_source(WANTED, WANTED[:arrived], 12) == WANTED[:arrived]
    assert due_of_deleted_source(WANTED, WANTED[:11], 12) == WANTED[:12]
    assert due_of_deleted_source(WANTED, [*WANTED[:12], WANTED[15]], 12) == WANTED[:16]
    assert due_of_deleted_source(WANTED, [], 0) == []


def test_recreated_target_topic_needs_all_records_written_since() -> None:
    for first in (5, 8, 10):
        assert due_of_deleted_target(WANTED, WANTED[first:], 10) == WANTED[first:]
    assert due_of_deleted_target(WANTED, WANTED[12:], 10) == WANTED[10:]
    assert due_of_deleted_target(WANTED, [], 10) == WANTED[10:]
