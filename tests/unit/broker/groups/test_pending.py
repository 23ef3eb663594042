"""Pending offsets of open transactions."""

from __future__ import annotations

from uuid import UUID

from klamm.broker.groups.offsets import PendingOffsets
from klamm.storage.metadata.changes import DropPendingOffset, PutGroupOffset, PutPendingOffset

TOPIC, OTHER = UUID(int=1), UUID(int=2)


def commit(offset: int, *, group_id: str = "g", topic_id: UUID = TOPIC) -> PutGroupOffset:
    return PutGroupOffset(
        group_id=group_id, topic_id=topic_id, partition=0, offset=offset, leader_epoch=-1, metadata="",
        commit_timestamp_ms=1,
    )  # fmt: skip


def test_last_pending_offset_of_transaction_is_taken_once() -> None:
    pending = PendingOffsets([PutPendingOffset(producer_id=7, commit=commit(1))])
    pending.put(7, commit(2))
    pending.put(8, commit(3, group_id="h"))

    assert pending.of_group("g") == {(TOPIC, 0)}
    assert pending.take(7) == {"g": (commit(2),)}
    assert pending.take(7) == {}
    assert not pending.of_group("g")
    assert pending.has_group("h")


def test_non_transactional_commit_removes_pending_offset() -> None:
    pending = PendingOffsets()
    pending.put(7, commit(1))
    pending.put(8, commit(1, topic_id=OTHER))

    removals = pending.overtake(commit(5))

    assert removals == [DropPendingOffset(producer_id=7, group_id="g", topic_id=TOPIC, partition=0)]
    assert pending.take(7) == {}
    assert pending.of_group("g") == {(OTHER, 0)}


def test_committed_transaction_supersedes_only_older_pending_offsets_of_its_partitions() -> None:
    # given
    pending = PendingOffsets()
    pending.put(7, commit(1))
    pending.put(7, commit(1, topic_id=OTHER))
    pending.put(8, commit(2))
    pending.put(9, commit(3))
    # when
    removals = pending.overtake_older(8)
    # then
    assert removals == {"g": [DropPendingOffset(producer_id=7, group_id="g", topic_id=TOPIC, partition=0)]}
    assert [pending.take(producer_id) for producer_id in (7, 8, 9)] == [
        {"g": (commit(1, topic_id=OTHER),)},
        {"g": (commit(2),)},
        {"g": (commit(3),)},
    ]


def test_loaded_pending_offsets_are_superseded_by_added_ones_only() -> None:
    # given
    pending = PendingOffsets([PutPendingOffset(producer_id=producer_id, commit=commit(1)) for producer_id in (7, 8)])
    # when / then
    assert pending.overtake_older(8) == {"g": []}
    pending.put(9, commit(2))
    assert [removal.producer_id for removal in pending.overtake_older(9)["g"]] == [7, 8]


def test_pending_offsets_of_deleted_topic_or_group_are_dropped() -> None:
    pending = PendingOffsets()
    pending.put(7, commit(1))
    pending.put(7, commit(1, topic_id=OTHER))
    pending.put(7, commit(1, group_id="h"))

    pending.drop_topic(TOPIC)
    assert pending.take(7) == {"g": (commit(1, topic_id=OTHER),)}
    pending.put(7, commit(1, group_id="h"))
    pending.drop_group("h")
    assert not pending.has_group("h")
    assert pending.take(7) == {}
