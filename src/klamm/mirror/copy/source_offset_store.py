"""Store of source offsets in the topic ``mm2-offsets.<source>.internal`` on the target, and its background writer.

The writer also writes offset syncs. It has its own thread, so that a slow or failing write does not delay the copying.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from klamm.clock import wall_clock_ms
from klamm.kafka_client.data import cluster as clusters
from klamm.kafka_client.errors import ConnectionLostError
from klamm.kafka_client.internal_topic import read_newest, write_records
from klamm.lazy_dataclass import dataclass
from klamm.mirror.naming import CONNECTOR
from klamm.mirror.records import requested_states, source_offsets
from klamm.mirror.records.requested_states import RequestedStates
from klamm.mirror.records.source_offsets import ShardPlan, SourceOffset, SourcePartition, StoredPromotion
from klamm.protocol.errors import ProtocolError, UnsupportedVersionError
from klamm.protocol.partitioner import partition_for_key
from klamm.protocol.records import Record
from klamm.retries import LoggedReasons

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from klamm.kafka_client.connection.buffers import BufferPool
    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.mirror.copy.offset_sync_writer import SyncWriter
    from klamm.mirror.copy.partition import PartitionId
    from klamm.protocol.types import PartitionTuple

logger = logging.getLogger(__name__)
Key = TypeVar("Key")
Value = TypeVar("Value")

_TIMEOUT_S: Final = 15.0
_NONE: Final[Mapping[PartitionTuple, UUID | None]] = MappingProxyType({})
_SHOWN_BYTES: Final = 200
_ATTEMPTS: Final = 40
"""Attempts to read a partition past an open transaction, over about two seconds."""


@dataclass(slots=True)
class StoredSourceOffsets:
    """Source offsets of one source cluster, by source topic and partition number."""

    offsets: dict[PartitionTuple, int] = field(default_factory=dict)
    """Offset of the last mirrored record."""
    leader_epochs: dict[PartitionTuple, int] = field(default_factory=dict)
    """Leader epochs of these offsets. -1: written by MirrorMaker 2, or the source has no epochs."""
    topic_ids: dict[PartitionTuple, UUID] = field(default_factory=dict)
    """Topic ids to which the offsets belong. Missing: written by MirrorMaker 2, or the source has no topic ids."""
    cluster_id: str | None = None
    """Cluster id of the source that was mirrored first. None: it was not stored."""
    promotions: dict[str, StoredPromotion] = field(default_factory=dict)
    """Promotions by source topic."""
    shard_plan: ShardPlan | None = None
    requested: RequestedStates = field(default_factory=RequestedStates)
    """States that an operator requested for the flow and its topics."""


class _Place(NamedTuple):
    """Record key and the partition it is written to."""

    key: bytes
    partition: int
    """Partition number in the offsets topic."""


class SourceOffsetStore:
    """Store of the source offsets of one source cluster on one target.

    Has its own connections. Calls block and must come from one thread at a time.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        pool: BufferPool,
        *,
        topic: str,
        source_alias: str,
        connector: str = CONNECTOR,
        flow: str = "",
    ) -> None:
        """Create a store that connects at its first call.

        Args:
            settings: Connection to the target.
            pool: Buffers of the connections.
            topic: Offsets topic.
            source_alias: Alias of the source cluster.
            connector: Name of MirrorMaker's source connector in the keys of source offsets.
            flow: Name of the flow whose requested states are read and written. Empty: they are left out.
        """
        self.cluster = clusters.Cluster(settings, pool)
        """Connections for source offsets and transactions only."""
        self.topic = topic
        self._source_alias = source_alias
        self._connector = connector
        self._requested_key = requested_states.key_bytes(source_alias, flow)
        self._placed_for = 0
        """Partition count of the offsets topic for which ``_places`` is valid."""
        self._places: dict[PartitionTuple, _Place] = {}
        """Cache of keys and partitions: computing one costs more than the rest of writing a source offset."""

    def read(self) -> StoredSourceOffsets:
        """Read the whole offsets topic and return what is committed.

        Raises:
            ConnectionLostError: The topic cannot be read to its end now.
        """
        self.cluster.refresh([self.topic])
        self._partitions()
        newest, hidden = read_newest(self.cluster, self.topic, attempts=_ATTEMPTS)
        if hidden:
            raise ConnectionLostError(f"An open transaction hides source offsets in {hidden}")
        stored = StoredSourceOffsets()
        # Busy partitions have a record in every transaction, so before compaction most keys occur many times. Parsing a
        # key costs more than replacing it in a dictionary: only the newest record of each key is parsed.
        for key, record in newest.items():
            self._keep(key, record.value, stored)
        return stored

    def _partitions(self) -> range:
        state = self.cluster.topics.get(self.topic)
        if state is None:
            raise ConnectionLostError(f"{self.topic} does not exist yet on the target")
        return range(len(state.partitions))

    def _keep(self, raw_key: bytes, value: bytes | None, stored: StoredSourceOffsets) -> None:
        """Keep the content of a record. A damaged value is logged, and the key counts as missing."""
        alias, key = self._source_alias, source_offsets.parse_key(raw_key, self._connector)
        own_key = source_offsets.parse_own_key(raw_key) if key is None else None
        content: object
        if key is not None and key.cluster == alias:
            content = offset = source_offsets.parse_value(value)
            _put(stored.offsets, (key.topic, key.partition), offset)
            stored.leader_epochs[key.topic, key.partition] = source_offsets.parse_leader_epoch(value)
        elif isinstance(own_key, SourcePartition) and own_key.cluster == alias:
            content = topic_id = source_offsets.parse_topic_id(value)
            _put(stored.topic_ids, (own_key.topic, own_key.partition), topic_id)
        elif own_key == alias:
            content = stored.shard_plan = source_offsets.parse_shard_plan(value)
        elif raw_key == source_offsets.cluster_id_key(alias):
            content = stored.cluster_id = source_offsets.parse_cluster_id(value)
        elif (promoted := source_offsets.parse_promotion_key(raw_key, alias)) is not None:
            content = promotion = source_offsets.parse_promotion(value)
            _put(stored.promotions, promoted, promotion)
        elif raw_key == self._requested_key:
            content = requested_states.parse_value(value)
            stored.requested = content or RequestedStates()
        else:
            return
        if content is None and value is not None:
            logger.warning("%s: ignored the value %r of the key %r", self.topic, value[:_SHOWN_BYTES], raw_key)

    def write(
        self, moved: Mapping[PartitionTuple, SourceOffset], topic_ids: Mapping[PartitionTuple, UUID | None] = _NONE
    ) -> None:
        """Write source offsets, then topic ids, and wait until they are acknowledged.

        Args:
            moved: Source offsets by source topic and partition number.
            topic_ids: Ids of the topics to which they belong. None deletes an id: the next start stores the new one.

        Raises:
            ConnectionLostError: Not all were acknowledged. Repeating the call is safe.
        """
        # A topic id written before its offset would turn the old topic's offset into one of the new topic.
        for records in (self.records(moved), self.records({}, topic_ids)):
            if records:
                write_records(self.cluster, self.topic, records, timeout_s=_TIMEOUT_S)

    def records(
        self, moved: Mapping[PartitionTuple, SourceOffset], topic_ids: Mapping[PartitionTuple, UUID | None] = _NONE
    ) -> dict[int, list[Record]]:
        """Return the records for source offsets and topic ids, by partition of the offsets topic. See ``write``."""
        placed: list[tuple[_Place, bytes | None]] = [
            (self._place(key), source_offsets.value_bytes(offset.next_offset - 1, offset.leader_epoch))
            for key, offset in moved.items()
        ]
        for (topic, partition), topic_id in topic_ids.items():
            key = source_offsets.topic_id_key(SourcePartition(self._source_alias, topic, partition))
            value = None if topic_id is None else source_offsets.topic_id_value(topic_id)
            placed.append((self._place_of(key), value))
        return _by_partition(placed)

    def plan_records(self, plan: ShardPlan) -> dict[int, list[Record]]:
        """Return the record of a shard plan, by partition of the offsets topic."""
        place = self._place_of(source_offsets.shard_plan_key(self._source_alias))
        return _by_partition([(place, source_offsets.shard_plan_value(plan))])

    def write_requested(self, states: RequestedStates) -> None:
        """Write the requested states of the flow, and wait until they are acknowledged.

        Raises:
            ConnectionLostError: They were not acknowledged. Repeating the call is safe.
        """
        self._write_one(self._requested_key, requested_states.value_bytes(states))

    def write_cluster_id(self, cluster_id: str) -> None:
        """Write the cluster id of the source, and wait until it is acknowledged.

        Raises:
            ConnectionLostError: It was not acknowledged. Repeating the call is safe.
        """
        key = source_offsets.cluster_id_key(self._source_alias)
        self._write_one(key, source_offsets.cluster_id_value(cluster_id))

    def write_promotion(self, topic: str, promotion: StoredPromotion) -> None:
        """Write the promotion of a source topic, and wait until it is acknowledged.

        Raises:
            ConnectionLostError: It was not acknowledged. Repeating the call is safe.
        """
        key = source_offsets.promotion_key(self._source_alias, topic)
        self._write_one(key, source_offsets.promotion_value(promotion))

    def _write_one(self, key: bytes, value: bytes) -> None:
        records = _by_partition([(self._place_of(key), value)])
        write_records(self.cluster, self.topic, records, timeout_s=_TIMEOUT_S)

    def partition_of(self, partition_id: PartitionId) -> int:
        """Return the partition of the offsets topic that holds the source offset of a partition."""
        return self._place((partition_id.topic, partition_id.partition)).partition

    def _place(self, key: PartitionTuple) -> _Place:
        """Return the record key of a source offset and the partition it is written to."""
        if (count := self._partition_count()) != self._placed_for:
            self._places, self._placed_for = {}, count
        if (place := self._places.get(key)) is None:
            raw_key = source_offsets.key_bytes(SourcePartition(self._source_alias, *key), self._connector)
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


