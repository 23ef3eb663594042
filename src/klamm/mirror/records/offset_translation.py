"""Rules for when offset syncs are written and how group offsets are translated with them. No I/O.

``SyncRule`` and ``SyncHistory`` are MirrorMaker 2's. A run is a sequence of records that were copied without offset
gaps on either side; within a run, offsets translate exactly.

MirrorMaker 2 knows the target offsets of single records only, so it translates to the last such record before a group's
offset. klamm copies whole batches and knows more: each offset sync also records at which source offset its run began.
This is stored in a record header, which MirrorMaker ignores. Key and value are as MirrorMaker writes them.
"""

from __future__ import annotations

import copy
from collections import deque
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

    __slots__ = ("_last_sync_downstream", "_previous", "lag_max", "waiting")

    def __init__(self, lag_max: int) -> None:
        self.lag_max = lag_max
        """Most target offsets between two syncs (``offset.lag.max``)."""
        self._previous: SyncPair | None = None
        self._last_sync_downstream = -1
        self.waiting: SyncPair | None = None

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
        self.waiting = None if due else pair
        if due:
            self._last_sync_downstream = pair.downstream
        return due

    def note_batch(self, first: SyncPair, count: int) -> list[SyncPair]:
        """Record a batch without offset gaps. Return the pairs whose syncs are due now, in order.

        The result is the same as MirrorMaker's, which checks each record. None may be left out: the precision of
        ``OffsetSyncStore`` depends on the distance between the syncs.
        """
        due_pairs = [first] if self.note(first) else []
        # Inside a batch, only the distance from the last sync can make a sync due.
        end = first.downstream + count
        due = max(self._last_sync_downstream + 1 + self.lag_max, first.downstream + 1)
        for downstream in range(due, end, self.lag_max + 1):
            due_pairs.append(SyncPair(first.upstream + downstream - first.downstream, downstream))
            self._last_sync_downstream = downstream
        self._previous = last = SyncPair(first.upstream + count - 1, end - 1)
        self.waiting = None if due_pairs and due_pairs[-1] == last else last
        return due_pairs

    def flush(self) -> SyncPair | None:
        """Return the waiting pair and count it as written. None: no pair waits."""
        waiting, self.waiting = self.waiting, None
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


RUN_HEADER: Final = "klamm.run.first.upstream.offset"
_RUNS_KEPT: Final = 256
_ENDED_KEPT: Final = 16
_INT64_BYTES: Final = 8


class RunSync(NamedTuple):
    """Offset sync with the first source offset of its run."""

    pair: SyncPair
    first_upstream: int
    """First source offset of the run that ends with ``pair``. -1: unknown."""

    @property
    def first_downstream(self) -> int:
        """Target offset of the first record of the run."""
        return self.pair.downstream - (self.pair.upstream - self.first_upstream)

    def before(self, upstream: int) -> RunSync:
        """Return the part of the run before a source offset. The offset must be after the run's first one."""
        last = min(self.pair.upstream, upstream - 1)
        return RunSync(SyncPair(last, self.pair.downstream - (self.pair.upstream - last)), self.first_upstream)

    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Return the record headers of the sync."""
        if self.first_upstream < 0:
            return ()
        return ((RUN_HEADER, self.first_upstream.to_bytes(_INT64_BYTES, signed=True)),)

    @classmethod
    def of(cls, pair: SyncPair, headers: tuple[tuple[str, bytes | None], ...]) -> RunSync:
        """Return the sync with the run in the record headers. Records written by MirrorMaker have no such header."""
        for name, value in headers:
            if name == RUN_HEADER and value is not None and len(value) == _INT64_BYTES:
                first = int.from_bytes(value, signed=True)
                if 0 <= first <= pair.upstream:
                    return cls(pair, first)
        return cls(pair, -1)


class RunTracker:
    """Tracker of the runs in the acknowledged batches of one partition."""

    __slots__ = ("_ended", "_first_upstream", "_last")

    def __init__(self) -> None:
        self._first_upstream = -1
        self._last: SyncPair | None = None
        self._ended: deque[RunSync] = deque(maxlen=_ENDED_KEPT)

    def extend(self, first: SyncPair, count: int) -> None:
        """Add a batch without offset gaps to the current run, or start a new run with it.

        Args:
            first: Offsets of its first record.
            count: Number of records.
        """
        last = self._last
        follows = last is not None and (first.upstream, first.downstream) == (last.upstream + 1, last.downstream + 1)
        if not follows:
            self.end()
            self._first_upstream = first.upstream
        self._last = SyncPair(first.upstream + count - 1, first.downstream + count - 1)

    def end(self) -> None:
        """End the current run, because the next batch has offset gaps or does not follow the last one."""
        if self._last is not None:
            self._ended.append(RunSync(self._last, self._first_upstream))
        self._last = None
        self._first_upstream = -1

    def sync(self, pair: SyncPair) -> RunSync:
        """Return a pair as a sync, with the start of the current run if the pair is inside it."""
        inside = self._last is not None and self._first_upstream <= pair.upstream <= self._last.upstream
        return RunSync(pair, self._first_upstream if inside else -1)

    def take_ended(self) -> Iterator[RunSync]:
        """Yield the runs that ended since the last call, at most the newest 16."""
        while self._ended:
            yield self._ended.popleft()


class Translation(NamedTuple):
    """Translation of a group's offset to the target."""

    downstream: int
    """Target offset of the next record to read. Never after the record that the group would read next on the source."""
    again_at_most: int
    """Most records that are read a second time. 0: the translation is exact."""


