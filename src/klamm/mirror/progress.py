"""How far a mirror is: collected from the tasks and the control loops, read by displays."""

from __future__ import annotations

import functools
import logging
import re
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from klamm.mirror.record_ages import Ages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from klamm.mirror.status.drift import ConfigDifference

logger = logging.getLogger(__name__)

RATE_WINDOW_S: Final = 5.0
_MEGABYTE: Final = 1_000_000
_STOPPED: Final = "STOPPED"
_WAITING: Final = "WAITING"
_MENDED_BY_PEOPLE: Final = re.compile(
    r"\b(\w+_AUTHORIZATION_FAILED|\w*AUTHENTICATION_FAILED|INVALID_REPLICATION_FACTOR|POLICY_VIOLATION|INVALID_CONFIG"
    r"|SECURITY_DISABLED)\b|Login as .* failed|certificate (verify failed|has expired|expired|unknown|required)",
    re.IGNORECASE,
)
"""In reasons, which quote Kafka's name of an error: asking again helps only after somebody has changed something."""
_STARTING: Final = "starting"
"""The reason of partitions that a task has just begun with."""


class FlowState(StrEnum):
    """Where a flow stands."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    """Something is away; tried again until it is back."""
    FAILED = "FAILED"
    """It can not go on until somebody changes something."""
    STOPPED = "STOPPED"
    """It was asked to end, or is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """How far one partition is."""

    topic: str
    partition: int
    remote_topic: str
    next_offset: int
    """Everything before it is on the target; -1: not started."""
    end_offset: int
    """End of the source's partition; -1: not known yet."""
    state: str
    """COPYING, WAITING or STOPPED."""
    reason: str
    last_timestamp: int
    """Newest record timestamp copied in this run, milliseconds since the epoch; -1: none."""
    records: int = 0
    """Copied in this run, as ``bytes``."""
    bytes: int = 0
    records_per_s: float = 0.0
    """Over the last seconds, as ``bytes_per_s``."""
    bytes_per_s: float = 0.0
    record_age: Ages | None = None
    """How old records were when they were fetched, of late."""
    replication_latency: Ages | None = None
    """How old records were when the target had them, of late."""

    @property
    def is_waiting(self) -> bool:
        """Tell whether it waits for a cluster; when it just starts it does not."""
        return self.state == _WAITING and self.next_offset >= 0 and self.reason != _STARTING

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for something that only a person can change, such as a missing ACL."""
        return self.state == _WAITING and needs_person(self.reason)

    @property
    def lag(self) -> int | None:
        """Offsets that the target is behind; None: not known yet."""
        return None if self.end_offset < 0 or self.next_offset < 0 else max(0, self.end_offset - self.next_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowProgress:
    """How far a flow is, at one moment."""

    flow: str
    """``A->B``."""
    state: FlowState
    reason: str
    """Why it waits or failed; empty when it runs."""
    copied: int
    """Offsets of the source that are on the target, over all its partitions."""
    total: int
    """Offsets that the source's partitions have."""
    records: int
    """Copied in this run, as ``bytes``."""
    bytes: int
    records_per_s: float
    """Over the last seconds, as ``mb_per_s``."""
    mb_per_s: float
    lag: int | None
    """Offsets that the target is behind; None: not known for every partition yet."""
    eta_s: float | None
    """Seconds until the lag is gone at this rate; None: can not be said."""
    partitions: tuple[PartitionStatus, ...]
    is_done: bool
    """Every partition that the flow copies is known, and has no lag or is stopped."""

    refused: tuple[tuple[str, str], ...] = ()
    """Remote topics that the target did not create or grow in the last round, and why."""
    progressed_at: float | None = None
    """When a position moved last, seconds since the epoch; None: not in this run."""
    is_blocked: bool = False
    """Whether the flow, or each partition that is not done, waits for something that only a person can change."""

    @property
    def stopped(self) -> tuple[PartitionStatus, ...]:
        """Partitions that need somebody."""
        return tuple(partition for partition in self.partitions if partition.state == _STOPPED)

    @property
    def what_blocks(self) -> str:
        """What a person has to change for the flow to go on, or for the first of its partitions."""
        if self.state is FlowState.WAITING and needs_person(self.reason):
            return self.reason
        blocked = [partition for partition in self.partitions if partition.is_blocked]
        return f"{blocked[0].topic}-{blocked[0].partition}: {blocked[0].reason}" if blocked else ""

    @property
    def caught_up(self) -> bool:
        """Tell whether what the flow copies is known, and nothing of it is missing on the target."""
        return self.lag == 0


