"""Migration of source offsets from the topic of Connect's worker into the flow's own offsets topic (KIP-618).

With ``A->B.offsets.storage.topic``, MirrorMaker 2 keeps the source offsets of a flow in a topic of that flow, and then
repeats them in the worker's topic. Kafka's ``ConnectorOffsetBackingStore`` specifies that the flow's topic has
precedence and that the worker's topic supplies offsets missing there. Kafka 4.1 does not do that: a missing offset in
the flow's topic hides the one in the worker's topic.

A flow that gets its own topic later would therefore mirror everything again. klamm instead copies the missing source
offsets, the states that an operator requested, and promotions into the flow's topic before it copies any record.

An open transaction may hide records in either topic. A decision without them could be wrong, so the migration fails
then, and the control loop retries it.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from klamm.clock import wall_clock_ms
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.errors import ConnectionLostError
from klamm.kafka_client.internal_topic import read_newest, write_records
from klamm.lazy_dataclass import dataclass
from klamm.mirror.records import requested_states, source_offsets
from klamm.mirror.records.source_offsets import SourcePartition
from klamm.protocol.partitioner import partition_for_key
from klamm.protocol.records import Record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from klamm.mirror.settings.flow import FlowSettings
    from klamm.protocol.types import PartitionTuple

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 15.0
_ATTEMPTS: Final = 40
"""Number of reads without progress, 20 per second, after which an open transaction is assumed."""
_POOL_BYTES: Final = 4 * 1024 * 1024


class _Key(NamedTuple):
    """Subject of a record in an offsets topic: a source offset, a source topic id, or a fact about the flow."""

    kind: Literal["source offset", "topic id", "shard plan", "cluster id", "requested states", "promotion"]
    topic: str = ""
    """Source topic. Of requested states: name of the flow."""
    partition: int = -1


@dataclass(slots=True)
class _Stored:
    """Content of an offsets topic for one source cluster."""

    newest: dict[_Key, Record] = field(default_factory=dict)
    """Newest record per key. Tombstones are included: they mean that an entry was deleted."""
    hidden: str = ""
    """A partition in which an open transaction hides later records. Empty: everything was read."""

    def offset(self, key: _Key) -> int | None:
        """Return the last mirrored offset, or None if there is no source offset for this key."""
        record = self.newest.get(key)
        return None if record is None else source_offsets.parse_value(record.value)


def copy_worker_offsets(flow: FlowSettings) -> None:
    """Copy source offsets, requested states and promotions that only the worker's topic has into the flow's topic.

    Does nothing for a flow that writes to the worker's topic.

    Call this before any record is copied. Repeated calls are safe, because existing source offsets are kept.

    Raises:
        ConnectionLostError, KafkaApiError, ProtocolError: The source offsets cannot be read or written now.
    """
    if flow.worker_offsets_topic is None:
        return
    with _target(flow) as cluster:
        _carry(flow, cluster, flow.worker_offsets_topic)


def mirrored_offsets(flow: FlowSettings) -> dict[PartitionTuple, int]:
    """Return the last mirrored offset by source topic and partition, as a flow that starts now would find it.

    Nothing is written. Source offsets missing in the flow's topic are read from the worker's topic.

    Raises:
        ConnectionLostError, KafkaApiError, ProtocolError: The source offsets cannot be read now.
    """
    with _target(flow) as cluster:
        topics = [topic for topic in (flow.worker_offsets_topic, flow.source_offsets_topic) if topic is not None]
        cluster.refresh(topics)
        there = [topic for topic in topics if topic in cluster.topics]
        if not there:
            raise ConnectionLostError(f"{flow.source_offsets_topic} does not exist yet on the target")
        merged = _Stored()
        for topic in there:  # the flow's topic is last, because it has precedence
            stored = _read(cluster, topic, flow, attempts=_ATTEMPTS)
            if stored.hidden:
                raise ConnectionLostError(f"An open transaction hides source offsets in {stored.hidden}")
            merged.newest |= stored.newest
    offsets = {key: merged.offset(key) for key in merged.newest if key.kind == "source offset"}
    return {(key.topic, key.partition): offset for key, offset in offsets.items() if offset is not None}


def mirrored_topics(flow: FlowSettings) -> frozenset[str]:
    """Return the source topics that the flow has source offsets for.

    Raises:
        ConnectionLostError, KafkaApiError, ProtocolError: The source offsets cannot be read now.
    """
    return frozenset(topic for topic, _ in mirrored_offsets(flow))


def first_cluster(flow: FlowSettings, cluster_id: str, *, stores: bool = True) -> str:
    """Return the cluster id that the source had at the first call for the flow, also if that was another process.

    Args:
        flow: Settings of the flow.
        cluster_id: Cluster id of the source now. Empty: it reports none.
        stores: Whether to store it, if there was no call before.

    Raises:
        ConnectionLostError, KafkaApiError, ProtocolError: It cannot be read or stored now.
    """
    topic, key = flow.source_offsets_topic, source_offsets.cluster_id_key(flow.source_alias)
    with _target(flow) as cluster:
        cluster.refresh([topic])
        if topic not in cluster.topics:
            raise ConnectionLostError(f"{topic} does not exist yet on the target")
        stored = _read(cluster, topic, flow, attempts=_ATTEMPTS)
        if stored.hidden:
            raise ConnectionLostError(f"An open transaction hides source offsets in {stored.hidden}")
        record = stored.newest.get(_Key("cluster id"))
        first = None if record is None else source_offsets.parse_cluster_id(record.value)
        if first is None and stores and cluster_id:
            value = source_offsets.cluster_id_value(cluster_id)
            _write(cluster, topic, [Record(key=key, value=value, timestamp=wall_clock_ms())])
    return first or cluster_id


def forget_topics(flow: FlowSettings, topics: Collection[str]) -> None:
    """Delete the source offsets, then the ids of topics, so that topics with these names begin at their first record.

    Raises:
        ConnectionLostError, KafkaApiError, ProtocolError: They cannot be deleted now. Repeating the call is safe.
    """
    with _target(flow) as cluster:
        for name in (flow.source_offsets_topic, flow.worker_offsets_topic):
            if name is None:
                continue
            cluster.refresh([name])
            if name in cluster.topics:
                stored = _read(cluster, name, flow, attempts=_ATTEMPTS)
                if stored.hidden:
                    raise ConnectionLostError(f"An open transaction hides source offsets in {stored.hidden}")
                # The topic ids last: an offset without its id counts for any later topic with the same name.
                for kind in ("source offset", "topic id"):
                    tombstones = [
                        Record(key=record.key, value=None, timestamp=wall_clock_ms())
                        for key, record in stored.newest.items()
                        if key.kind == kind and key.topic in topics and record.value is not None
                    ]
                    _write(cluster, name, tombstones)


@contextlib.contextmanager
def _target(flow: FlowSettings) -> Iterator[Cluster]:
    """Connect to the target for the duration of the context."""
    settings = ConnectionSettings.of(
        flow.target.bootstrap_servers, flow.clients["target.producer"], f"klamm-mirror-{flow.name}"
    )
    with contextlib.closing(Cluster(settings, BufferPool(max_free_bytes=_POOL_BYTES))) as cluster:
        yield cluster


def _carry(flow: FlowSettings, cluster: Cluster, workers_topic: str) -> None:
    """Copy the source offsets, and klamm's own records of the flow, that only the worker's topic has."""
    cluster.refresh([workers_topic, flow.source_offsets_topic])
    if workers_topic not in cluster.topics:
        return
    workers = _read(cluster, workers_topic, flow)
    if not workers.newest and not workers.hidden:
        return
    if flow.source_offsets_topic not in cluster.topics:
        raise ConnectionLostError(f"{flow.source_offsets_topic} does not exist yet on the target")
    own = _read(cluster, flow.source_offsets_topic, flow)
    carried = {key for key in workers.newest.keys() - own.newest.keys() if workers.offset(key) is not None}
    beside = list(_beside(flow, carried, workers, own))
    if hidden := workers.hidden or (own.hidden if carried or beside else ""):
        raise ConnectionLostError(f"An open transaction hides source offsets in {hidden}")
    _warn_of_newer(flow, workers, own)
    # Write the source offsets last: they mark the copy as complete. After a crash in between, the next run writes the
    # topic ids again.
    _write(cluster, flow.source_offsets_topic, [workers.newest[key] for key in beside])
    _write(cluster, flow.source_offsets_topic, [workers.newest[key] for key in sorted(carried)])
    if carried:
        logger.info(
            "%s: copied %d source offsets from %s to %s, which lacked them",
            flow.name, len(carried), workers_topic, flow.source_offsets_topic,
        )  # fmt: skip


def _beside(flow: FlowSettings, carried: set[_Key], workers: _Stored, own: _Stored) -> Iterator[_Key]:
    """Yield klamm's own records that are copied, if klamm wrote any: of the source offsets, and of the flow."""
    for key in sorted(carried):
        topic_id = key._replace(kind="topic id")
        if topic_id in workers.newest:
            yield topic_id
    promotions = (key for key in sorted(workers.newest) if key.kind == "promotion")
    for fact in (_Key("shard plan"), _Key("cluster id"), _Key("requested states", flow.name), *promotions):
        if fact in workers.newest and fact not in own.newest:
            yield fact


