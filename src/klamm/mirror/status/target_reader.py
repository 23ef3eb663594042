"""Reader of a flow's status from its target cluster, plus the log end offsets of the source.

The target holds everything needed to report on a flow, even one that MirrorMaker 2 runs: source offsets, heartbeats,
checkpoints and offset syncs. Only the lag needs the source.
"""

from __future__ import annotations

import contextlib
import re
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data import cluster as clusters
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_text
from klamm.lazy_dataclass import dataclass
from klamm.mirror.cluster_admin import admin_client, partition_counts
from klamm.mirror.naming import HEARTBEATS_TOPIC
from klamm.mirror.records import requested_states, source_offsets
from klamm.mirror.records.formats import Checkpoint, FormatError, Heartbeat, OffsetSync
from klamm.mirror.records.requested_states import RequestedStates
from klamm.mirror.settings.definitions import SyncsLocation
from klamm.mirror.status.report import ReportedSourceOffset, TargetState, flow_status
from klamm.mirror.status.tail_reader import Tail, newest_timestamps, read_tail
from klamm.mirror.topics.plans import selected_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.status.report import FlowStatus
    from klamm.protocol.records import Record
    from klamm.protocol.types import PartitionTuple

_ADMIN_TIMEOUT_MS: Final = 10_000
_BUDGET_S: Final = 0.4
"""Time for reading each internal topic backwards from its end, in seconds."""
_SOURCE_PATIENCE_S: Final = 3.0
_POOL_BYTES: Final = 4 * 1024 * 1024
_SOURCE_OFFSETS: Final = re.compile(r"mm2-offsets\.(?P<alias>.+)\.internal")
_CHECKPOINTS: Final = re.compile(r"(?P<alias>.+)\.checkpoints\.internal")


class Source(NamedTuple):
    """Answer of the source cluster."""

    ends: Mapping[PartitionTuple, int]
    selected: frozenset[str]
    """Topics that the flow mirrors. Empty if the topic selection is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowQuery:
    """Flow to report on, and what is known about it."""

    flow: FlowSettings
    ask_source: bool
    """Whether to ask the source, because its address is known."""
    knows_selection: bool = True
    """Whether a properties file specifies the mirrored topics."""
    knows_target_alias: bool = True
    timeout_ms: int | None = None
    """Limit of each call to the target; None means 10 s, or the limit of the flow's client if that is shorter."""


def read_status(query: FlowQuery) -> FlowStatus:
    """Read the status of one flow. Nothing is written. A source that does not answer delays the result by 3 s at most.

    Raises:
        ConnectionError, TimeoutError, ProtocolError: The target is unavailable.
        KafkaApiError: The target rejects a required request.
        SettingsError: The flow has a client property that klamm does not support.
    """
    flow = query.flow
    # The source is asked at the same time as the target, so that the delays of both do not add up.
    source = _SourceRequest(query) if query.ask_source else None
    cluster = _connect(flow, "target", timeout_ms=query.timeout_ms)
    try:
        topics = _topics(cluster, flow, "target", timeout_ms=query.timeout_ms or _ADMIN_TIMEOUT_MS)
        state = _TargetReader(query, cluster, topics).read()
    finally:
        cluster.close()
    selected: frozenset[str] = frozenset()
    if source is None:
        state.unknown.append(
            f"lag: unknown without the address of cluster {flow.source.alias}, as are topics that were never mirrored"
        )
    elif isinstance(answer := source.answer(), Source):
        state.source_ends, selected = answer
    else:
        state.unknown.append(f"lag: cluster {flow.source.alias} cannot be reached: {answer}")
    return flow_status(flow, state, selected, any_target=not query.knows_target_alias)


def list_topics(flow: FlowSettings, *, timeout_ms: int | None = None) -> Mapping[str, int]:
    """Return the partition counts of all topics of a flow's target, within ``FlowQuery.timeout_ms``.

    Raises:
        ConnectionError, TimeoutError, ProtocolError: The target is unavailable.
        SettingsError: The flow has a client property that klamm does not support.
    """
    cluster = _connect(flow, "target", timeout_ms=timeout_ms)
    try:
        return _topics(cluster, flow, "target", timeout_ms=timeout_ms or _ADMIN_TIMEOUT_MS)
    finally:
        cluster.close()