def _by_partition(placed: Iterable[tuple[_Place, bytes | None]]) -> dict[int, list[Record]]:
    now_ms = wall_clock_ms()
    out: dict[int, list[Record]] = {}
    for place, value in placed:
        out.setdefault(place.partition, []).append(Record(key=place.key, value=value, timestamp=now_ms))
    return out


def _put(values: dict[Key, Value], key: Key, value: Value | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


_REJECTIONS: Final = (ConnectionLostError, UnsupportedVersionError, ProtocolError)


class _Outcome(NamedTuple):
    """Result of one write."""

    offsets: Mapping[PartitionTuple, SourceOffset]
    """Source offsets that are on the target."""
    syncs: Exception | None
    """Error that kept the offset syncs from being written. None: they are written."""


class SourceOffsetWriter:
    """Writer with its own thread, which writes one bundle at a time. Call its methods from the copier's thread only.

    A failed write loses nothing: source offsets and syncs are written later, or records are copied again.
    """

    def __init__(
        self, store: SourceOffsetStore, syncs: SyncWriter | None, *, flow: str, may_write: Callable[[], bool]
    ) -> None:
        """Start the writer thread.

        Args:
            store: Store of the source offsets. Used by this writer only while ``is_busy``.
            syncs: Offset syncs to write and where they go. None: no offset syncs are written.
            flow: Name of the flow, for log messages.
            may_write: Whether source offsets may be written now. Called in the writer thread: offset syncs, which are
                written before, may take longer than the claim is held.
        """
        self._store = store
        self._syncs = syncs
        self._may_write = may_write
        self._flow = flow
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="source-offsets")
        self._running: Future[_Outcome] | None = None
        self._logged = LoggedReasons()
        """Logged reasons of failed writes. Confined to the writer thread."""

    @property
    def is_busy(self) -> bool:
        """Return whether a write is running, or its result was not collected yet."""
        return self._running is not None

    def begin(self, offsets: Mapping[PartitionTuple, SourceOffset]) -> None:
        """Start to write source offsets and the offset syncs that are due. Not allowed while ``is_busy``.

        Args:
            offsets: Source offsets by source topic and partition number.
        """
        syncs = [] if self._syncs is None else self._syncs.take()
        if offsets or syncs:
            self._running = self._thread.submit(self._write, offsets, syncs)

    def _write(self, offsets: Mapping[PartitionTuple, SourceOffset], syncs: Sequence[Record]) -> _Outcome:
        rejection: Exception | None = None
        if self._syncs is not None and syncs:
            try:
                self._syncs.send(syncs)
            except _REJECTIONS as error:
                rejection = error
        if not self._may_write():
            offsets = {}
        try:
            if offsets:
                self._store.write(offsets)
                self._logged.clear()
        except _REJECTIONS as error:
            if self._logged.is_new(str(error)):
                logger.warning("%s: source offsets could not be committed: %s", self._flow, error)
            offsets = {}
        return _Outcome(offsets, rejection)

    def collect(self, *, wait: bool = False) -> Mapping[PartitionTuple, SourceOffset]:
        """Return the source offsets written since the last call.

        Args:
            wait: Whether to wait for the running write.
        """
        running = self._running
        if running is None or not (wait or running.done()):
            return {}
        self._running = None
        outcome = running.result()
        if self._syncs is not None:
            self._syncs.settle(outcome.syncs)
        return outcome.offsets

    def close(self) -> None:
        """Wait for the running write and end the thread."""
        self.collect(wait=True)
        self._thread.shutdown()
