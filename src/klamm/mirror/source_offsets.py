"""Positions in MirrorMaker's own form: the records of ``mm2-offsets.<source>.internal``.

Connect stores for each partition of the source the last offset that was mirrored, as JSON, in a compacted topic on
the target. The bytes of the key matter: compaction and MirrorMaker 2 find an older position by them.

What the mirror has to remember beside that stands in the same topic under a connector's name of its own, which Connect
keeps apart as it does those of MirrorMaker's other connectors: the id of the source's topic that a position belongs to,
and the number of shards that write in transactions. The leader epoch of a position is part of its value, where
MirrorMaker reads ``offset`` only.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple
from uuid import UUID

from klamm.client.partitioner import murmur2

_CONNECTOR: Final = "MirrorSourceConnector"
_OWN: Final = "klamm-mirror"


class SourcePartition(NamedTuple):
    """A partition of a topic of the cluster that is mirrored."""

    cluster: str
    topic: str
    partition: int


class SourceOffset(NamedTuple):
    """How far a partition is mirrored."""

    next_offset: int
    """The next offset to copy."""
    leader_epoch: int = -1
    """Leader epoch of the last batch before ``next_offset``, by which a truncated source log is found. -1: unknown."""


def key_bytes(partition: SourcePartition) -> bytes:
    """Return the key of a position, exactly as MirrorMaker 2 writes it."""
    where = {"cluster": partition.cluster, "partition": partition.partition, "topic": partition.topic}
    return json.dumps([_CONNECTOR, where], separators=(",", ":"), ensure_ascii=False).encode()


def value_bytes(last_mirrored_offset: int, leader_epoch: int = -1) -> bytes:
    """Return the value of a position.

    Args:
        last_mirrored_offset: Offset of the last record mirrored, -1 for none yet.
        leader_epoch: Its leader epoch on the source; -1 when it is not known, which gives MirrorMaker's own bytes.
    """
    if leader_epoch < 0:
        return b'{"offset":%d}' % last_mirrored_offset
    return b'{"offset":%d,"leader_epoch":%d}' % (last_mirrored_offset, leader_epoch)


def parse_key(key: bytes | memoryview | None) -> SourcePartition | None:
    """Return whose position a key holds; None for keys of other connectors and for what is no position."""
    try:
        match json.loads(bytes(key or b"")):
            case [str(name), {"cluster": str(cluster), "topic": str(topic), "partition": int(partition)}]:
                return SourcePartition(cluster, topic, partition) if name == _CONNECTOR else None
            case _:
                return None
    except ValueError:
        return None


def parse_value(value: bytes | memoryview | None) -> int | None:
    """Return the offset of the last record mirrored; None for a tombstone and for what is no position."""
    try:
        match json.loads(bytes(value or b"")):
            case {"offset": int(offset)}:
                return offset
            case _:
                return None
    except ValueError:
        return None


def parse_leader_epoch(value: bytes | memoryview | None) -> int:
    """Return the leader epoch of a position, -1 when it has none: MirrorMaker 2 writes none."""
    try:
        match json.loads(bytes(value or b"")):
            case {"leader_epoch": int(leader_epoch)}:
                return leader_epoch
            case _:
                return -1
    except ValueError:
        return -1


class ShardPlan(NamedTuple):
    """By how many shards the records of a source are written in transactions."""

    shards: int
    before: tuple[int, ...] = ()
    """Counts of earlier plans whose transactional ids may not all be fenced yet."""


def topic_id_key(partition: SourcePartition) -> bytes:
    """Return the key under which the topic id of a position is remembered."""
    where = {"cluster": partition.cluster, "partition": partition.partition, "topic": partition.topic}
    return json.dumps([_OWN, where], separators=(",", ":"), ensure_ascii=False).encode()


def topic_id_value(topic_id: UUID) -> bytes:
    """Return the value that names a topic id."""
    return b'{"topic_id":"%s"}' % str(topic_id).encode()


def shard_plan_key(cluster: str) -> bytes:
    """Return the key of the shard plan of a source."""
    return json.dumps([_OWN, {"cluster": cluster}], separators=(",", ":"), ensure_ascii=False).encode()


def shard_plan_value(plan: ShardPlan) -> bytes:
    """Return the value of a shard plan. Connect takes no lists as values, so the counts before are a text."""
    before = ",".join(str(count) for count in plan.before)
    return json.dumps({"shards": plan.shards, "before": before}, separators=(",", ":")).encode()


def parse_own_key(key: bytes | memoryview | None) -> SourcePartition | str | None:
    """Return whose topic id a key holds, or of which source cluster the shard plan; None for all other keys."""
    try:
        match json.loads(bytes(key or b"")):
            case [str(name), {"cluster": str(cluster), "topic": str(topic), "partition": int(partition)}]:
                return SourcePartition(cluster, topic, partition) if name == _OWN else None
            case [str(name), {"cluster": str(cluster), **rest}]:
                return cluster if name == _OWN and not rest else None
            case _:
                return None
    except ValueError:
        return None


def parse_topic_id(value: bytes | memoryview | None) -> UUID | None:
    """Return a remembered topic id; None for what is none."""
    try:
        match json.loads(bytes(value or b"")):
            case {"topic_id": str(text)}:
                return UUID(text)
            case _:
                return None
    except ValueError:
        return None


def parse_shard_plan(value: bytes | memoryview | None) -> ShardPlan | None:
    """Return a shard plan; None for what is none."""
    try:
        match json.loads(bytes(value or b"")):
            case {"shards": int(shards), "before": str(before)}:
                return ShardPlan(shards, tuple(int(number) for number in before.split(",") if number))
            case _:
                return None
    except ValueError:
        return None


def shard_of(topic: str, partition: int, shards: int) -> int:
    """Return the shard that writes a partition: the partitions of a topic go round, topics begin anywhere."""
    return int((murmur2(topic.encode()) + partition) % shards)


def resume_offset(last_mirrored_offset: int) -> int:
    """Return the next offset to copy. -1 stands for a partition that is known but of which nothing is mirrored."""
    return max(0, last_mirrored_offset + 1)
