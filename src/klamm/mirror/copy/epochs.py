"""Leader epochs of fetched batches, which reveal that the log of the source was truncated. No I/O.

After an unclean leader election, a partition holds other records at offsets that were already read. Offsets alone do
not show this, because the new leader may have appended beyond them. Kafka numbers the leaders of each partition: the
fetch request carries the epoch of the last batch that was read, the broker compares it with its own epoch history and
answers at which offset the two logs diverge (KIP-320, KIP-595).
"""

from __future__ import annotations

from typing import NamedTuple

UNKNOWN_EPOCH = -1
_BEGINNING = -1


class _Entry(NamedTuple):
    """Leader epoch and the offset of its first batch."""

    first_offset: int
    leader_epoch: int


class FetchedEpochs:
    """Leader epochs of the batches from the last copied one to the last fetched one."""

    __slots__ = ("_entries",)

    def __init__(self, leader_epoch: int = UNKNOWN_EPOCH) -> None:
        """Start after a batch.

        Args:
            leader_epoch: Leader epoch of that batch. -1: unknown.
        """
        self._entries = [_Entry(_BEGINNING, leader_epoch)]

    def begin(self, first_offset: int, leader_epoch: int) -> None:
        """Record a fetched batch. Entries of later offsets are removed, because those offsets are fetched again."""
        entries = self._entries
        while len(entries) > 1 and entries[-1].first_offset >= first_offset:
            entries.pop()
        if entries[-1].leader_epoch != leader_epoch:
            entries.append(_Entry(first_offset, leader_epoch))

    def before(self, offset: int) -> int:
        """Return the leader epoch of the last batch before an offset. -1: unknown."""
        return next(
            (entry.leader_epoch for entry in reversed(self._entries) if entry.first_offset < offset), UNKNOWN_EPOCH
        )

    def forget_before(self, offset: int) -> None:
        """Remove entries that are needed for earlier offsets only."""
        entries = self._entries
        while len(entries) > 1 and entries[1].first_offset < offset:
            del entries[0]