class _Rate:
    """Records and bytes per second of one partition, over one to two windows of the recent past."""

    __slots__ = ("_before", "_since")

    def __init__(self, now: float) -> None:
        self._before = self._since = (now, 0, 0)

    def at(self, now: float, records: int, size: int) -> tuple[float, float]:
        """Return both rates, given the counts of now."""
        if now - self._since[0] >= RATE_WINDOW_S:
            self._before, self._since = self._since, (now, records, size)
        then, records_then, size_then = self._before
        elapsed = max(now - then, 1.0)
        return (records - records_then) / elapsed, (size - size_then) / elapsed


@dataclass(slots=True)
class _Totals:
    """Sums over the partitions of a flow, kept with each change: ten thousand are too many to add up each second."""

    copied: int = 0
    total: int = 0
    lag: int = 0
    """Of the expected partitions, as far as it is known."""
    unknown: int = 0
    """Expected partitions whose lag is not known."""
    unfinished: int = 0
    """Expected partitions that are not done."""
    waiting: int = 0
    """Expected partitions that wait for something that is away."""
    blocked: int = 0
    """Expected partitions that are not done and wait for a person."""

    def add(self, partition: PartitionStatus | None, *, expected: bool, sign: int = 1) -> None:
        """Count a partition, None for one without news; or do not count it any more."""
        if partition is not None:
            # A topic that was emptied or made anew ends before what was copied of it.
            self.copied += sign * max(0, min(partition.next_offset, partition.end_offset))
            self.total += sign * max(0, partition.end_offset)
        if expected:
            lag = None if partition is None else partition.lag
            self.lag += sign * (lag or 0)
            self.unknown += sign * (lag is None)
            self.unfinished += sign * (not _is_done(partition))
            self.waiting += sign * (partition is not None and partition.is_waiting)
            self.blocked += sign * (partition is not None and partition.is_blocked and not _is_done(partition))


@dataclass(slots=True)
class _Flow:
    state: FlowState = FlowState.STARTING
    reason: str = ""
    expected: frozenset[tuple[str, int]] | None = None
    """The partitions that the flow is to copy and that are counted; None: not planned yet."""
    wanted: frozenset[tuple[str, int]] = frozenset()
    """Those that are not counted, too; empty: whatever there is news of."""
    partitions: dict[tuple[str, int], PartitionStatus] = field(default_factory=dict)
    order: list[tuple[str, int]] = field(default_factory=list)
    """The keys of ``partitions``, sorted; too few after there was news of others."""
    totals: _Totals = field(default_factory=_Totals)
    counters: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)
    """Records and bytes by session and partition: a new session counts from zero."""
    rates: dict[tuple[str, int], _Rate] = field(default_factory=dict)
    progressed_at: float | None = None
    refused: tuple[tuple[str, str], ...] = ()
    drift: tuple[ConfigDifference, ...] | None = None
    """How the configs of its topics differ on the two sides; None: not looked at yet."""
    records: int = 0
    bytes: int = 0
    history: deque[tuple[float, int, int]] = field(default_factory=deque)


