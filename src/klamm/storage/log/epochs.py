"""Leader epochs of a log and their first offsets (Kafka's LeaderEpochFileCache, KIP-101, KIP-320)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from klamm.protocol.errors import CorruptBatchError
from klamm.storage.log.checkpoints import LEADER_EPOCHS, EpochStart, read_epochs, write_epochs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from klamm.storage.log.segment import LogSegment

UNDEFINED: Final = EpochStart(-1, -1)


class LeaderEpochs:
    """Leader epochs in ascending order, each with its first offset. Used on the event loop only."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._entries: list[EpochStart] = []

    @property
    def latest(self) -> int:
        """The newest epoch, -1 if there is none."""
        return self._entries[-1].epoch if self._entries else -1

    def load(self, segments: Sequence[LogSegment]) -> None:
        """Read the checkpoint file. If it is missing or damaged, rebuild it from the batches of the log.

        Raises:
            OSError: A file cannot be read or written.
        """
        self._entries = read_epochs(self._directory / LEADER_EPOCHS)
        if not self._entries and any(segment.size for segment in segments):
            for segment in segments:
                with suppress(CorruptBatchError):
                    for head in segment.walk(0):
                        if head.partition_leader_epoch > self.latest:
                            self._entries.append(EpochStart(head.partition_leader_epoch, head.base_offset))
            write_epochs(self._directory / LEADER_EPOCHS, self._entries)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Start an epoch at an offset. An epoch that is not newer than the latest one has no effect.

        Raises:
            OSError: The file cannot be written.
        """
        if epoch > self.latest:
            entries = [*self._entries, EpochStart(epoch, start_offset)]
            write_epochs(self._directory / LEADER_EPOCHS, entries)
            self._entries = entries

    def truncate_end(self, end_offset: int) -> None:
        """Remove the epochs that start at or behind the end of a truncated log."""
        kept = [entry for entry in self._entries if entry.start_offset < end_offset]
        if len(kept) != len(self._entries):
            self._entries = kept
            write_epochs(self._directory / LEADER_EPOCHS, kept)

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch of ``offset``, -1 if it is unknown."""
        return max((entry.epoch for entry in self._entries if entry.start_offset <= offset), default=-1)

    def end_offset_of(self, epoch: int, log_end_offset: int) -> EpochStart:
        """Return the largest known epoch up to ``epoch`` and its end offset; ``UNDEFINED`` if there is none."""
        if epoch < 0 or epoch > self.latest:
            return UNDEFINED
        if epoch == self.latest:
            return EpochStart(epoch, log_end_offset)
        following = next(entry for entry in self._entries if entry.epoch > epoch)
        floor = max((entry.epoch for entry in self._entries if entry.epoch <= epoch), default=epoch)
        return EpochStart(floor, following.start_offset)