def _connect(flow: FlowSettings, side: Literal["source", "target"], *, timeout_ms: int | None = None) -> Cluster:
    servers = (flow.source if side == "source" else flow.target).bootstrap_servers
    settings = ConnectionSettings.of(servers, flow.clients[f"{side}.consumer"], "klamm-status")
    if timeout_ms is not None:
        limit_s = timeout_ms / 1000
        settings = replace(
            settings,
            connect_timeout_s=min(settings.connect_timeout_s, limit_s),
            request_timeout_s=min(settings.request_timeout_s, limit_s),
        )
    return Cluster(settings, BufferPool(max_free_bytes=_POOL_BYTES))


def _topics(
    cluster: Cluster, flow: FlowSettings, side: Literal["source", "target"], *, timeout_ms: int
) -> Mapping[str, int]:
    cluster.refresh([])  # fails fast: an admin client would retry an unreachable cluster
    with admin_client(flow, side, timeout_ms=timeout_ms) as admin:
        return partition_counts(admin)


def source_aliases(topics: Iterable[str]) -> list[str]:
    """Return the source aliases contained in the names of a mirror's internal topics."""
    matches = (pattern.fullmatch(topic) for topic in topics for pattern in (_SOURCE_OFFSETS, _CHECKPOINTS))
    return sorted({match["alias"] for match in matches if match is not None})


