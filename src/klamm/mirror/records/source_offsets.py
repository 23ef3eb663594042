"""Record formats of source offsets in ``mm2-offsets.<source>.internal``, as MirrorMaker 2 writes them.

Connect stores the last mirrored offset of each source partition as JSON in a compacted topic on the target. The bytes
of the key matter: compaction and MirrorMaker 2 find an older source offset by them.

klamm stores more facts in the same topic, with its own connector name in the key. Connect ignores such records, as it
ignores those of MirrorMaker's other connectors:

- the id of the source topic to which a source offset belongs, which reveals a recreated topic after a restart;
- the cluster id of the source, which shows whether it is another cluster (equal offsets by a replica, deletions);
- the promotion of a topic, so that no later start repeats it, or takes another topic for the promoted one;
- the number of shards that write in transactions (``ShardPlan``);
- the states that an operator requested for the flow and its topics (see ``requested_states``).

The leader epoch of a source offset is a second field of its value. MirrorMaker reads only the field ``offset``.
"""

from __future__ import annotations

import json
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from klamm.mirror.naming import CONNECTOR, OWN_CONNECTOR
from klamm.protocol.partitioner import murmur2

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1


class SourcePartition(NamedTuple):
    """Topic partition of a source cluster."""

    cluster: str
    topic: str
    partition: int


class SourceOffset(NamedTuple):
    """Source offset of a mirrored partition."""

    next_offset: int
    """Next offset to copy."""
    leader_epoch: int = -1
    """Leader epoch of the last batch before ``next_offset``, which reveals a truncated source log. -1: unknown."""


def own_key(where: Mapping[str, object]) -> bytes:
    """Return the key of a record of klamm's own, which Connect and MirrorMaker 2 ignore."""
    return _key(OWN_CONNECTOR, where)


def _key(connector: str, where: Mapping[str, object]) -> bytes:
    return json.dumps([connector, where], separators=(",", ":"), ensure_ascii=False).encode()


def key_bytes(partition: SourcePartition, connector: str = CONNECTOR) -> bytes:
    """Return the record key of a source offset, byte for byte as MirrorMaker 2 writes it."""
    where = {"cluster": partition.cluster, "partition": partition.partition, "topic": partition.topic}
    return _key(connector, where)


def value_bytes(last_mirrored_offset: int, leader_epoch: int = -1) -> bytes:
    """Return the record value of a source offset.

    Args:
        last_mirrored_offset: Offset of the last mirrored record. -1: none yet.
        leader_epoch: Leader epoch of that record. -1: unknown, the value is then byte for byte MirrorMaker's.
    """
    if leader_epoch < 0:
        return b'{"offset":%d}' % last_mirrored_offset
    return b'{"offset":%d,"leader_epoch":%d}' % (last_mirrored_offset, leader_epoch)


def parse_key(key: bytes | memoryview | None, connector: str = CONNECTOR) -> SourcePartition | None:
    """Return the partition whose source offset a key belongs to. None: a key of another connector or kind."""
    return _partition(_document(key), connector)


def parse_value(value: bytes | memoryview | None) -> int | None:
    """Return the offset of the last mirrored record. None: a tombstone, or not a source offset."""
    match _document(value):
        case {"offset": int(offset)} if -MAX_INT64 <= offset < MAX_INT64:
            return offset
        case _:
            return None


def parse_leader_epoch(value: bytes | memoryview | None) -> int:
    """Return the leader epoch of a source offset. -1: it has none, as those that MirrorMaker 2 writes."""
    match _document(value):
        case {"leader_epoch": int(leader_epoch)} if 0 <= leader_epoch <= MAX_INT32:
            return leader_epoch
        case _:
            return -1


class ShardPlan(NamedTuple):
    """Number of shards that write the records of a source cluster in transactions."""

    shards: int
    before: tuple[int, ...] = ()
    """Numbers of shards of earlier plans whose transactional ids may not all be fenced yet."""


def topic_id_key(partition: SourcePartition) -> bytes:
    """Return the record key of a topic id."""
    where = {"cluster": partition.cluster, "partition": partition.partition, "topic": partition.topic}
    return own_key(where)


def topic_id_value(topic_id: UUID) -> bytes:
    """Return the record value of a topic id."""
    return b'{"topic_id":"%s"}' % str(topic_id).encode()


def cluster_id_key(cluster: str) -> bytes:
    """Return the record key of the cluster id of a source cluster."""
    return own_key({"cluster": cluster, "fact": "cluster id"})


def cluster_id_value(cluster_id: str) -> bytes:
    """Return the record value of a cluster id."""
    return json.dumps({"cluster_id": cluster_id}, separators=(",", ":")).encode()


def parse_cluster_id(value: bytes | memoryview | None) -> str | None:
    """Return a stored cluster id. None: the value is not a cluster id."""
    match _document(value):
        case {"cluster_id": str(cluster_id)}:
            return cluster_id
        case _:
            return None


class EpochFloor(NamedTuple):
    """Offset from which on the batches on the target have higher leader epochs than on the source.

    Brokers of the target have led the partition, without writing to it, until klamm took it back there. If batches had
    the epochs of the source again, they could have the same offset and epoch as a batch that such a broker wrote.
    """

    offset: int
    leader_epoch: int
    """Lowest leader epoch of the batches from ``offset`` on."""
    source_epoch: int = -1
    """Leader epoch of the last batch before ``offset`` on the source. -1: unknown."""