def _warn_of_newer(flow: FlowSettings, workers: _Stored, own: _Stored) -> None:
    """Log a warning if the worker's topic is ahead, because a mirror ran without the flow's topic in between."""
    ahead = sorted(
        key
        for key in workers.newest.keys() & own.newest.keys()
        if (there := workers.offset(key)) is not None and (here := own.offset(key)) is not None and there > here
    )
    if ahead:
        logger.warning(
            "%s: %d source offsets in %s are ahead of those in %s, for example that of %s-%d. The latter are used, as "
            "in MirrorMaker, so records are mirrored again",
            flow.name, len(ahead), flow.worker_offsets_topic, flow.source_offsets_topic, ahead[0].topic,
            ahead[0].partition,
        )  # fmt: skip


def _read(cluster: Cluster, topic: str, flow: FlowSettings, *, attempts: int = 1) -> _Stored:
    """Read the committed records of a topic, up to its end or to an open transaction."""
    newest, hidden = read_newest(cluster, topic, attempts=attempts)
    stored = _Stored(hidden=hidden)
    for record in newest.values():
        if (key := _key_of(record, flow)) is not None:
            stored.newest[key] = record
    return stored


def _key_of(record: Record, settings: FlowSettings) -> _Key | None:
    source_alias = settings.source_alias
    match source_offsets.parse_key(record.key, settings.connector):
        case SourcePartition(cluster, topic, partition):
            return _Key("source offset", topic, partition) if cluster == source_alias else None
    match source_offsets.parse_own_key(record.key):
        case SourcePartition(cluster, topic, partition) if cluster == source_alias:
            return _Key("topic id", topic, partition)
        case str(cluster) if cluster == source_alias:
            return _Key("shard plan")
    if (flow := requested_states.flow_of(record.key, source_alias)) is not None:
        return _Key("requested states", flow)
    if (promoted := source_offsets.parse_promotion_key(record.key, source_alias)) is not None:
        return _Key("promotion", promoted)
    is_cluster_id = record.key is not None and bytes(record.key) == source_offsets.cluster_id_key(source_alias)
    return _Key("cluster id") if is_cluster_id else None


def _write(cluster: Cluster, topic: str, records: Sequence[Record]) -> None:
    """Write records unchanged, each to the partition that Kafka's default partitioner selects for its key."""
    count = len(cluster.topics[topic].partitions)
    by_partition: dict[int, list[Record]] = {}
    for record in records:
        by_partition.setdefault(partition_for_key(bytes(record.key or b""), count), []).append(record)
    write_records(cluster, topic, by_partition, timeout_s=_TIMEOUT_S)