class PartitionTranslation:
    """Offset translation of one partition, built from its offset syncs.

    A mirror that was killed or reset copies records again, behind their first copies. Until it has come as far as
    before, the target has the only copies of some records before the new ones. The translation from before then stays
    in effect, so that no group is moved past these records: the source may be lost before they are copied again.

    If the mirror has left out some of these records until then, because it was reset forward or they were deleted on
    the source, they are not copied again. Groups before them then stay at the first copies: new copies count only from
    the last record that was left out on.
    """

    __slots__ = ("_before", "_history", "_is_left_out", "_newest", "_repeated", "_replaced", "_runs", "_without_run")

    def __init__(self, first: RunSync) -> None:
        self._begin(first)

    def _begin(self, first: RunSync) -> None:
        self._newest = first.pair
        self._before: PartitionTranslation | None = None
        """Translation by the syncs before the source offset went back. None: all its records were copied again."""
        self._history = SyncHistory(first.pair)
        self._runs: deque[RunSync] = deque(maxlen=_RUNS_KEPT)
        self._without_run: deque[SyncPair] = deque(maxlen=_RUNS_KEPT)
        """Newest syncs with an unknown run. The history drops some of them."""
        self._repeated: deque[RunSync] = deque(maxlen=_RUNS_KEPT)
        """Syncs that were ignored since the newest one."""
        self._is_left_out = False
        """Whether the mirror has left out records of this translation when it copied them again."""
        self._replaced: PartitionTranslation | None = None
        """Translation by the new copies until ``_before`` replaced it. It only shows which syncs are known."""
        self._keep_run(first)

    def add(self, sync: RunSync) -> None:
        """Add a newer sync.

        If the target offset went back, all other syncs are removed: the remote topic was emptied or recreated. It may
        have grown beyond the old offset since; then the first target offset of the run shows it. If the source offset
        went back, only runs before it are kept, and the earlier translation until the source offset has come as far
        again: a mirror that was killed copies some records again.

        A sync that is known already is ignored. If the acknowledgement of a write is lost, the mirror repeats the whole
        write, and the log has its syncs twice. A new log may begin with the same offsets, too: its first other sync
        shows that.
        """
        if sync.pair.downstream < self._newest.downstream and self._maps(sync.pair):
            self._repeated.append(sync)
            return
        is_new_log = sync.first_upstream > self._newest.upstream and sync.first_downstream <= self._newest.downstream
        if is_new_log or sync.pair.downstream < self._newest.downstream:
            first, *others = [*self._repeated, sync]
            self._begin(first)
            for other in others:
                self.add(other)
            return
        self._repeated.clear()
        if sync.pair.upstream < self._newest.upstream:
            kept = [run.before(sync.first_upstream) for run in self._runs if run.first_upstream < sync.first_upstream]
            before = self._before or copy.copy(self)
            self._begin(sync)
            self._runs = deque([*kept, *self._runs], maxlen=_RUNS_KEPT)
            self._before = before
            return
        if self._before is not None:
            self._copy_again(sync, self._before)
        self._newest = sync.pair
        self._history.add(sync.pair)
        self._keep_run(sync)

    def _copy_again(self, sync: RunSync, before: PartitionTranslation) -> None:
        """Note that records were copied again up to a sync. If none is left, end the translation from before.

        If some were left out, that translation stays instead, and the syncs since then no longer count.
        """
        first = sync.pair.upstream if sync.first_upstream < 0 else sync.first_upstream
        before._is_left_out |= first > self._newest.upstream + 1
        if sync.pair.upstream < before._newest.upstream:
            return
        self._before = None
        if before._is_left_out:
            replaced = copy.copy(self)
            replaced._replaced = None
            self._replaced = replaced
            self._history, self._runs, self._without_run = before._history, before._runs, before._without_run

    def _maps(self, pair: SyncPair) -> bool:
        """Return whether an earlier sync, or a run, has this pair of offsets."""
        return (
            (self._replaced is not None and self._replaced._maps(pair))
            or pair in self._history
            or pair in self._without_run
            or any(
                run.first_upstream <= pair.upstream <= run.pair.upstream
                and pair.downstream - run.first_downstream == pair.upstream - run.first_upstream
                for run in self._runs
            )
        )

    def _keep_run(self, sync: RunSync) -> None:
        if sync.first_upstream < 0:
            self._without_run.append(sync.pair)
            return
        if self._runs and self._runs[-1].first_upstream == sync.first_upstream:
            self._runs.pop()  # the same run, extended
        self._runs.append(sync)

    def would_skip(self, upstream: int, downstream: int) -> bool:
        """Return whether a target offset is after a record that the group of a source offset has not read.

        Such a checkpoint is of a remote topic that was deleted, because translations never are.
        """
        now = self._by_newest_syncs(upstream)
        if now is not None and downstream <= now.downstream:
            return False  # the history may be that of first copies, which are before new ones
        for sync in self._history:
            if sync.upstream < upstream:
                break
            if sync.downstream < downstream:
                return True
        for run in reversed(self._runs):
            if run.first_upstream < upstream:
                inside = upstream <= run.pair.upstream + 1
                return inside and downstream > run.first_downstream + upstream - run.first_upstream
            if run.first_downstream < downstream:
                return True
        return False

    def translate(self, upstream: int, source_end: int | None = None) -> Translation | None:
        """Translate a group's source offset. None: it is older than all syncs.

        Args:
            upstream: Committed offset of the group.
            source_end: Log end of the source. None: unknown. If it is not after the newest record that was copied
                before, the source topic was recreated, so its earlier records will not be copied again.
        """
        translation, before = self._by_newest_syncs(upstream), self._before
        if before is None or (source_end is not None and source_end <= before._newest.upstream):
            return translation
        earlier = before.translate(upstream)
        if earlier is None:
            return None
        if translation is not None and translation.downstream <= earlier.downstream:
            return translation
        copied_again = self._newest.downstream - before._newest.downstream
        return earlier._replace(again_at_most=earlier.again_at_most + copied_again)

    def _by_newest_syncs(self, upstream: int) -> Translation | None:
        for run in reversed(self._runs):
            if run.first_upstream <= upstream <= run.pair.upstream + 1:
                return Translation(run.first_downstream + upstream - run.first_upstream, 0)
        downstream = self._history.translate(upstream)
        if downstream == UNTRANSLATABLE:
            return None
        sync = next(sync for sync in self._history if sync.upstream <= upstream)
        return Translation(downstream, max(0, upstream - sync.upstream - 1))
