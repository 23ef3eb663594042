"""Progress and errors of the flows of a mirror, collected from tasks and control loops."""

from __future__ import annotations

import functools
import logging
import re
import threading
import time
from dataclasses import field, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from klamm.lazy_dataclass import dataclass
from klamm.mirror.progress.partition_progress import STARTING, CopyState, PartitionProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from klamm.mirror.progress.partition_progress import Ages

logger = logging.getLogger(__name__)


class MirrorError(Exception):
    """Base class of the mirror's errors. The message is for the operator."""


class FlowFailedError(MirrorError):
    """A flow cannot continue until an operator changes something. Its state becomes FAILED with this message."""


class SparkFailedError(MirrorError):
    """Spark fails repeatedly, or its JVM is gone and cannot be restarted in this process."""


RATE_WINDOW_S: Final = 5.0
_KEPT_SESSIONS: Final = 2
_MEGABYTE: Final = 1_000_000
_MENDED_BY_PEOPLE: Final = re.compile(
    r"\b(\w+_AUTHORIZATION_FAILED|\w*AUTHENTICATION_FAILED|INVALID_REPLICATION_FACTOR|POLICY_VIOLATION|INVALID_CONFIG"
    r"|SECURITY_DISABLED|UNSUPPORTED_SASL_MECHANISM)\b"
    r"|certificate (verify failed|has expired|expired|unknown|required)|^unexpected error: ",
    re.IGNORECASE,
)
"""Pattern for reasons with an error that only an operator can resolve. Reasons contain Kafka's name of the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDifference:
    """One config that differs between both sides, or that the next sync changes."""

    topic: str
    """Name of the remote topic."""
    name: str
    source_value: str | None
    source_is_default: bool
    target_value: str | None
    target_is_default: bool
    rule: str
    """Reason why the sync does not change the config, or the rule by which it does."""
    is_drift: bool
    """Whether the next sync changes the config. False: it is meant to differ, or cannot be synced."""


class FlowState(StrEnum):
    """State of a flow.

    ========  ========  ==============================================================================================
    From      To        On
    ========  ========  ==============================================================================================
    STARTING  RUNNING   The first round of the control loop succeeded.
    any       STANDBY   Another process mirrors the flow (see ``claims``). Back to RUNNING when that process has ended.
    any       WAITING   A cluster does not answer, or rejects requests of the control loop. Also reported while all
                        partitions of a running flow wait.
    WAITING   RUNNING   A round succeeds again.
    any       PAUSED    An operator paused the flow: no record is fetched, its partitions stay with the tasks.
    any       STOPPED   An operator stopped the flow: it has no partitions. ``reason`` says so. Back when it is resumed.
    any       FAILED    The flow cannot continue until an operator changes something (``FlowFailedError``). Only
                        ``klamm mirror restart`` or a new process starts it again.
    other     STOPPED   The mirror was asked to end, or everything is copied (``--until-caught-up``).
    ========  ========  ==============================================================================================
    """

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    """A cluster is unavailable. The mirror retries until it is back."""
    PAUSED = "PAUSED"
    """An operator paused the flow."""
    STANDBY = "STANDBY"
    """Another process mirrors the flow. This one takes over when the other one ends."""
    FAILED = "FAILED"
    """The flow cannot continue until an operator changes something."""
    STOPPED = "STOPPED"
    """The flow was asked to end, or is complete. With a reason: an operator stopped it, and can resume it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus(PartitionProgress):
    """Progress of one partition over all tasks that have copied it in this run."""

    records_per_s: float = 0.0
    """Rate over the last seconds, like ``bytes_per_s``."""
    bytes_per_s: float = 0.0
    is_released: bool = False
    """Whether its flow copies nothing, as after ``klamm mirror stop``. The source may have grown since."""

    @property
    def is_waiting(self) -> bool:
        """Return whether the partition waits for a cluster. False while it starts."""
        return self.state is CopyState.WAITING and self.next_offset >= 0 and self.reason != STARTING

    @property
    def is_blocked(self) -> bool:
        """Return whether only an operator can let the partition continue: it is paused, or waits for a missing ACL."""
        return self.state is CopyState.PAUSED or (self.state is CopyState.WAITING and needs_person(self.reason))

    @property
    def lag(self) -> int | None:
        """Number of source offsets that are not on the target. None: not known now."""
        return None if self.ends is None else max(0, self.end_offset - self.next_offset)

    @property
    def ends(self) -> tuple[int, int] | None:
        """Log ends of the source and the remote partition, if records keep their offsets. None: not known now.

        The log end of the remote partition is then ``next_offset``.
        """
        is_unknown = self.is_released or self.end_offset < 0 or self.next_offset < 0
        return None if is_unknown else (self.end_offset, self.next_offset)

    @property
    def ends_are_equal(self) -> bool | None:
        """Whether these log ends are equal. None: not known now."""
        return None if self.ends is None else self.ends[0] == self.ends[1]


