"""What was seen of a flow on its target: plain values, and what follows from them. No I/O."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.mirror.formats import Heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredPartition:
    """How far one partition of a source is on the target."""

    partition: int
    next_offset: int | None
    """The source offset up to which the mirror says that it copied; None: it says nothing."""
    written_at_ms: int | None
    """When it said so."""
    target_end: int | None
    """Where the remote partition ends; None: there is none, or it has no leader."""
    source_end: int | None = None
    """Where the source's partition ends; None: nobody asked, or nobody answered."""

    @property
    def lag(self) -> int | None:
        """Offsets that the target is behind; None: can not be said."""
        return None if self.source_end is None else max(0, self.source_end - (self.next_offset or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredTopic:
    """A topic of the source, as the target shows it."""

    topic: str
    """Its name on the source."""
    remote_topic: str
    exists: bool
    """Whether the remote topic is there."""
    newest_record_ms: int | None
    """The largest timestamp of its last batches; None: it has none, or was not looked at."""
    partitions: tuple[MirroredPartition, ...]
    is_heartbeats: bool = False
    """Mirrored heartbeats: they are no data, and do not count."""

    @property
    def lag(self) -> int | None:
        """Offsets that the target is behind; None: not known of every partition."""
        return total([partition.lag for partition in self.partitions])


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointedGroup:
    """A group of the source with checkpoints on the target."""

    group: str
    topics: tuple[str, ...]
    """Of the target."""
    partitions: int
    newest_checkpoint_ms: int
    to_read: int | None
    """Records behind its checkpoints, that it would read on the target; None: not known of every partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSyncs:
    """Offset syncs, where they are kept on the target."""

    topic: str
    partitions: int
    """Source partitions that have one."""
    newest_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """By how many shards a flow writes exactly once."""

    count: int
    before: tuple[int, ...]
    """Counts that may not all be fenced yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSight:
    """All that the target tells about one flow."""

    source: str
    """Alias."""
    target: str
    topics: tuple[MirroredTopic, ...]
    heartbeats: tuple[Heartbeat, ...]
    """The last of each pair whose source the flow's is, the target's own first."""
    groups: tuple[CheckpointedGroup, ...] | None
    """None: there are no checkpoints."""
    syncs: OffsetSyncs | None
    """None: none on the target."""
    shards: Shards | None
    """None: nobody wrote exactly once as klamm does."""
    unknown: tuple[str, ...] = ()
    """What can not be said, and why."""

    @property
    def name(self) -> str:
        """``A->B``."""
        return f"{self.source}->{self.target}"

    @property
    def is_there(self) -> bool:
        """Tell whether the target shows any trace of the flow."""
        return bool(self.topics or self.heartbeats or self.groups or self.syncs or self.shards)

    @property
    def newest_record_ms(self) -> int | None:
        """The largest timestamp of all mirrored records, heartbeats aside."""
        return newest([topic.newest_record_ms for topic in self.topics if not topic.is_heartbeats])

    @property
    def position_written_ms(self) -> int | None:
        """When a position was written last."""
        return newest([one.written_at_ms for topic in self.topics for one in topic.partitions])

    @property
    def lag(self) -> int | None:
        """Offsets that the target is behind; None: not known of every partition."""
        return total([topic.lag for topic in self.topics if not topic.is_heartbeats])


def total(numbers: Sequence[int | None]) -> int | None:
    """Return the sum; None when there is nothing to add, or a part of it is not known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None


def newest(times: Sequence[int | None]) -> int | None:
    """Return the latest time; None without any."""
    return max((time for time in times if time is not None), default=None)


def age_s(then_ms: int | None, now_ms: int) -> float | None:
    """Return seconds since then; a clock that is behind makes nothing younger than now."""
    return None if then_ms is None else max(0, now_ms - then_ms) / 1000


def as_document(sight: FlowSight, now_ms: int) -> dict[str, Any]:
    """Return everything as dictionaries, lists and plain values; times as ISO 8601 in UTC, ages in seconds."""
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
