"""Positions that stand in the topic of Connect's worker alone, brought into the topic that a flow has of its own.

With ``A->B.offsets.storage.topic`` (KIP-618) MirrorMaker 2 keeps the positions of a flow in a topic of the flow's own,
and repeats them in the worker's topic afterwards. The flow's own topic counts, and the worker's for what the other
lacks: so says Kafka's ``ConnectorOffsetBackingStore``, although what it lacks is lost in Kafka 4.1, where a position
that is missing hides the other one.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from klamm.client.buffers import BufferPool
from klamm.client.cluster import Cluster
from klamm.client.connection import ApiMissingError, ConnectionLostError
from klamm.client.partitioner import partition_for_key
from klamm.client.transport import ConnectionSettings
from klamm.mirror import source_offsets
from klamm.mirror.model import ClusterAwayError
from klamm.mirror.own_records import read_newest, write_records
from klamm.mirror.source_offsets import SourcePartition
from klamm.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from klamm.mirror.settings.flow import FlowSettings
    from klamm.protocol.records import Record
    from klamm.protocol.types import PartitionTuple

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 15.0
_ATTEMPTS: Final = 40
"""How often a partition is asked where a mirror may be writing; about two seconds."""
_POOL_BYTES: Final = 4 * 1024 * 1024


class _Key(NamedTuple):
    """What a record is about."""

    kind: Literal["position", "topic id", "shard plan"]
    topic: str = ""
    partition: int = -1


@dataclass(slots=True)
class _Stored:
    """What a topic tells of one source."""

    newest: dict[_Key, Record] = field(default_factory=dict)
    """Also records without a value: they say that there is nothing any more."""
    hidden: str = ""
    """A partition where an open transaction hides what follows; empty: everything was read."""

    def offset(self, key: _Key) -> int | None:
        """Return the last mirrored offset; None: there is no position."""
        record = self.newest.get(key)
        return None if record is None else source_offsets.parse_value(record.value)


def carry_positions(flow: FlowSettings) -> None:
    """Write the positions that only the worker's topic has into the flow's own; does nothing without such a topic.

    To be called before anything is copied. May be called again: what is there stays.

    Raises:
        ClusterAwayError: they can not be read or written now.
    """
    if flow.worker_positions_topic is None:
        return
    with _target(flow) as cluster:
        _carry(flow, cluster, flow.worker_positions_topic)


def mirrored_offsets(flow: FlowSettings) -> dict[PartitionTuple, int]:
    """Return the offsets mirrored last by source topic and partition, as a flow finds them that begins now.

    Writes nothing: what a flow's own topic lacks is read where it would be carried from.

    Raises:
        ClusterAwayError: they can not be read now.
    """
    with _target(flow) as cluster:
        topics = [topic for topic in (flow.worker_positions_topic, flow.positions_topic) if topic is not None]
        cluster.refresh(topics)
        there = [topic for topic in topics if topic in cluster.topics]
        if not there:
            raise ConnectionLostError(f"{flow.positions_topic} does not exist yet on the target")
        found = _Stored()
        for topic in there:  # the flow's own last: it counts
            stored = _read(cluster, topic, flow.source.alias, attempts=_ATTEMPTS)
            if stored.hidden:
                raise ConnectionLostError(f"An open transaction hides positions in {stored.hidden}")
            found.newest |= stored.newest
    offsets = {key: found.offset(key) for key in found.newest if key.kind == "position"}
    return {(key.topic, key.partition): offset for key, offset in offsets.items() if offset is not None}


@contextlib.contextmanager
def _target(flow: FlowSettings) -> Iterator[Cluster]:
    """Connect to the target, and say of every failure that it is away."""
    settings = ConnectionSettings.of(
        flow.target.bootstrap_servers, flow.clients["target.producer"], f"klamm-mirror-{flow.name}"
    )
    with contextlib.closing(Cluster(settings, BufferPool(max_free_bytes=_POOL_BYTES))) as cluster:
        try:
            yield cluster
        except (ApiMissingError, ConnectionLostError, ProtocolError) as error:
            raise ClusterAwayError(str(error)) from error


def _carry(flow: FlowSettings, cluster: Cluster, workers_topic: str) -> None:
    cluster.refresh([workers_topic, flow.positions_topic])
    if workers_topic not in cluster.topics:
        return
    workers = _read(cluster, workers_topic, flow.source.alias)
    if not workers.newest and not workers.hidden:
        return
    if flow.positions_topic not in cluster.topics:
        raise ConnectionLostError(f"{flow.positions_topic} does not exist yet on the target")
    own = _read(cluster, flow.positions_topic, flow.source.alias)
    carried = {key for key in workers.newest.keys() - own.newest.keys() if workers.offset(key) is not None}
    if hidden := workers.hidden or (own.hidden if carried else ""):
        raise ConnectionLostError(f"An open transaction hides positions in {hidden}")
    _warn_of_newer(flow, workers, own)
    # Last, as their presence says that all is done; an id without its position is written once more.
    _write(cluster, flow.positions_topic, [workers.newest[key] for key in _beside(carried, workers, own)])
    _write(cluster, flow.positions_topic, [workers.newest[key] for key in sorted(carried)])
    if carried:
        logger.info(
            "%s: %d positions of %s that %s lacked were written to it",
            flow.name, len(carried), workers_topic, flow.positions_topic,
        )  # fmt: skip


def _beside(carried: set[_Key], workers: _Stored, own: _Stored) -> Iterator[_Key]:
    """Yield what klamm has to remember beside positions, if it wrote to the worker's topic before."""
    for position in sorted(carried):
        topic_id = position._replace(kind="topic id")
        if topic_id in workers.newest:
            yield topic_id
    plan = _Key("shard plan")
    if plan in workers.newest and plan not in own.newest:
        yield plan


