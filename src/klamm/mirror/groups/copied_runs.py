"""Runs of records that were copied without a gap on either side: within one, offsets translate exactly. No I/O.

MirrorMaker 2 knows of single records only where they went, so it translates to the last of them before a group's
offset. Whole batches are copied here, so much more is known. It is kept where MirrorMaker does not look: in a header of
the record of an offset sync, whose key and value are as MirrorMaker writes them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.mirror.groups.offset_translation import UNTRANSLATABLE, SyncHistory, SyncPair

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN_HEADER: Final = "klamm.run.first.upstream.offset"
_RUNS_KEPT: Final = 256
_ENDED_KEPT: Final = 16
_INT64_BYTES: Final = 8


class RunSync(NamedTuple):
    """An offset sync, and since which source offset everything was copied without a gap."""

    pair: SyncPair
    first_upstream: int
    """Of the run that ends with ``pair``; -1: not known."""

    @property
    def first_downstream(self) -> int:
        """The target offset of the run's first record."""
        return self.pair.downstream - (self.pair.upstream - self.first_upstream)

    def before(self, upstream: int) -> RunSync:
        """Return what of the run stands before a source offset, which is after its first one."""
        last = min(self.pair.upstream, upstream - 1)
        return RunSync(SyncPair(last, self.pair.downstream - (self.pair.upstream - last)), self.first_upstream)

    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Return the headers of the sync's record."""
        if self.first_upstream < 0:
            return ()
        return ((RUN_HEADER, self.first_upstream.to_bytes(_INT64_BYTES, signed=True)),)

    @classmethod
    def of(cls, pair: SyncPair, headers: tuple[tuple[str, bytes | None], ...]) -> RunSync:
        """Read the headers of a record; one that MirrorMaker wrote has none."""
        for name, value in headers:
            if name == RUN_HEADER and value is not None and len(value) == _INT64_BYTES:
                first = int.from_bytes(value, signed=True)
                if 0 <= first <= pair.upstream:
                    return cls(pair, first)
        return cls(pair, -1)


class RunTracker:
    """Follows the acknowledged batches of one partition."""

    __slots__ = ("_ended", "_first_upstream", "_last")

    def __init__(self) -> None:
        self._first_upstream = -1
        self._last: SyncPair | None = None
        self._ended: deque[RunSync] = deque(maxlen=_ENDED_KEPT)

    def extend(self, first: SyncPair, count: int) -> None:
        """Take a batch of records without gaps."""
        last = self._last
        follows = last is not None and (first.upstream, first.downstream) == (last.upstream + 1, last.downstream + 1)
        if not follows:
            self.end()
            self._first_upstream = first.upstream
        self._last = SyncPair(first.upstream + count - 1, first.downstream + count - 1)

    def end(self) -> None:
        """End the run: what follows is not known record by record."""
        if self._last is not None:
            self._ended.append(RunSync(self._last, self._first_upstream))
        self._last = None
        self._first_upstream = -1

    def sync(self, pair: SyncPair) -> RunSync:
        """Return a pair of the present run with what is known of it."""
        inside = self._last is not None and self._first_upstream <= pair.upstream <= self._last.upstream
        return RunSync(pair, self._first_upstream if inside else -1)

    def take_ended(self) -> Iterator[RunSync]:
        """Yield the runs that ended since the last time, the newest of them only where there are many."""
        while self._ended:
            yield self._ended.popleft()


class Translation(NamedTuple):
    """Where a group would stand on the target."""

    downstream: int
    """Offset of the next record to read; never beyond the one that the group would read next on the source."""
    again_at_most: int
    """So many records may be read a second time; 0: the translation is exact."""


class PartitionTranslation:
    """What offset syncs tell of one partition."""

    __slots__ = ("_history", "_newest", "_runs")

    def __init__(self, first: RunSync) -> None:
        self._begin(first)

    def _begin(self, first: RunSync) -> None:
        self._newest = first.pair
        self._history = SyncHistory(first.pair)
        self._runs: deque[RunSync] = deque(maxlen=_RUNS_KEPT)
        self._keep_run(first)

    def add(self, sync: RunSync) -> None:
        """Take a newer sync.

        One that goes back on the target forgets all others: the topic there was emptied or made anew. So does one that
        goes back on the source, but for the runs before it: a mirror that was killed copies some records again.
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
            self._runs.pop()  # the same run, longer now
        self._runs.append(sync)

    def translate(self, upstream: int) -> Translation | None:
        """Translate a group's offset on the source; None when it is too far back."""
        for run in reversed(self._runs):
            if run.first_upstream <= upstream <= run.pair.upstream + 1:
                return Translation(run.first_downstream + upstream - run.first_upstream, 0)
        downstream = self._history.translate(upstream)
        if downstream == UNTRANSLATABLE:
            return None
        sync = next(sync for sync in self._history if sync.upstream <= upstream)
        return Translation(downstream, max(0, upstream - sync.upstream - 1))
