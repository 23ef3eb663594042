"""Reading and writing positions in ``mm2-offsets.<source>.internal`` on the target."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from klamm.client import cluster as clusters
from klamm.client.connection import ConnectionLostError
from klamm.client.partitioner import partition_for_key
from klamm.mirror import source_offsets
from klamm.mirror.own_records import read_newest, write_records
from klamm.mirror.source_offsets import ShardPlan, SourceOffset, SourcePartition
from klamm.protocol.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from klamm.client.buffers import BufferPool
    from klamm.client.transport import ConnectionSettings
    from klamm.mirror.copy.partition import PartitionId
    from klamm.protocol.types import PartitionTuple

Value = TypeVar("Value")

_TIMEOUT_S: Final = 15.0
_NONE: Final[Mapping[PartitionTuple, UUID]] = MappingProxyType({})
_ATTEMPTS: Final = 40
"""How often a partition is asked before we say that an open transaction hides what it holds; about two seconds."""


@dataclass(slots=True)
class StoredPositions:
    """What the topic says about one source, by source topic and partition."""

    offsets: dict[PartitionTuple, int] = field(default_factory=dict)
    """The last mirrored ones."""
    leader_epochs: dict[PartitionTuple, int] = field(default_factory=dict)
    """The leader epochs of these offsets; -1 when MirrorMaker 2 has written them, or the source has none."""
    topic_ids: dict[PartitionTuple, UUID] = field(default_factory=dict)
    """The topic that an offset belongs to; missing when MirrorMaker 2 has written it, or the source tells no ids."""
    shard_plan: ShardPlan | None = None


class _Place(NamedTuple):
    """Where a record goes."""

    key: bytes
    partition: int
    """Of the topic of positions."""


class PositionStore:
    """Positions of one source on one target. For one thread at a time; has connections of its own, calls block."""

    def __init__(self, settings: ConnectionSettings, pool: BufferPool, *, topic: str, source_alias: str) -> None:
        self.cluster = clusters.Cluster(settings, pool)
        """Connections that serve nothing else but positions and transactions."""
        self.topic = topic
        self._source_alias = source_alias
        self._placed_for = 0
        """For how many partitions of the topic ``_places`` were found."""
        self._places: dict[PartitionTuple, _Place] = {}
        """Those of positions: to find them costs more than all else that is done to write a position."""

    def read(self) -> StoredPositions:
        """Return what is committed, reading the whole topic to its end.

        Raises:
            ConnectionLostError: not all of it can be read now.
        """
        self.cluster.refresh([self.topic])
        self._partitions()
        newest, hidden = read_newest(self.cluster, self.topic, attempts=_ATTEMPTS)
        if hidden:
            raise ConnectionLostError(f"An open transaction hides positions in {hidden}")
        found = StoredPositions()
        # A partition that always has records has a position in every transaction: most keys come again and again before
        # the topic is compacted, and to understand a key costs more than to find it.
        for key, record in newest.items():
            self._keep(key, record.value, found)
        return found

    def _partitions(self) -> range:
        state = self.cluster.topics.get(self.topic)
        if state is None:
            raise ConnectionLostError(f"{self.topic} does not exist yet on the target")
        return range(len(state.partitions))

    def _keep(self, raw_key: bytes, value: bytes | None, found: StoredPositions) -> None:
        key = source_offsets.parse_key(raw_key)
        if key is not None:
            if key.cluster == self._source_alias:
                _put(found.offsets, (key.topic, key.partition), source_offsets.parse_value(value))
                found.leader_epochs[key.topic, key.partition] = source_offsets.parse_leader_epoch(value)
            return
        match source_offsets.parse_own_key(raw_key):
            case SourcePartition(cluster, topic, partition) if cluster == self._source_alias:
                _put(found.topic_ids, (topic, partition), source_offsets.parse_topic_id(value))
            case str(cluster) if cluster == self._source_alias:
                found.shard_plan = source_offsets.parse_shard_plan(value)
            case _:
                pass

    def write(
        self, moved: Mapping[PartitionTuple, SourceOffset], topic_ids: Mapping[PartitionTuple, UUID] = _NONE
    ) -> None:
        """Write positions and wait until they are acknowledged; the ids only after them.

        Args:
            moved: positions by source topic and partition.
            topic_ids: the topics that they belong to.

        Raises:
            ConnectionLostError: not all were acknowledged; writing the same again does no harm.
        """
        # An id that stands there before its position would make an old position one of the new topic.
        for records in (self.records(moved), self.records({}, topic_ids)):
            if records:
                write_records(self.cluster, self.topic, records, timeout_s=_TIMEOUT_S)

    def records(
        self, moved: Mapping[PartitionTuple, SourceOffset], topic_ids: Mapping[PartitionTuple, UUID] = _NONE
    ) -> dict[int, list[Record]]:
        """Return the records of positions and topic ids, by partition of the topic; see ``write``."""
        placed = [
            (self._place(key), source_offsets.value_bytes(position.next_offset - 1, position.leader_epoch))
            for key, position in moved.items()
        ]
        for (topic, partition), topic_id in topic_ids.items():
            key = source_offsets.topic_id_key(SourcePartition(self._source_alias, topic, partition))
            placed.append((self._place_of(key), source_offsets.topic_id_value(topic_id)))
        return _by_partition(placed)

    def plan_records(self, plan: ShardPlan) -> dict[int, list[Record]]:
        """Return the record of a shard plan, by partition of the topic."""
        place = self._place_of(source_offsets.shard_plan_key(self._source_alias))
        return _by_partition([(place, source_offsets.shard_plan_value(plan))])

    def partition_of(self, partition_id: PartitionId) -> int:
        """Return the partition of the topic that holds a position."""
        return self._place((partition_id.topic, partition_id.partition)).partition

    def _place(self, key: PartitionTuple) -> _Place:
        """Return where the position of a partition goes."""
        if (count := self._partition_count()) != self._placed_for:
            self._places, self._placed_for = {}, count
        if (place := self._places.get(key)) is None:
            raw_key = source_offsets.key_bytes(SourcePartition(self._source_alias, *key))
            place = self._places[key] = self._place_of(raw_key)
        return place

    def _place_of(self, key: bytes) -> _Place:
        return _Place(key, partition_for_key(key, self._partition_count()))

    def _partition_count(self) -> int:
        if self.topic not in self.cluster.topics:
            self.cluster.refresh([self.topic])
        return len(self._partitions())

    def close(self) -> None:
        """Close the connections."""
        self.cluster.close()


def _by_partition(placed: Iterable[tuple[_Place, bytes]]) -> dict[int, list[Record]]:
    now_ms = int(time.time() * 1000)
    out: dict[int, list[Record]] = {}
    for place, value in placed:
        out.setdefault(place.partition, []).append(Record(key=place.key, value=value, timestamp=now_ms))
    return out


def _put(found: dict[PartitionTuple, Value], key: PartitionTuple, value: Value | None) -> None:
    if value is None:
        found.pop(key, None)
    else:
        found[key] = value
