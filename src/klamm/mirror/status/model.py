"""Status of a flow as seen on its target cluster: plain values and what can be derived from them. No I/O."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.mirror.records.formats import Heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredPartition:
    """Progress of one source partition."""

    partition: int
    next_offset: int | None
    """Next source offset to copy, from the source offset that the mirror committed. None: it committed none."""
    written_at_ms: int | None
    """Time of that commit, in milliseconds since the epoch."""
    target_end: int | None
    """Log end offset of the remote partition. None: it does not exist, or has no leader."""
    source_end: int | None = None
    """Log end offset of the source partition. None: the source was not asked, or did not answer."""

    @property
    def lag(self) -> int | None:
        """Number of source offsets that are not mirrored yet. None: unknown."""
        return None if self.source_end is None else max(0, self.source_end - (self.next_offset or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredTopic:
    """Topic of the source with its remote topic."""

    topic: str
    """Name of the source topic."""
    remote_topic: str
    exists: bool
    """Whether the remote topic exists."""
    newest_record_ms: int | None
    """Largest timestamp in the last batches of the remote topic. None: it has no records, or was not read."""
    partitions: tuple[MirroredPartition, ...]
    is_heartbeats: bool = False
    """Whether the topic contains mirrored heartbeats. They are not user data and do not count in totals."""

    @property
    def lag(self) -> int | None:
        """Number of source offsets that are not mirrored yet. None: unknown for at least one partition."""
        return total([partition.lag for partition in self.partitions])


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointedGroup:
    """Consumer group of the source with checkpoints on the target."""

    group: str
    topics: tuple[str, ...]
    """Names of the remote topics with checkpoints."""
    partitions: int
    newest_checkpoint_ms: int
    to_read: int | None
    """Number of records on the target after the group's checkpoints. None: unknown for at least one partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSyncs:
    """Offset syncs that are kept on the target."""

    topic: str
    partitions: int
    """Number of source partitions that have an offset sync."""
    newest_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """Number of shards (transactional producers) by which a flow writes exactly once."""

    count: int
    before: tuple[int, ...]
    """Earlier numbers of shards whose producers may not all be fenced yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSight:
    """Status of one flow, as far as the target cluster shows it."""

    source: str
    """Alias of the source cluster."""
    target: str
    topics: tuple[MirroredTopic, ...]
    heartbeats: tuple[Heartbeat, ...]
    """Latest heartbeat of each cluster pair with the same source as the flow. The flow's own target comes first."""
    groups: tuple[CheckpointedGroup, ...] | None
    """Groups with checkpoints. None: there is no checkpoints topic."""
    syncs: OffsetSyncs | None
    """Offset syncs. None: there are none on the target."""
    shards: Shards | None
    """Shards of klamm's exactly-once mode. None: this flow did not use it."""
    unknown: tuple[str, ...] = ()
    """Items that could not be determined, each with the reason."""

    @property
    def name(self) -> str:
        """Name of the flow, ``A->B``."""
        return f"{self.source}->{self.target}"

    @property
    def is_there(self) -> bool:
        """Return whether the target shows any trace of the flow."""
        return bool(self.topics or self.heartbeats or self.groups or self.syncs or self.shards)

    @property
    def newest_record_ms(self) -> int | None:
        """Largest timestamp of all mirrored records, in milliseconds since the epoch. Heartbeats do not count."""
        return newest([topic.newest_record_ms for topic in self.topics if not topic.is_heartbeats])

    @property
    def position_written_ms(self) -> int | None:
        """Time of the latest commit of a source offset, in milliseconds since the epoch."""
        return newest([one.written_at_ms for topic in self.topics for one in topic.partitions])

    @property
    def lag(self) -> int | None:
        """Number of source offsets that are not mirrored yet. None: unknown for at least one partition."""
        return total([topic.lag for topic in self.topics if not topic.is_heartbeats])


def total(numbers: Sequence[int | None]) -> int | None:
    """Return the sum, or None if the sequence is empty or contains an unknown number."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None


def newest(times: Sequence[int | None]) -> int | None:
    """Return the latest time, or None if there is none."""
    return max((time for time in times if time is not None), default=None)


def age_s(then_ms: int | None, now_ms: int) -> float | None:
    """Return the seconds between both times, at least 0. Clocks of different machines may disagree."""
    return None if then_ms is None else max(0, now_ms - then_ms) / 1000


def as_document(sight: FlowSight, now_ms: int) -> dict[str, Any]:
    """Return the status as JSON values. Times are ISO 8601 in UTC, ages are in seconds."""
    return {
        "flow": sight.name,
        "source": sight.source,
        "target": sight.target,
        "found": sight.is_there,
        "lag": sight.lag,
        **_times("newest_record", sight.newest_record_ms, now_ms),
        **_times("position_written", sight.position_written_ms, now_ms),
        "heartbeats": [
            {
                "source": beat.source_alias,
                "target": beat.target_alias,
                **_times("written", beat.timestamp, now_ms),
            }
            for beat in sight.heartbeats
        ],
        "topics": [_topic(topic, now_ms) for topic in sight.topics],
        "groups": None
        if sight.groups is None
        else [
            {
                "group": group.group,
                "topics": list(group.topics),
                "partitions": group.partitions,
                "to_read": group.to_read,
                **_times("newest_checkpoint", group.newest_checkpoint_ms, now_ms),
            }
            for group in sight.groups
        ],
        "offset_syncs": None
        if sight.syncs is None
        else {
            "topic": sight.syncs.topic,
            "partitions": sight.syncs.partitions,
            **_times("newest", sight.syncs.newest_ms, now_ms),
        },
        "exactly_once_shards": None
        if sight.shards is None
        else {"count": sight.shards.count, "before": list(sight.shards.before)},
        "unknown": list(sight.unknown),
    }


def _topic(topic: MirroredTopic, now_ms: int) -> dict[str, Any]:
    """Return a topic as JSON values."""
    return {
        "topic": topic.topic,
        "remote_topic": topic.remote_topic,
        "exists": topic.exists,
        "lag": topic.lag,
        **_times("newest_record", topic.newest_record_ms, now_ms),
        "partitions": [
            {
                **{name: value for name, value in asdict(one).items() if name != "written_at_ms"},
                **_times("written", one.written_at_ms, now_ms),
                "lag": one.lag,
            }
            for one in topic.partitions
        ],
    }


def _times(name: str, then_ms: int | None, now_ms: int) -> dict[str, Any]:
    at = None if then_ms is None else datetime.fromtimestamp(then_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
    return {f"{name}_at": at, f"{name}_age_s": age_s(then_ms, now_ms)}
