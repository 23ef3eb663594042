"""The leader epochs of fetched batches."""

from __future__ import annotations

import json

import pytest

from klamm.mirror.copy.partition import FetchedEpochs, PartitionCopy, PartitionId
from klamm.mirror.records import source_offsets
from klamm.mirror.records.source_offsets import SourceOffset


def test_epoch_before_offset_is_that_of_previous_batch() -> None:
    epochs = FetchedEpochs(3)
    for first_offset, epoch in ((10, 3), (15, 3), (20, 5), (30, 8)):
        epochs.begin(first_offset, epoch)
    assert [epochs.before(offset) for offset in (10, 20, 21, 30, 31, 99)] == [3, 3, 5, 5, 8, 8]


def test_refetched_batches_replace_recorded_epochs() -> None:
    epochs = FetchedEpochs(3)
    epochs.begin(20, 5)
    epochs.begin(15, 4)
    assert [epochs.before(offset) for offset in (15, 16, 21, 99)] == [3, 4, 4, 4]


def test_epochs_long_before_acknowledged_offset_are_dropped() -> None:
    epochs = FetchedEpochs()
    for number in range(1, 100):
        epochs.begin(number * 10, number)
        epochs.forget_before(number * 10)
    assert len(epochs.entries) == 32
    assert epochs.before(990) == 98
    assert epochs.before(991) == 99


@pytest.mark.parametrize(
    ("leader_epoch", "end_offset", "common"),
    [
        (8, 90, (90, 8)),
        (7, 70, (30, 5)),
        (7, 25, (25, 5)),
        (4, 30, (20, 3)),
        (2, 30, (30, 2)),  # before all that are known
    ],
)
def test_common_end_is_within_the_latest_epoch_that_was_fetched(
    leader_epoch: int, end_offset: int, common: tuple[int, int]
) -> None:
    epochs = FetchedEpochs(3)
    epochs.begin(20, 5)
    epochs.begin(30, 8)
    assert epochs.common_end(leader_epoch, end_offset) == common
    epochs.rewind(*common)
    assert epochs.before(common[0]) == common[1]


def test_source_offset_after_purged_records_has_no_epoch() -> None:
    """The epoch before the first offset of a log is not known, and an older one would be taken for a divergence."""
    copy = PartitionCopy(PartitionId("t", 0, "A.t"), start_offset=10, committed=True, leader_epoch=4)
    assert copy.source_offset == SourceOffset(10, 4)
    copy.skip_to(50)
    assert copy.source_offset == SourceOffset(50, -1)
    assert copy.last_fetched_epoch == -1


def test_rewound_source_offset_is_written_again() -> None:
    copy = PartitionCopy(PartitionId("t", 0, "A.t"), start_offset=50, committed=True, leader_epoch=4)
    assert copy.is_settled
    copy.rewind(SourceOffset(20, 3))
    assert copy.source_offset == SourceOffset(20, 3)
    assert not copy.is_settled
    assert copy.acked_offset > copy.committed_offset


@pytest.mark.parametrize("epoch", [-1, 0, 7])
def test_mirrormaker_ignores_epoch_in_offset_value(epoch: int) -> None:
    value = source_offsets.value_bytes(41, epoch)
    assert source_offsets.parse_value(value) == json.loads(value)["offset"] == 41
    assert source_offsets.parse_leader_epoch(value) == epoch
    assert (value == b'{"offset":41}') == (epoch == -1)


@pytest.mark.parametrize("value", [None, b"", b"[]", b'{"leader_epoch":"x"}'])
def test_value_without_epoch_has_unknown_epoch(value: bytes | None) -> None:
    assert source_offsets.parse_leader_epoch(value) == -1