class MirrorStatus:
    """The state of all flows. Thread-safe."""

    def __init__(
        self,
        flows: Iterable[str],
        *,
        clock: Callable[[], float] = time.monotonic,
        counts: Callable[[str, str], bool] = lambda _flow, _topic: True,
    ) -> None:
        """Begin without news.

        Args:
            flows: their names.
            clock: seconds.
            counts: tells by flow and source topic whether a topic's records are counted. Heartbeats are not: a mirror
                whose data are complete would never be done.
        """
        self._clock = clock
        self._counts = functools.cache(counts)
        self._lock = threading.Lock()
        self._flows = {name: _Flow() for name in flows}

    def set_state(self, flow: str, state: FlowState, reason: str = "") -> None:
        """Say where a flow stands."""
        with self._lock:
            self._flows[flow].state, self._flows[flow].reason = state, reason

    def set_refused(self, flow: str, reasons: Mapping[str, str]) -> None:
        """Say which remote topics the target refused in the last round; none of before counts any more."""
        with self._lock:
            self._flows[flow].refused = tuple(sorted(reasons.items()))

    def set_drift(self, flow: str, differences: tuple[ConfigDifference, ...]) -> None:
        """Say how the configs of a flow's topics differ on the two sides."""
        with self._lock:
            self._flows[flow].drift = differences

    def drift(self) -> dict[str, tuple[ConfigDifference, ...]]:
        """Return what differs in the configs, by flow; a flow that was not looked at yet is missing."""
        with self._lock:
            return {name: flow.drift for name, flow in self._flows.items() if flow.drift is not None}

    def state_of(self, flow: str) -> FlowState:
        """Return where a flow stands."""
        with self._lock:
            return self._flows[flow].state

    def expect(self, flow: str, partitions: Iterable[tuple[str, int]]) -> None:
        """Say which partitions a flow is to copy: without news of each of them it has not caught up."""
        all_wanted = frozenset(partitions)
        wanted = frozenset(key for key in all_wanted if self._counts(flow, key[0]))
        with self._lock:
            found = self._flows[flow]
            found.expected, found.wanted, found.totals = wanted, all_wanted, _Totals()
            if all_wanted:
                # A topic that is not mirrored any more is not shown any more; what failed stays to be looked at.
                gone = found.partitions.keys() - all_wanted
                found.partitions = {key: each for key, each in found.partitions.items() if key not in gone}
                found.order = []
            for key in wanted | found.partitions.keys():
                if self._counts(flow, key[0]):
                    found.totals.add(found.partitions.get(key), expected=key in wanted)

    def update(self, session: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take the progress that a task sent.

        Args:
            session: names the copier that counted ``records`` and ``bytes``.
            rows: the fields of ``PartitionProgress`` each.
        """
        with self._lock:
            for row in rows:
                flow = self._flows.get(row["flow"])
                if flow is not None:
                    self._update_one(flow, session, row)

    def _update_one(self, flow: _Flow, session: str, row: Mapping[str, Any]) -> None:
        key = (row["topic"], row["partition"])
        counter = (session, *key)
        records, size = flow.counters.get(counter, (0, 0))
        if self._counts(row["flow"], row["topic"]):
            flow.records += row["records"] - records
            flow.bytes += row["bytes"] - size
        flow.counters[counter] = (row["records"], row["bytes"])
        if flow.wanted and key not in flow.wanted:
            return  # the last word of a task that ends
        known = flow.partitions.get(key)
        if row["state"] == _STOPPED and (known is None or known.state != _STOPPED):
            # Tasks log where Spark keeps their output; what needs somebody is told by the driver too.
            logger.error("%s: %s-%d stopped: %s", row["flow"], row["topic"], row["partition"], row["reason"])
        started = row["next_offset"] >= 0 or known is None
        total_records = row["records"] - records + (known.records if known else 0)
        total_bytes = row["bytes"] - size + (known.bytes if known else 0)
        now = self._clock()
        rate = flow.rates.setdefault(key, _Rate(now))
        records_per_s, bytes_per_s = rate.at(now, total_records, total_bytes)
        if row["records"] > records:
            flow.progressed_at = time.time()
        new = PartitionStatus(
            topic=row["topic"],
            partition=row["partition"],
            remote_topic=row["remote_topic"],
            next_offset=row["next_offset"] if started or known is None else known.next_offset,
            end_offset=max(row["end_offset"], known.end_offset if known else -1),
            state=row["state"],
            reason=row["reason"],
            last_timestamp=max(row["last_timestamp"], known.last_timestamp if known else -1),
            records=total_records,
            bytes=total_bytes,
            records_per_s=records_per_s,
            bytes_per_s=bytes_per_s,
            record_age=_ages(row.get("record_age")),
            replication_latency=_ages(row.get("replication_latency")),
        )
        if self._counts(row["flow"], row["topic"]):
            expected = flow.expected is not None and key in flow.expected
            flow.totals.add(known, expected=expected, sign=-1)
            flow.totals.add(new, expected=expected)
        flow.partitions[key] = new

    def snapshot(self) -> tuple[FlowProgress, ...]:
        """Return how far every flow is now."""
        now = self._clock()
        with self._lock:
            return tuple(self._progress(name, flow, now) for name, flow in self._flows.items())

    def _progress(self, name: str, flow: _Flow, now: float) -> FlowProgress:
        flow.history.append((now, flow.records, flow.bytes))
        while len(flow.history) > 1 and flow.history[0][0] < now - RATE_WINDOW_S:
            flow.history.popleft()
        then, records, size = flow.history[0]
        elapsed = max(now - then, 1e-9)
        records_per_s = (flow.records - records) / elapsed
        totals = flow.totals
        lag = None if flow.expected is None or totals.unknown else totals.lag
        if len(flow.order) < len(flow.partitions):
            flow.order = sorted(flow.partitions)
        state, reason = flow.state, flow.reason
        if state is FlowState.RUNNING and flow.expected and totals.waiting == len(flow.expected):
            # The control loop has nothing to ask for a long time; the tasks know first that a cluster is away.
            state, reason = FlowState.WAITING, flow.partitions[next(iter(flow.expected))].reason
        return FlowProgress(
            flow=name,
            state=state,
            reason=reason,
            copied=totals.copied,
            total=totals.total,
            records=flow.records,
            bytes=flow.bytes,
            records_per_s=records_per_s,
            mb_per_s=(flow.bytes - size) / elapsed / _MEGABYTE,
            lag=lag,
            eta_s=None if lag is None or (lag and not records_per_s) else lag / records_per_s if lag else 0.0,
            partitions=tuple(map(flow.partitions.__getitem__, flow.order)),
            refused=flow.refused,
            progressed_at=flow.progressed_at,
            is_done=flow.expected is not None and not totals.unfinished,
            is_blocked=(state is FlowState.WAITING and needs_person(reason))
            or (flow.expected is not None and 0 < totals.unfinished == totals.blocked),
        )


def needs_person(reason: str) -> bool:
    """Return whether a reason to wait is a refusal that only a person can end, such as a missing ACL."""
    return _MENDED_BY_PEOPLE.search(reason) is not None


def _ages(figures: Sequence[float] | None) -> Ages | None:
    return None if figures is None else Ages(*figures)


def _is_done(partition: PartitionStatus | None) -> bool:
    return partition is not None and (partition.lag == 0 or partition.state == _STOPPED)


def describe(progress: FlowProgress) -> str:
    """Return a flow's progress as one line of plain text."""
    state = progress.state.value + (f" ({progress.reason})" if progress.reason else "")
    share = f"{progress.copied:,}/{progress.total:,}"
    lag = "unknown" if progress.lag is None else f"{progress.lag:,}"
    eta = "" if not progress.eta_s else f", done in {progress.eta_s:.0f} s"
    stopped = f", {_partitions(len(progress.stopped))} stopped" if progress.stopped else ""
    waiting = _waiting(progress) if progress.state is FlowState.RUNNING else ""
    refused = "".join(f", topic {name} refused: {reason}" for name, reason in progress.refused)
    return (
        f"{progress.flow} {state}: {share} records, {progress.records_per_s:,.0f} records/s, "
        f"{progress.mb_per_s:.1f} MB/s, lag {lag}{eta}{stopped}{waiting}{refused}"
    )


def _waiting(progress: FlowProgress) -> str:
    """Return how many partitions wait while others are copied, with the first of them: its topic may be gone."""
    waiting = [partition for partition in progress.partitions if partition.is_waiting]
    if not waiting:
        return ""
    first = waiting[0]
    verb = "waits" if len(waiting) == 1 else "wait"
    return f", {_partitions(len(waiting))} {verb}: {first.topic}-{first.partition}: {first.reason}"


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count:,} partitions"
