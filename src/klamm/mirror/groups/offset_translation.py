"""When offset syncs are written, and how offsets of groups are translated by them (MirrorMaker 2's rules). No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SYNCS: Final = 64
UNTRANSLATABLE: Final = -1


class SyncPair(NamedTuple):
    """A source offset and the target offset of the same record."""

    upstream: int
    downstream: int


class SyncRule:
    """Decides for one partition which acknowledged records get an offset sync (Kafka's ``PartitionState``)."""

    __slots__ = ("_last_sync_downstream", "_previous", "_waiting", "lag_max")

    def __init__(self, lag_max: int) -> None:
        self.lag_max = lag_max
        """``offset.lag.max``."""
        self._previous: SyncPair | None = None
        self._last_sync_downstream = -1
        self._waiting: SyncPair | None = None

    def note(self, pair: SyncPair) -> bool:
        """Take an acknowledged record; returns whether its pair is to be written now.

        It is for the first record of a run, when the last sync is ``lag_max`` target offsets back, when records of
        the source were left out, or when the target goes back. Otherwise the pair waits for the next flush.
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
        """Take a batch of records without gaps; returns the pairs that are to be written now, in order.

        They are those that MirrorMaker finds by taking the records one by one: ``OffsetSyncStore`` translates as finely
        as the syncs are apart, so none of them may be left out.
        """
        found = [first] if self.note(first) else []
        # Nothing but the distance can make a record inside a batch due.
        end = first.downstream + count
        due = max(self._last_sync_downstream + 1 + self.lag_max, first.downstream + 1)
        for downstream in range(due, end, self.lag_max + 1):
            found.append(SyncPair(first.upstream + downstream - first.downstream, downstream))
            self._last_sync_downstream = downstream
        self._previous = last = SyncPair(first.upstream + count - 1, end - 1)
        self._waiting = None if found and found[-1] == last else last
        return found

    def flush(self) -> SyncPair | None:
        """Return the pair that waits, None when there is none."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._last_sync_downstream = waiting.downstream
        return waiting


class SyncHistory:
    """The syncs of one partition: dense near the newest, sparse far back (Kafka's ``OffsetSyncStore``).

    For slots i < j that hold different syncs:
    ``up[i] <= up[j] + 2**j - 2**i`` and ``up[i] >= up[j] + 2**max(i - 2, 0)``.
    """

    __slots__ = ("_slots",)

    def __init__(self, first: SyncPair) -> None:
        self._slots = [first] * MAX_SYNCS

    def __iter__(self) -> Iterator[SyncPair]:
        """Yield all slots, the newest sync first."""
        return iter(self._slots)

    def add(self, sync: SyncPair) -> None:
        """Take a newer sync; one that goes back on the source forgets all others."""
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
                return  # what is kept from here on is as it should be
            carried, at = self._moving_down(old, carried, at, slot)
            slots[slot] = carried

    def _moving_down(self, old: tuple[SyncPair, ...], carried: SyncPair, at: int, slot: int) -> tuple[SyncPair, int]:
        """Choose what takes the place of a sync that is too old for its slot.

        An older sync that keeps all bounds is better than repeating ``carried``: more different ones are kept.

        Returns:
            The sync for the slot, and from where in ``old`` to look for the next slot.
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
            # What is too close here is too close in every later slot, and equal ones need no second look.
            useless = not apart or candidate == old[at + 1]
            at += chosen or useless
            if not useless:
                break
        return carried, at

    def translate(self, upstream: int) -> int:
        """Return the target offset for a group's offset on the source, ``UNTRANSLATABLE`` below the oldest sync.

        A group that stands behind a sync's record gets the offset right after it: never more than it has read.
        """
        for sync in self._slots:
            if sync.upstream <= upstream:
                return sync.downstream + (1 if upstream > sync.upstream else 0)
        return UNTRANSLATABLE


def _near(newer: SyncPair, older: SyncPair, slot: int, later_slot: int) -> bool:
    """Tell whether ``older`` is recent enough for ``later_slot`` when ``newer`` stands in ``slot``."""
    return newer == older or newer.upstream <= older.upstream + (1 << later_slot) - (1 << slot)


def _apart(newer: SyncPair, older: SyncPair, slot: int) -> bool:
    """Tell whether two syncs are far enough from each other for ``newer`` to stand in ``slot``."""
    return newer == older or newer.upstream >= older.upstream + (1 << max(slot - 2, 0))
