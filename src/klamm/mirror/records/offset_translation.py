"""Rules of MirrorMaker 2 for when offset syncs are written and how group offsets are translated with them. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SYNCS: Final = 64
UNTRANSLATABLE: Final = -1


class SyncPair(NamedTuple):
    """Source offset and target offset of the same record."""

    upstream: int
    downstream: int


class SyncRule:
    """Rule that decides which acknowledged records of a partition get an offset sync (Kafka's ``PartitionState``)."""

    __slots__ = ("_last_sync_downstream", "_previous", "_waiting", "lag_max")

    def __init__(self, lag_max: int) -> None:
        self.lag_max = lag_max
        """Most target offsets between two syncs (``offset.lag.max``)."""
        self._previous: SyncPair | None = None
        self._last_sync_downstream = -1
        self._waiting: SyncPair | None = None

    def note(self, pair: SyncPair) -> bool:
        """Record an acknowledged record. Return whether its sync is due now.

        A sync is due for the first record, when the last sync is ``lag_max`` target offsets back, when source records
        were left out before it, and when the target offset went back. Otherwise the pair waits for the next ``flush``.
        """
        before = self._previous
        due = (
            before is None
            or pair.downstream - (self._last_sync_downstream + 1) >= self.lag_max
            or pair.upstream != before.upstream + 1
            or pair.downstream < before.downstream
        )
        self._previous = pair
        self._waiting = None if due else pair
        if due:
            self._last_sync_downstream = pair.downstream
        return due

    def note_batch(self, first: SyncPair, count: int) -> list[SyncPair]:
        """Record a batch without offset gaps. Return the pairs whose syncs are due now, in order.

        The result is the same as MirrorMaker's, which checks each record. None may be left out: the precision of
        ``OffsetSyncStore`` depends on the distance between the syncs.
        """
        found = [first] if self.note(first) else []
        # Inside a batch, only the distance from the last sync can make a sync due.
        end = first.downstream + count
        due = max(self._last_sync_downstream + 1 + self.lag_max, first.downstream + 1)
        for downstream in range(due, end, self.lag_max + 1):
            found.append(SyncPair(first.upstream + downstream - first.downstream, downstream))
            self._last_sync_downstream = downstream
        self._previous = last = SyncPair(first.upstream + count - 1, end - 1)
        self._waiting = None if found and found[-1] == last else last
        return found

    def flush(self) -> SyncPair | None:
        """Return the waiting pair and count it as written. None: no pair waits."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._last_sync_downstream = waiting.downstream
        return waiting


class SyncHistory:
    """Offset syncs of one partition, dense near the newest and sparse further back (Kafka's ``OffsetSyncStore``).

    Invariants for slots i < j that hold different syncs:
    ``up[i] <= up[j] + 2**j - 2**i`` and ``up[i] >= up[j] + 2**max(i - 2, 0)``.
    """

    __slots__ = ("_slots",)

    def __init__(self, first: SyncPair) -> None:
        self._slots = [first] * MAX_SYNCS

    def __iter__(self) -> Iterator[SyncPair]:
        """Yield the syncs of all slots, newest first."""
        return iter(self._slots)

    def add(self, sync: SyncPair) -> None:
        """Add a newer sync. If its source offset went back, all others are removed."""
        slots = self._slots
        if sync == slots[0]:
            return
        if sync.upstream < slots[0].upstream:
            self._slots = [sync] * MAX_SYNCS
            return
        old = tuple(slots)
        slots[0] = carried = sync
        at = 0
        for slot in range(1, MAX_SYNCS):
            if _near(slots[slot - 1], slots[slot], slot - 1, slot):
                return  # all later slots keep the invariants
            carried, at = self._moving_down(old, carried, at, slot)
            slots[slot] = carried

    def _moving_down(self, old: tuple[SyncPair, ...], carried: SyncPair, at: int, slot: int) -> tuple[SyncPair, int]:
        """Choose the sync for a slot whose current sync is too old.

        An older sync that keeps all invariants is preferred to another copy of ``carried``, so that more different
        syncs are kept.

        Returns:
            The sync for the slot, and the index in ``old`` at which the search for the next slot starts.
        """
        before = self._slots[slot - 1]
        while at < slot:
            candidate = old[at]
            apart = _apart(before, candidate, slot - 1)
            last = slot + 1 == MAX_SYNCS
            fits = apart and _near(before, candidate, slot - 1, slot)
            chosen = fits and (last or _apart(candidate, self._slots[slot + 1], slot))
            if chosen:
                carried = candidate
            # A sync that is too close for this slot is too close for all later slots, and duplicates need no second
            # check.
            useless = not apart or candidate == old[at + 1]
            at += chosen or useless
            if not useless:
                break
        return carried, at

    def translate(self, upstream: int) -> int:
        """Return the target offset for a group's source offset. ``UNTRANSLATABLE`` below the oldest sync.

        A group beyond the record of a sync gets the target offset right after that record, so it never skips records.
        """
        for sync in self._slots:
            if sync.upstream <= upstream:
                return sync.downstream + (1 if upstream > sync.upstream else 0)
        return UNTRANSLATABLE


def _near(newer: SyncPair, older: SyncPair, slot: int, later_slot: int) -> bool:
    """Return whether ``older`` is recent enough for ``later_slot`` when ``slot`` holds ``newer``."""
    return newer == older or newer.upstream <= older.upstream + (1 << later_slot) - (1 << slot)


def _apart(newer: SyncPair, older: SyncPair, slot: int) -> bool:
    """Return whether two syncs are far enough apart for ``slot`` to hold ``newer``."""
    return newer == older or newer.upstream >= older.upstream + (1 << max(slot - 2, 0))