_RELEASED: Final[Mapping[str, Any]] = MappingProxyType(
    {"is_released": True, "record_age": None, "replication_latency": None}
)
"""Fields of the status of a partition whose flow copies nothing. Ages of the last minute do not exist then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowProgress:
    """Progress of a flow at one moment."""

    flow: str
    """Name of the flow, ``A->B``."""
    state: FlowState
    reason: str
    """Reason why the flow waits or failed. Empty while it runs."""
    copied: int
    """Sum over all partitions of the source offsets that are on the target."""
    total: int
    """Sum of the end offsets of the source partitions."""
    records: int
    """Number of records copied in this run. ``bytes`` counts the same records."""
    bytes: int
    records_per_s: float
    """Rate over the last seconds, like ``mb_per_s``."""
    mb_per_s: float
    lag: int | None
    """Number of source offsets that are not on the target. None: not known for every partition yet."""
    eta_s: float | None
    """Seconds until the lag is copied at the current rate. None: unknown."""
    partitions: tuple[PartitionStatus, ...]
    is_done: bool
    """Whether the progress of every partition of the flow is known and each has no lag or is STOPPED."""

    rejected: tuple[tuple[str, str], ...] = ()
    """Remote topics that the target did not create or extend in the last round, each with the reason."""
    progressed_at: float | None = None
    """Time at which records were last copied, in seconds since the epoch. None: not in this run."""
    is_blocked: bool = False
    """Whether only an operator can let the flow, or each of its unfinished partitions, continue."""
    topic_states: tuple[tuple[str, str], ...] = ()
    """Source topics that an operator paused, stopped, promoted or demoted, each with its state."""
    preserves_offsets: bool = False
    """Whether records keep their offsets, so that ``next_offset`` of a partition is an offset of both sides."""

    @property
    def stopped(self) -> tuple[PartitionStatus, ...]:
        """STOPPED partitions, for which an operator has to act."""
        return tuple(partition for partition in self.partitions if partition.state is CopyState.STOPPED)

    @property
    def what_blocks(self) -> str:
        """Reason that an operator has to resolve, of the flow or of its first blocked partition. Empty: none."""
        if _is_blocked(self.state, self.reason):
            return self.reason
        blocked = [partition for partition in self.partitions if partition.is_blocked]
        return f"{blocked[0].topic}-{blocked[0].partition}: {blocked[0].reason or 'paused'}" if blocked else ""

    @property
    def caught_up(self) -> bool:
        """Return whether the progress of all partitions is known and no record is missing on the target."""
        return self.lag == 0


class _Rate:
    """Record and byte rates of one partition over the last one to two windows."""

    __slots__ = ("_before", "_latest", "_since", "reported_at")

    def __init__(self, now: float) -> None:
        self._before = self._since = (now, 0, 0)
        self._latest = (0, 0)
        """Records and bytes at the latest call."""
        self.reported_at = now
        """Time of the latest report."""

    def at(self, now: float, records: int, size: int) -> tuple[float, float]:
        """Return both rates per second.

        Args:
            now: Time of the monotonic clock in seconds.
            records: Number of records copied so far.
            size: Number of bytes copied so far.
        """
        age = now - self._since[0]
        if age >= RATE_WINDOW_S:
            # Partitions that copy nothing are not reported, so the latest figures were still true one window ago.
            self._before = (now - RATE_WINDOW_S, *self._latest) if age > 2 * RATE_WINDOW_S else self._since
            self._since = (now, records, size)
        self._latest = (records, size)
        then, records_then, size_then = self._before
        elapsed = max(now - then, 1.0)
        return (records - records_then) / elapsed, (size - size_then) / elapsed


@dataclass(slots=True)
class _Totals:
    """Sums over the partitions of a flow.

    They are updated with each change: adding up ten thousand partitions every second would cost too much.
    """

    copied: int = 0
    total: int = 0
    lag: int = 0
    """Known lag of the expected partitions."""
    unknown: int = 0
    """Number of expected partitions with unknown lag."""
    unfinished: int = 0
    """Number of expected partitions that are not done."""
    waiting: int = 0
    """Number of expected partitions that wait for a cluster."""
    blocked: int = 0
    """Number of expected partitions that are not done and wait for an operator."""

    def add(self, partition: PartitionStatus | None, *, expected: bool, sign: int = 1) -> None:
        """Add a partition to the sums, or subtract it.

        Args:
            partition: Progress of the partition. None: no progress was reported yet.
            expected: Whether the flow is to copy the partition.
            sign: 1 to add, -1 to subtract.
        """
        if partition is not None:
            # The end of a topic that was emptied or recreated is before the offsets that were copied.
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
    rate: _Rate
    """Rate of the counted partitions together."""
    state: FlowState = FlowState.STARTING
    reason: str = ""
    expected: frozenset[tuple[str, int]] | None = None
    """Partitions that the flow is to copy and that count for its progress. None: not planned yet, or released."""
    wanted: frozenset[tuple[str, int]] = frozenset()
    """All partitions that the flow is to copy. Empty: not limited."""
    was_released: bool = False
    """Whether the flow was released since it was to copy partitions: their source ends may be out of date."""
    partitions: dict[tuple[str, int], PartitionStatus] = field(default_factory=dict)
    order: list[tuple[str, int]] = field(default_factory=list)
    """Sorted keys of ``partitions``. Rebuilt when partitions were added."""
    totals: _Totals = field(default_factory=_Totals)
    counters: dict[tuple[str, int], dict[str, tuple[int, int]]] = field(default_factory=dict)
    """Reported records and bytes by partition, then by lease session. Each session counts from zero.

    The session that reported last comes last. Only the last two are kept: a task that was replaced may report once
    more.
    """
    rates: dict[tuple[str, int], _Rate] = field(default_factory=dict)
    progressed_at: float | None = None
    rejected: tuple[tuple[str, str], ...] = ()
    topic_states: tuple[tuple[str, str], ...] = ()
    drift: tuple[ConfigDifference, ...] | None = None
    """Differences between the topic configs of the two clusters. None: not compared yet."""
    records: int = 0
    bytes: int = 0
    moving: set[tuple[str, int]] = field(default_factory=set)
    """Partitions with a rate above zero."""


class MirrorStatus:
    """Status of all flows. Thread-safe."""

    def __init__(
        self,
        flows: Iterable[str],
        *,
        clock: Callable[[], float] = time.monotonic,
        counts: Callable[[str, str], bool] = lambda _flow, _topic: True,
        preserving: Iterable[str] = (),
    ) -> None:
        """Create the status of flows without any progress.

        Args:
            flows: Names of the flows.
            clock: Monotonic clock in seconds.
            counts: Returns whether the records of a source topic count, given flow and topic. Heartbeats do not: they
                never end, so the mirror would never be done.
            preserving: Names of the flows whose records keep their offsets.
        """
        self._clock = clock
        self._counts = functools.cache(counts)
        self._preserving = frozenset(preserving)
        self._lock = threading.Lock()
        self._flows = {name: _Flow(rate=_Rate(clock())) for name in flows}

    def set_state(self, flow: str, state: FlowState, reason: str = "") -> None:
        """Change the state of a flow."""
        with self._lock:
            self._flows[flow].state, self._flows[flow].reason = state, reason

    def set_rejected(self, flow: str, reasons: Mapping[str, str]) -> None:
        """Replace the remote topics that the target rejected in the latest round, each with the reason."""
        with self._lock:
            self._flows[flow].rejected = tuple(sorted(reasons.items()))

    def set_topic_states(self, flow: str, states: Mapping[str, str]) -> None:
        """Replace the source topics that an operator paused, stopped, promoted or demoted, each with its state."""
        with self._lock:
            self._flows[flow].topic_states = tuple(sorted(states.items()))

    def set_drift(self, flow: str, differences: tuple[ConfigDifference, ...]) -> None:
        """Replace the config differences of a flow's topics."""
        with self._lock:
            self._flows[flow].drift = differences

    def drift(self) -> dict[str, tuple[ConfigDifference, ...]]:
        """Return the config differences by flow. Flows that were not compared yet are missing."""
        with self._lock:
            return {name: flow.drift for name, flow in self._flows.items() if flow.drift is not None}

    def expect(self, flow: str, partitions: Iterable[tuple[str, int]]) -> None:
        """Replace the partitions that a flow is to copy. It has caught up only after progress of each of them."""
        all_wanted = frozenset(partitions)
        wanted = frozenset(key for key in all_wanted if self._counts(flow, key[0]))
        with self._lock:
            state = self._flows[flow]
            counted = all_wanted | state.wanted
            state.expected, state.wanted, state.totals = wanted, all_wanted, _Totals()
            if all_wanted:
                if state.was_released:
                    rows = state.partitions.items()
                    state.partitions = {key: replace(row, end_offset=-1, is_released=False) for key, row in rows}
                    state.was_released = False
                # A topic that is no longer mirrored is no longer shown. Its counters remain until the next plan,
                # for the last report of its task.
                state.partitions = {key: each for key, each in state.partitions.items() if key in all_wanted}
                state.rates = {key: each for key, each in state.rates.items() if key in all_wanted}
                state.counters = {key: each for key, each in state.counters.items() if key in counted}
                state.moving &= all_wanted
                state.order = []
            for key in wanted | state.partitions.keys():
                if self._counts(flow, key[0]):
                    state.totals.add(state.partitions.get(key), expected=key in wanted)

    def release(self, flow: str, *, is_taken: bool = False) -> None:
        """Record that a flow copies nothing, so that its lag and ages are unknown until it is to copy partitions again.

        Args:
            flow: Name of the flow.
            is_taken: Whether another process mirrors it. The progress of this process is then no longer shown.
        """
        with self._lock:
            state = self._flows[flow]
            state.expected, state.wanted, state.totals, state.was_released = None, frozenset(), _Totals(), True
            if is_taken:
                state.partitions, state.rates, state.order = {}, {}, []
                state.moving.clear()
            state.partitions = {key: replace(row, **_RELEASED) for key, row in state.partitions.items()}
            for key, row in state.partitions.items():
                if self._counts(flow, key[0]):
                    state.totals.add(row, expected=False)

    def topics(self, flow: str) -> frozenset[str] | None:
        """Return the source topics that a flow mirrors, without those that are stopped. None: not known yet."""
        with self._lock:
            state = self._flows[flow]
            topics = frozenset(topic for topic, _ in state.wanted | state.partitions.keys())
            return None if state.expected is None and not topics else topics

    def partitions(self, flow: str) -> tuple[PartitionStatus, ...]:
        """Return the current status of the partitions of a flow that tasks have reported."""
        with self._lock:
            return tuple(self._flows[flow].partitions.values())

    def topics_that_wait(self, flow: str, reason: str) -> frozenset[str]:
        """Return the source topics that have a partition with a reason."""
        with self._lock:
            return frozenset(topic for (topic, _), row in self._flows[flow].partitions.items() if row.reason == reason)

    def update(self, session: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add the progress reported by a task.

        Args:
            session: Lease session of the copier that counted ``records`` and ``bytes``.
            rows: Progress of partitions, as by ``PartitionProgress.to_json``.
        """
        with self._lock:
            for row in rows:
                flow = self._flows.get(row["flow"])
                if flow is not None:
                    self._update_one(flow, session, PartitionProgress.from_json(row))

    def _update_one(self, flow: _Flow, session: str, new: PartitionProgress) -> None:
        key = (new.topic, new.partition)
        is_unwanted = bool(flow.wanted) and key not in flow.wanted
        if is_unwanted and key not in flow.counters:
            return
        counters = flow.counters.setdefault(key, {})
        is_first = next(reversed(counters), None) != session
        records, size = counters.pop(session, (0, 0))
        if self._counts(new.flow, new.topic):
            flow.records += new.records - records
            flow.bytes += new.bytes - size
            flow.rate.at(self._clock(), flow.records, flow.bytes)
        counters[session] = (new.records, new.bytes)
        if len(counters) > _KEPT_SESSIONS:
            del counters[next(iter(counters))]
        if is_unwanted:
            return  # last report of a task that ends
        previous = flow.partitions.get(key)
        if new.state is CopyState.STOPPED and (previous is None or previous.state is not CopyState.STOPPED):
            # Spark keeps the logs of tasks elsewhere, so the driver logs stopped partitions too.
            logger.error("%s: %s-%d stopped: %s", new.flow, new.topic, new.partition, new.reason)
        if new.records > records:
            flow.progressed_at = time.time()
        if previous is not None and self._keeps_end(new, is_first=is_first):
            new = replace(new, end_offset=max(new.end_offset, previous.end_offset))
        status = self._status(flow, new, previous, records=new.records - records, size=new.bytes - size)
        if self._counts(new.flow, new.topic):
            expected = flow.expected is not None and key in flow.expected
            flow.totals.add(previous, expected=expected, sign=-1)
            flow.totals.add(status, expected=expected)
        flow.partitions[key] = status

    def _keeps_end(self, new: PartitionProgress, *, is_first: bool) -> bool:
        """Return whether a greater end that was reported before remains. Otherwise the source log has become shorter.

        A flow with ``--until-caught-up`` must not end because of a smaller end that is out of date:

        - A report of a task that was replaced can arrive after reports of the next one.
        - A new leader can have a smaller high watermark for a moment, even one below ``next_offset``.

        Args:
            new: Reported progress.
            is_first: Whether another session reported the partition before. Sessions repeat their reports.
        """
        # Equal offsets: log ends of both sides are compared, so that the end of a topic that is gone must not remain,
        # nor one that the present task has not read yet.
        if new.flow in self._preserving:
            return False
        return new.end_offset < 0 or is_first or new.end_offset < new.next_offset

    def _status(
        self, flow: _Flow, new: PartitionProgress, previous: PartitionStatus | None, *, records: int, size: int
    ) -> PartitionStatus:
        """Return the status of a partition after a report.

        Args:
            flow: Flow of the partition.
            new: Reported progress.
            previous: Status before the report; None for the first one.
            records: Number of records copied since the last report of the same task.
            size: Their bytes.
        """
        now = self._clock()
        reported = {each.name: getattr(new, each.name) for each in fields(PartitionProgress)}
        if previous is not None:
            records, size = records + previous.records, size + previous.bytes
            reported["last_timestamp"] = max(new.last_timestamp, previous.last_timestamp)
            if new.next_offset < 0:  # a task that has only received the partition
                reported["next_offset"] = previous.next_offset
        rate = flow.rates.setdefault((new.topic, new.partition), _Rate(now))
        rate.reported_at = now
        records_per_s, bytes_per_s = rate.at(now, records, size)
        (flow.moving.add if records_per_s else flow.moving.discard)((new.topic, new.partition))
        reported |= {"records": records, "bytes": size}
        if flow.was_released:
            reported |= _RELEASED
        return PartitionStatus(**reported, records_per_s=records_per_s, bytes_per_s=bytes_per_s)

    def snapshot(self) -> tuple[FlowProgress, ...]:
        """Return the current progress of all flows."""
        now = self._clock()
        with self._lock:
            return tuple(self._progress(name, flow, now) for name, flow in self._flows.items())

    def _progress(self, name: str, flow: _Flow, now: float) -> FlowProgress:
        records_per_s, bytes_per_s = flow.rate.at(now, flow.records, flow.bytes)
        for key in [key for key in flow.moving if now - flow.rates[key].reported_at > 2 * RATE_WINDOW_S]:
            # A partition without reports copies nothing, so its latest rate is no longer true.
            flow.moving.discard(key)
            if key in flow.partitions:
                flow.partitions[key] = replace(flow.partitions[key], records_per_s=0.0, bytes_per_s=0.0)
        totals = flow.totals
        lag = None if flow.expected is None or totals.unknown else totals.lag
        if len(flow.order) < len(flow.partitions):
            flow.order = sorted(flow.partitions)
        state, reason = flow.state, flow.reason
        if state is FlowState.RUNNING and flow.expected and totals.waiting == len(flow.expected):
            # The control loop sends requests rarely, so the tasks notice first that a cluster is unavailable.
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
            mb_per_s=bytes_per_s / _MEGABYTE,
            lag=lag,
            eta_s=None if lag is None or (lag and not records_per_s) else lag / records_per_s if lag else 0.0,
            partitions=tuple(map(flow.partitions.__getitem__, flow.order)),
            rejected=flow.rejected,
            progressed_at=flow.progressed_at,
            is_done=flow.expected is not None and not totals.unfinished and not _is_blocked(state, reason),
            is_blocked=_is_blocked(state, reason)
            or (flow.expected is not None and 0 < totals.unfinished == totals.blocked),
            topic_states=flow.topic_states,
            preserves_offsets=name in self._preserving,
        )


def _is_blocked(state: FlowState, reason: str) -> bool:
    """Return whether only an operator can let a flow in this state continue."""
    is_held = state is FlowState.PAUSED or (state is FlowState.STOPPED and bool(reason))
    return is_held or (state is FlowState.WAITING and needs_person(reason))


def needs_person(reason: str) -> bool:
    """Return whether only an operator can resolve a reason, such as a missing ACL."""
    return _MENDED_BY_PEOPLE.search(reason) is not None


def _is_done(partition: PartitionStatus | None) -> bool:
    return partition is not None and (partition.lag == 0 or partition.state in (CopyState.STOPPED, CopyState.PROMOTED))


def describe(progress: FlowProgress) -> str:
    """Return a flow's progress as one line of plain text."""
    state = progress.state.value + (f" ({progress.reason})" if progress.reason else "")
    share = f"{progress.copied:,}/{progress.total:,}"
    lag = "unknown" if progress.lag is None else f"{progress.lag:,}"
    eta = "" if not progress.eta_s else f", done in {progress.eta_s:.0f} s"
    stopped = f", {_partitions(len(progress.stopped))} stopped" if progress.stopped else ""
    waiting = _waiting(progress) if progress.state is FlowState.RUNNING else ""
    rejected = "".join(f", topic {name} rejected: {reason}" for name, reason in progress.rejected)
    rejected += "".join(f", topic {name} {state}" for name, state in progress.topic_states)
    return (
        f"{progress.flow} {state}: {share} records, {progress.records_per_s:,.0f} records/s, "
        f"{progress.mb_per_s:.1f} MB/s, lag {lag}{eta}{stopped}{waiting}{rejected}"
    )


def _waiting(progress: FlowProgress) -> str:
    """Return a note with the number of waiting partitions and the reason of the first one. Its topic may be gone."""
    waiting = [partition for partition in progress.partitions if partition.is_waiting]
    if not waiting:
        return ""
    first = waiting[0]
    verb = "waits" if len(waiting) == 1 else "wait"
    return f", {_partitions(len(waiting))} {verb}: {first.topic}-{first.partition}: {first.reason}"


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count:,} partitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredGroupOffset:
    """Status of a group's offset of one partition."""

    group: str
    topic: str
    """Topic on the source; ``partition`` is its partition."""
    partition: int
    remote_topic: str
    source_offset: int
    """Offset that the group committed on the source."""
    target_offset: int | None
    """Target offset of its newest checkpoint. None: it has no checkpoint."""
    again_at_most: int
    """Most records that a consumer reads again on the target. 0: the translation is exact."""
    reason: str = ""
    """Reason why there is no newer checkpoint. Empty: the checkpoint is up to date."""
    committed: int | None = None
    """Last known committed offset of the group on the target. None: it has none, or it was not requested yet."""
    sync_reason: str = ""
    """Reason why ``target_offset`` was not committed on the target. Empty: it was, or it is not requested."""
    checkpoint_latency_ms: Ages | None = None
    """Recent times in milliseconds from the OffsetFetch of the group to the acknowledgement of its checkpoint. None: no
    checkpoint was written.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowGroups:
    """Status of the groups of one flow."""

    offsets: tuple[MirroredGroupOffset, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    """Source groups without any checkpoint, each with the reason."""
    problem: str = ""
    """Reason why offsets cannot be translated now. Empty: they can."""
    damaged_records: int = 0
    """Offset syncs and checkpoints that could not be read and are ignored, since the mirror started."""
    damage: tuple[str, ...] = ()
    """The latest of them in each topic, and what is wrong with it."""


class GroupStatus:
    """Status of the groups of all flows. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flows: dict[str, FlowGroups] = {}

    def set(self, flow: str, groups: FlowGroups) -> None:
        """Replace the status of a flow's groups."""
        with self._lock:
            self._flows[flow] = groups

    def snapshot(self) -> Mapping[str, FlowGroups]:
        """Return the status of the groups by flow. Flows that do not translate group offsets are missing."""
        with self._lock:
            return dict(self._flows)
