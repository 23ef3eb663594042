"""The leader epochs of what was fetched of a partition, by which a truncated log of the source is found. No I/O.

After an unclean leader election a partition holds other records at offsets that were read before. The offsets alone do
not show it, as the new leader may have written past them. Kafka numbers its leaders per partition: a broker compares
the epoch of the last batch that was read with its own history, and answers where the two part (KIP-320, KIP-595).
"""

from __future__ import annotations

from typing import NamedTuple

UNKNOWN_EPOCH = -1
_BEGINNING = -1


class _Entry(NamedTuple):
    """An epoch, and the offset of its first batch."""

    first_offset: int
    leader_epoch: int


class FetchedEpochs:
    """Which leader epochs the fetched batches have, from the last copied one on."""

    __slots__ = ("_entries",)

    def __init__(self, leader_epoch: int = UNKNOWN_EPOCH) -> None:
        """Begin behind a batch of an epoch."""
        self._entries = [_Entry(_BEGINNING, leader_epoch)]

    def begin(self, first_offset: int, leader_epoch: int) -> None:
        """Take a batch. What was noted of later offsets is forgotten: they are fetched again."""
        entries = self._entries
        while len(entries) > 1 and entries[-1].first_offset >= first_offset:
            entries.pop()
        if entries[-1].leader_epoch != leader_epoch:
            entries.append(_Entry(first_offset, leader_epoch))

    def before(self, offset: int) -> int:
        """Return the epoch of the last batch before an offset; -1 when it is not known."""
        return next(
            (entry.leader_epoch for entry in reversed(self._entries) if entry.first_offset < offset), UNKNOWN_EPOCH
        )

    def forget_before(self, offset: int) -> None:
        """Forget what is needed for earlier offsets only."""
        entries = self._entries
        while len(entries) > 1 and entries[1].first_offset < offset:
            del entries[0]