class StoredPromotion(NamedTuple):
    """Promotion of a topic that a broker without storage leads."""

    topic_id: UUID
    """Id of the remote topic."""
    is_finished: bool
    """Whether its open transactions were aborted."""
    floors: Mapping[int, tuple[EpochFloor, ...]] = MappingProxyType({})
    """Leader epochs by partition, for each time that the topic was taken back."""

    def floors_of(self, topic_id: UUID, partition: int) -> tuple[EpochFloor, ...]:
        """Return the leader epochs of a partition. Empty: there are none, or the remote topic is another one now."""
        return self.floors.get(partition, ()) if topic_id == self.topic_id else ()


def promotion_key(cluster: str, topic: str) -> bytes:
    """Return the record key of the promotion of a source topic."""
    return own_key({"cluster": cluster, "promoted": topic})


def parse_promotion_key(key: bytes | memoryview | None, cluster: str) -> str | None:
    """Return the source topic of a promotion of a cluster. None: another key."""
    match parse_own_fields(key):
        case {"cluster": str(alias), "promoted": str(topic)} if alias == cluster:
            return topic
        case _:
            return None


def promotion_value(promotion: StoredPromotion) -> bytes:
    """Return the record value of a promotion."""
    document = {"topic_id": str(promotion.topic_id), "finished": promotion.is_finished}
    if promotion.floors:
        # Connect accepts no lists in values.
        floors = [(partition, *floor) for partition, each in sorted(promotion.floors.items()) for floor in each]
        document["floors"] = ",".join(":".join(map(str, floor)) for floor in floors)
    return json.dumps(document, separators=(",", ":")).encode()


def parse_promotion(value: bytes | memoryview | None) -> StoredPromotion | None:
    """Return a stored promotion. None: the value is not a promotion."""
    topic_id = parse_topic_id(value)
    match _document(value):
        case {"finished": bool(is_finished)} as document if topic_id is not None:
            with suppress(ValueError, TypeError):
                return StoredPromotion(topic_id, is_finished, _floors(str(document.get("floors", ""))))
    return None


def _floors(text: str) -> dict[int, tuple[EpochFloor, ...]]:
    floors: dict[int, tuple[EpochFloor, ...]] = {}
    for each in text.split(",") if text else ():
        partition, *floor = map(int, each.split(":"))
        floors[partition] = (*floors.get(partition, ()), EpochFloor(*floor))
    return floors


def shard_plan_key(cluster: str) -> bytes:
    """Return the record key of the shard plan of a source cluster."""
    return own_key({"cluster": cluster})


def shard_plan_value(plan: ShardPlan) -> bytes:
    """Return the record value of a shard plan. Connect accepts no lists in values, so ``before`` is one string."""
    before = ",".join(str(count) for count in plan.before)
    return json.dumps({"shards": plan.shards, "before": before}, separators=(",", ":")).encode()


def parse_own_fields(key: bytes | memoryview | None) -> Mapping[str, Any] | None:
    """Return the fields in the key of a record of klamm's own. None: another key."""
    match _document(key):
        case [str(name), dict() as fields] if name == OWN_CONNECTOR:
            return fields
        case _:
            return None


def parse_own_key(key: bytes | memoryview | None) -> SourcePartition | str | None:
    """Return the partition of a topic id's key, or the source cluster of a shard plan's key. None: another key."""
    document = _document(key)
    match document:
        case [str(name), {"cluster": str(cluster), **rest}] if not rest:
            return cluster if name == OWN_CONNECTOR else None
        case _:
            return _partition(document, OWN_CONNECTOR)


def parse_topic_id(value: bytes | memoryview | None) -> UUID | None:
    """Return a stored topic id. None: the value is not a topic id."""
    match _document(value):
        case {"topic_id": str(text)}:
            with suppress(ValueError):
                return UUID(text)
    return None


def parse_shard_plan(value: bytes | memoryview | None) -> ShardPlan | None:
    """Return a stored shard plan. None: the value is not a shard plan."""
    match _document(value):
        case {"shards": int(shards), "before": str(before)}:
            with suppress(ValueError):
                counts = tuple(int(number) for number in before.split(",") if number)
                if all(0 < count <= MAX_INT32 for count in (shards, *counts)):
                    return ShardPlan(shards, counts)
    return None


def _document(data: bytes | memoryview | None) -> Any:
    """Return the JSON document in a key or value; None if it is damaged."""
    try:
        document = json.loads(text := bytes(data or b"").decode())
        if "\\u" in text:
            json.dumps(document, ensure_ascii=False).encode()  # fails for a lone surrogate
    except (ValueError, RecursionError):
        return None
    return document


def _partition(document: object, connector: str) -> SourcePartition | None:
    match document:
        case [str(name), {"cluster": str(cluster), "topic": str(topic), "partition": int(partition)}] if (
            name == connector and 0 <= partition <= MAX_INT32
        ):
            return SourcePartition(cluster, topic, partition)
        case _:
            return None


def shard_of(topic: str, partition: int, shards: int) -> int:
    """Return the shard of a partition: round-robin over a topic's partitions, from a hash of the topic name."""
    return int((murmur2(topic.encode()) + partition) % shards)


def resume_offset(last_mirrored_offset: int) -> int:
    """Return the next offset to copy. -1 means that the partition is known but no record was mirrored."""
    return max(0, last_mirrored_offset + 1)