class _TargetReader:
    """Collector of a flow's status on the target. Each part fails separately: a missing ACL hides one part only."""

    def __init__(self, query: FlowQuery, cluster: Cluster, topics: Mapping[str, int]) -> None:
        self._query = query
        self._flow = query.flow
        self._cluster = cluster
        self._state = TargetState(topics=dict(topics))

    def read(self) -> TargetState:
        """Read all parts and return the state of the target."""
        flow, state = self._flow, self._state
        self._part("source offsets", self._read_source_offsets)
        self._part("heartbeats", self._heartbeats)
        self._part("groups", self._checkpoints)
        self._part("offset syncs", self._syncs)
        partitions = [
            (remote, number)
            for remote in {*state.remote_topics(flow).values()}
            for number in range(state.topics.get(remote, 0))
        ]
        self._part("ends of the remote topics", lambda: self._ends(partitions))
        self._part("age of the newest record", self._newest_records)
        return state

    def _part(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except CLUSTER_ERRORS as error:
            self._state.unknown.append(f"{name}: {error_text(error)}")

    def _tail(
        self, what: str, topic: str, enough: Callable[[Mapping[bytes, Record]], bool] = lambda _: False
    ) -> Tail | None:
        if topic not in self._state.topics:
            return None
        tail = read_tail(self._cluster, topic, budget_s=_BUDGET_S, enough=enough)
        if tail is not None and not tail.is_complete:
            self._state.unknown.append(f"{what}: {topic} is too long to read it all; only its latest records were read")
        return tail

    def _read_source_offsets(self) -> None:
        # The flow's own topic has precedence over the worker's topic, so it is read last.
        topics = [topic for topic in (self._flow.worker_offsets_topic, self._flow.source_offsets_topic) if topic]
        tails = [tail for topic in topics if (tail := self._tail("source offsets", topic)) is not None]
        if not tails:
            self._state.unknown.append(f"source offsets: {topics[-1]} does not exist or cannot be described")
        for tail in tails:
            self._keep_source_offsets(tail)

    def _keep_source_offsets(self, tail: Tail) -> None:
        alias, connector = self._flow.source_alias, self._flow.connector
        requested: dict[str, RequestedStates] = {}
        for key, record in tail.newest.items():
            where, offset = source_offsets.parse_key(key, connector), source_offsets.parse_value(record.value)
            if where is not None and where.cluster == alias:
                if offset is None:
                    self._state.source_offsets.pop((where.topic, where.partition), None)
                else:
                    self._state.source_offsets[where.topic, where.partition] = ReportedSourceOffset(
                        offset + 1, record.timestamp
                    )
            elif source_offsets.parse_own_key(key) == alias:
                self._state.plan = source_offsets.parse_shard_plan(record.value)
            elif (flow := requested_states.flow_of(key, alias)) is not None:
                requested[flow] = requested_states.parse_value(record.value) or RequestedStates()
        self._keep_requested(requested)

    def _keep_requested(self, requested: Mapping[str, RequestedStates]) -> None:
        if self._query.knows_target_alias:
            self._state.requested = requested.get(self._flow.name, self._state.requested)
        elif len(requested) > 1:
            flows = ", ".join(sorted(requested))
            self._state.unknown.append(f"requested states: {flows} share the offsets topic: name the properties file")
        else:
            self._state.requested = next(iter(requested.values()), self._state.requested)

    def _heartbeats(self) -> None:
        any_target = not self._query.knows_target_alias
        alias = self._flow.source_alias
        sought = Heartbeat(source_alias=alias, target_alias=self._flow.target_alias, timestamp=0).key()
        tail = self._tail("heartbeats", HEARTBEATS_TOPIC, (lambda _: False) if any_target else newest_has(sought))
        for key, record in tail.newest.items() if tail is not None else ():
            with contextlib.suppress(FormatError):
                beat = Heartbeat.parse(key, record.value or b"")
                if beat.source_alias == alias:
                    self._state.heartbeats.append(beat)

    def _checkpoints(self) -> None:
        topic = self._flow.policy.checkpoints_topic(self._flow.source_alias)
        tail = self._tail("groups", topic)
        if tail is None:
            self._state.unknown.append(f"groups: {topic} does not exist or cannot be described: no checkpoints")
            return
        self._state.checkpoints = []
        for key, record in tail.newest.items():
            with contextlib.suppress(FormatError):
                if record.value is not None:
                    self._state.checkpoints.append((Checkpoint.parse(key, record.value), record.timestamp))

    def _syncs(self) -> None:
        flow = self._flow
        topic = flow.policy.offset_syncs_topic(flow.source_alias)
        on_source = flow.syncs_location is SyncsLocation.SOURCE
        # The opposite flow may keep a topic of the same name here, because this cluster is its source.
        may_be_here = not (on_source and self._query.knows_selection)
        tail = self._tail("offset syncs", topic) if may_be_here else None
        syncs = list(self._own_syncs(tail)) if tail is not None else []
        if not syncs:
            where = f": the source keeps them (offset-syncs.topic.location={flow.syncs_location})"
            self._state.unknown.append(f"offset syncs: none on the target{where if on_source else ''}")
            return
        self._state.syncs_topic, self._state.syncs = topic, syncs

    def _own_syncs(self, tail: Tail) -> Iterator[tuple[OffsetSync, int]]:
        """Yield the offset syncs of partitions with a source offset. Those of the opposite flow have none here."""
        for key, record in tail.newest.items():
            with contextlib.suppress(FormatError):
                sync = OffsetSync.parse(key, record.value or b"")
                if (sync.topic, sync.partition) in self._state.source_offsets and sync.topic != HEARTBEATS_TOPIC:
                    yield sync, record.timestamp

    def _ends(self, partitions: Sequence[PartitionTuple]) -> None:
        self._cluster.refresh(sorted({topic for topic, _ in partitions}))
        self._state.target_ends.update(self._cluster.list_offsets(partitions, clusters.LATEST))

    def _newest_records(self) -> None:
        newest, is_complete = newest_timestamps(self._cluster, self._state.target_ends, budget_s=_BUDGET_S)
        self._state.newest_records.update(newest)
        if not is_complete:
            self._state.unknown.append(
                "age of the newest record: unknown for some topics, as there are too many to read"
            )


def newest_has(key: bytes) -> Callable[[Mapping[bytes, Record]], bool]:
    """Return a function that returns whether a key was found."""
    return lambda newest: key in newest


class _SourceRequest:
    """Request to the source that runs in a separate thread, with a time limit."""

    def __init__(self, query: FlowQuery) -> None:
        self._query = query
        self._answer: Source | Exception | None = None
        # A daemon thread, so that a source that drops packets does not keep the command from ending.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def answer(self) -> Source | str:
        """Return the answer of the source, or the reason why there is none."""
        self._thread.join(_SOURCE_PATIENCE_S)
        if self._answer is None:
            return f"no answer within {_SOURCE_PATIENCE_S:g} s"
        return self._answer if isinstance(self._answer, Source) else str(self._answer)

    def _run(self) -> None:
        try:
            self._answer = self._ask()
        except Exception as error:  # noqa: BLE001 - the target's part is shown in any case
            self._answer = error

    def _ask(self) -> Source:
        """Return log end offsets and selected topics of the source."""
        flow = self._query.flow
        cluster = _connect(flow, "source")
        try:
            topics = _topics(cluster, flow, "source", timeout_ms=int(_SOURCE_PATIENCE_S * 1000))
            selected = selected_topics(topics, flow.selection)
            # Topics that the filters exclude are asked as well: they may have been mirrored before they were excluded.
            named = [topic for topic in topics if topic in selected or not flow.policy.is_internal_topic(topic)]
            cluster.refresh(named)
            partitions = [(topic, number) for topic in named for number in range(topics[topic])]
            ends = cluster.list_offsets(partitions, clusters.LATEST)
        finally:
            cluster.close()
        return Source(ends, frozenset(selected) if self._query.knows_selection else frozenset())