def _warn_of_newer(flow: FlowSettings, workers: _Stored, own: _Stored) -> None:
    """Say where the worker's topic is ahead: somebody mirrored without the flow's own topic."""
    ahead = sorted(
        key
        for key in workers.newest.keys() & own.newest.keys()
        if (there := workers.offset(key)) is not None and (here := own.offset(key)) is not None and there > here
    )
    if ahead:
        logger.warning(
            "%s: %d positions of %s are ahead of those in %s, such as that of %s-%d; the latter count, as in "
            "MirrorMaker, and records are mirrored again",
            flow.name, len(ahead), flow.worker_positions_topic, flow.positions_topic, ahead[0].topic,
            ahead[0].partition,
        )  # fmt: skip


def _read(cluster: Cluster, topic: str, source_alias: str, *, attempts: int = 1) -> _Stored:
    """Read what is committed, to the end of a topic or to an open transaction."""
    newest, hidden = read_newest(cluster, topic, attempts=attempts)
    stored = _Stored(hidden=hidden)
    for record in newest.values():
        if (key := _key_of(record, source_alias)) is not None:
            stored.newest[key] = record
    return stored


def _key_of(record: Record, source_alias: str) -> _Key | None:
    match source_offsets.parse_key(record.key):
        case SourcePartition(cluster, topic, partition):
            return _Key("position", topic, partition) if cluster == source_alias else None
    match source_offsets.parse_own_key(record.key):
        case SourcePartition(cluster, topic, partition) if cluster == source_alias:
            return _Key("topic id", topic, partition)
        case str(cluster) if cluster == source_alias:
            return _Key("shard plan")
        case _:
            return None


def _write(cluster: Cluster, topic: str, records: Sequence[Record]) -> None:
    """Write records as they are, where a producer puts their keys."""
    count = len(cluster.topics[topic].partitions)
    by_partition: dict[int, list[Record]] = {}
    for record in records:
        by_partition.setdefault(partition_for_key(bytes(record.key or b""), count), []).append(record)
    write_records(cluster, topic, by_partition, timeout_s=_TIMEOUT_S)
