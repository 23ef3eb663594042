"""The leader epochs of fetched batches."""

from __future__ import annotations

import json
import random
from bisect import bisect_right
from itertools import takewhile

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


@pytest.mark.parametrize(("end_offset", "common"), [(4, (0, -1)), (9, (0, -1))])
def test_common_end_without_any_fetched_epoch_is_the_first_fetched_offset(
    end_offset: int, common: tuple[int, int]
) -> None:
    """The mirror began with an unknown epoch, so the new leader's older epoch was never fetched."""
    epochs = FetchedEpochs()
    epochs.begin(0, 1)
    assert epochs.common_end(0, end_offset) == common
    epochs.rewind(*common)
    assert epochs.before(99) == -1


class Source:
    """Partition with three replicas, whose leaders are elected uncleanly, and the mirror that copies it.

    A record is a pair of leader epoch and number.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._replicas: list[list[tuple[int, int]]] = [[], [], []]
        self._leader = self._epoch = self._number = self._offset = 0
        self._epochs = FetchedEpochs()
        self.copied: set[tuple[int, int]] = set()

    @property
    def log(self) -> list[tuple[int, int]]:
        """Records of the leader."""
        return self._replicas[self._leader]

    def run(self) -> None:
        """Do some random steps, then copy everything."""
        steps = [self._append] * 9 + [self._replicate] * 4 + [self._elect] * 3 + [self._copy] * 4
        for step in self._random.choices(steps, k=self._random.randint(3, 14)):
            step()
        self._copy()

    def _append(self) -> None:
        for _ in range(self._random.randint(1, 4)):
            self._number += 1
            self.log.append((self._epoch, self._number))

    def _replicate(self) -> None:
        """Let some replicas truncate their logs to what they have in common with the leader, and fetch some records."""
        for number, replica in enumerate(self._replicas):
            if number != self._leader and self._random.random() < 0.6:
                common = sum(
                    1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(replica, self.log, strict=False))
                )
                self._replicas[number] = self.log[: self._random.randint(common, len(self.log))]

    def _elect(self) -> None:
        self._leader, self._epoch = self._random.randrange(3), self._epoch + 1

    def _end_of(self, epoch: int) -> tuple[int, int]:
        """Return what the leader answers about an epoch (``LeaderEpochFileCache.endOffsetFor``)."""
        epochs = [record_epoch for record_epoch, _ in self.log]
        largest = max((each for each in epochs if each <= epoch), default=None)
        if largest is None:
            return epoch, 0
        return largest, bisect_right(epochs, largest)

    def _copy(self) -> None:
        """Fetch to the log end, as ``Fetcher`` does with ``klamm.on.source.loss=continue``."""
        while True:
            if (epoch := self._epochs.before(self._offset)) >= 0:
                common_epoch, end = self._end_of(epoch)
                if common_epoch < epoch or end < self._offset:
                    has_common_epoch = common_epoch < epoch or end > 0
                    offset, known = self._epochs.common_end(common_epoch, end) if has_common_epoch else (end, -1)
                    self._offset = min(offset, self._offset)
                    self._epochs.rewind(self._offset, known)
                    continue
            elif self._offset > len(self.log):  # out of range
                self._offset = 0
                self._epochs.rewind(0, -1)
            if self._offset >= len(self.log):
                return
            for record in self.log[self._offset : self._offset + self._random.randint(1, 3)]:
                self._epochs.begin(self._offset, record[0])
                self.copied.add(record)
                self._offset += 1


def test_no_record_is_skipped_after_any_unclean_elections() -> None:
    for seed in range(2_000):
        source = Source(seed)
        source.run()
        assert source.copied.issuperset(source.log), seed


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
