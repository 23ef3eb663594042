"""Runs of records that were copied without offset gaps on either side. Within a run, offsets translate exactly. No I/O.

MirrorMaker 2 knows the target offsets of single records only, so it translates to the last such record before a group's
offset. klamm copies whole batches and knows more: each offset sync also records at which source offset its run began.
This is stored in a record header, which MirrorMaker ignores. Key and value are as MirrorMaker writes them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.mirror.records.offset_translation import UNTRANSLATABLE, SyncHistory, SyncPair

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """Offset translation of one partition, built from its offset syncs."""

    __slots__ = ("_history", "_newest", "_runs")

    def __init__(self, first: RunSync) -> None:
        self._begin(first)

    def _begin(self, first: RunSync) -> None:
        self._newest = first.pair
        self._history = SyncHistory(first.pair)
        self._runs: deque[RunSync] = deque(maxlen=_RUNS_KEPT)
        self._keep_run(first)

    def add(self, sync: RunSync) -> None:
        """Add a newer sync.

        If the target offset went back, all other syncs are removed: the remote topic was emptied or recreated. If the
        source offset went back, only runs before it are kept: a mirror that was killed copies some records again.
        """
        if sync.pair.downstream < self._newest.downstream:
            self._begin(sync)
            return
        if sync.pair.upstream < self._newest.upstream:
            kept = [run.before(sync.first_upstream) for run in self._runs if run.first_upstream < sync.first_upstream]
            self._begin(sync)
            self._runs = deque([*kept, *self._runs], maxlen=_RUNS_KEPT)
            return
        self._newest = sync.pair
        self._history.add(sync.pair)
        self._keep_run(sync)

    def _keep_run(self, sync: RunSync) -> None:
        if sync.first_upstream < 0:
            return
        if self._runs and self._runs[-1].first_upstream == sync.first_upstream:
            self._runs.pop()  # the same run, extended
        self._runs.append(sync)

    def translate(self, upstream: int) -> Translation | None:
        """Translate a group's source offset. None: it is older than all syncs."""
        for run in reversed(self._runs):
            if run.first_upstream <= upstream <= run.pair.upstream + 1:
                return Translation(run.first_downstream + upstream - run.first_upstream, 0)
        downstream = self._history.translate(upstream)
        if downstream == UNTRANSLATABLE:
            return None
        sync = next(sync for sync in self._history if sync.upstream <= upstream)
        return Translation(downstream, max(0, upstream - sync.upstream - 1))
