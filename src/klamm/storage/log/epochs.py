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
        self.path = directory / LEADER_EPOCHS
        self._entries: list[EpochStart] = []

    @property
    def latest(self) -> int:
        """The newest epoch, -1 if there is none."""
        return self._entries[-1].epoch if self._entries else -1

    def load(self, segments: Sequence[LogSegment], end_offset: int, begun: Sequence[EpochStart]) -> None:
        """Read the checkpoint file. If it is missing or damaged, rebuild it from the batches of the log.

        The file is written without an fsync, so after a power cut it may be an older one.

        Args:
            segments: The log.
            end_offset: End of the log. Epochs that start at or behind it are removed.
            begun: Epochs of the batches that recovery has read. Missing ones are added.

        Raises:
            OSError: A file cannot be read or written.
        """
        self._entries = read_epochs(self.path)
        if not self._entries and any(segment.size for segment in segments):
            for segment in segments:
                with suppress(CorruptBatchError):
                    for head in segment.walk(0):
                        if head.partition_leader_epoch > self.latest:
                            self._entries.append(EpochStart(head.partition_leader_epoch, head.base_offset))
            write_epochs(self.path, self._entries)
        kept = [entry for entry in self._entries if entry.start_offset < end_offset]
        if len(kept) != len(self._entries):
            self._entries = kept
            write_epochs(self.path, kept)
        for entry in begun:
            self.assign(*entry)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Start an epoch at an offset. An epoch that is not newer than the latest one has no effect.

        As in Kafka, known epochs that start at this offset or later are removed: their records are no longer there.

        Raises:
            OSError: The file cannot be written.
        """
        if epoch > self.latest:
            kept = (entry for entry in self._entries if entry.start_offset < start_offset)
            entries = [*kept, EpochStart(epoch, start_offset)]
            write_epochs(self.path, entries)
            self._entries = entries

    def has_started_since(self, offset: int) -> bool:
        """Return whether the latest epoch starts at this offset or later."""
        return bool(self._entries) and self._entries[-1].start_offset >= offset

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
