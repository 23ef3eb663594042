"""Status of a flow as its target cluster shows it, and its derivation from records in internal topics. Pure."""

from __future__ import annotations

from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.lazy_dataclass import dataclass
from klamm.mirror.naming import is_heartbeats_topic
from klamm.mirror.records.requested_states import RequestedStates
from klamm.timestamps import calendar_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.mirror.records.formats import Checkpoint, Heartbeat, OffsetSync
    from klamm.mirror.records.source_offsets import ShardPlan
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.protocol.types import PartitionTuple


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

    @property
    def ends_are_equal(self) -> bool | None:
        """Whether both logs end at the same offset. None: one of the ends is unknown."""
        return None if self.source_end is None or self.target_end is None else self.source_end == self.target_end


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
class FlowStatus:
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
    requested: RequestedStates = RequestedStates()
    """States that an operator requested for the flow and its topics."""
    preserves_offsets: bool = False
    """Whether records keep their offsets. False without a properties file, which alone says so."""
    unknown: tuple[str, ...] = ()
    """Items that could not be determined, each with the reason."""

    @property
    def name(self) -> str:
        """Name of the flow, ``A->B``."""
        return f"{self.source}->{self.target}"

    @property
    def exists(self) -> bool:
        """Return whether the target shows any trace of the flow."""
        return bool(self.topics or self.heartbeats or self.groups or self.syncs or self.shards)

    @property
    def newest_record_ms(self) -> int | None:
        """Largest timestamp of all mirrored records, in milliseconds since the epoch. Heartbeats do not count."""
        return newest([topic.newest_record_ms for topic in self.topics if not topic.is_heartbeats])

    @property
    def source_offset_written_ms(self) -> int | None:
        """Time of the latest commit of a source offset, in milliseconds since the epoch."""
        return newest([partition.written_at_ms for topic in self.topics for partition in topic.partitions])

    @property
    def lag(self) -> int | None:
        """Number of source offsets that are not mirrored yet. None: unknown for at least one partition."""
        return total([topic.lag for topic in self.topics if not topic.is_heartbeats])


def total(numbers: Sequence[int | None]) -> int | None:
    """Return the sum, or None if the sequence is empty or contains an unknown number."""
    known_numbers = [number for number in numbers if number is not None]
    return sum(known_numbers) if known_numbers and len(known_numbers) == len(numbers) else None


def newest(times: Sequence[int | None]) -> int | None:
    """Return the latest time, or None if there is none."""
    return max((time for time in times if time is not None), default=None)


def age_s(then_ms: int | None, now_ms: int) -> float | None:
    """Return the seconds between both times, at least 0. Clocks of different machines may disagree."""
    return None if then_ms is None else max(0, now_ms - then_ms) / 1000


def as_document(status: FlowStatus, now_ms: int) -> dict[str, Any]:
    """Return the status as JSON values. Times are ISO 8601 in UTC, ages are in seconds.

    A timestamp outside the years 1 to 9999 has no time. Producers may choose any, such as microseconds.
    """
    return {
        "flow": status.name,
        "source": status.source,
        "target": status.target,
        "found": status.exists,
        "lag": status.lag,
        **_times("newest_record", status.newest_record_ms, now_ms),
        **_times("source_offset_written", status.source_offset_written_ms, now_ms),
        "heartbeats": [
            {
                "source": beat.source_alias,
                "target": beat.target_alias,
                **_times("written", beat.timestamp, now_ms),
            }
            for beat in status.heartbeats
        ],
        "preserves_offsets": status.preserves_offsets,
        "topics": [
            _topic_document(topic, now_ms, preserves_offsets=status.preserves_offsets) for topic in status.topics
        ],
        "groups": None
        if status.groups is None
        else [
            {
                "group": group.group,
                "topics": list(group.topics),
                "partitions": group.partitions,
                "to_read": group.to_read,
                **_times("newest_checkpoint", group.newest_checkpoint_ms, now_ms),
            }
            for group in status.groups
        ],
        "offset_syncs": None
        if status.syncs is None
        else {
            "topic": status.syncs.topic,
            "partitions": status.syncs.partitions,
            **_times("newest", status.syncs.newest_ms, now_ms),
        },
        "requested_state": status.requested.flow.value,
        "requested_topic_states": {topic: state.value for topic, state in sorted(status.requested.topics.items())},
        "exactly_once_shards": None
        if status.shards is None
        else {"count": status.shards.count, "before": list(status.shards.before)},
        "unknown": list(status.unknown),
    }


def _topic_document(topic: MirroredTopic, now_ms: int, *, preserves_offsets: bool) -> dict[str, Any]:
    """Return a topic as JSON values."""
    return {
        "topic": topic.topic,
        "remote_topic": topic.remote_topic,
        "exists": topic.exists,
        "lag": topic.lag,
        **_times("newest_record", topic.newest_record_ms, now_ms),
        "partitions": [
            {
                **{name: value for name, value in asdict(partition).items() if name != "written_at_ms"},
                **_times("written", partition.written_at_ms, now_ms),
                "lag": partition.lag,
                **({"ends_are_equal": partition.ends_are_equal} if preserves_offsets else {}),
            }
            for partition in topic.partitions
        ],
    }


def _times(name: str, then_ms: int | None, now_ms: int) -> dict[str, Any]:
    at = None if then_ms is None else calendar_time(then_ms)
    return {
        f"{name}_at": None if at is None else at.isoformat(timespec="milliseconds"),
        f"{name}_age_s": age_s(then_ms, now_ms),
    }


class ReportedSourceOffset(NamedTuple):
    """Committed source offset of a partition."""

    next_offset: int
    written_at_ms: int


@dataclass(slots=True, kw_only=True)
class TargetState:
    """Everything that was read from the target, in the order of reading."""

    topics: Mapping[str, int]
    """Number of partitions of all topics of the target, by name."""
    source_offsets: dict[PartitionTuple, ReportedSourceOffset] = field(default_factory=dict)
    """Committed source offsets, by source topic and partition."""
    plan: ShardPlan | None = None
    requested: RequestedStates = RequestedStates()
    heartbeats: list[Heartbeat] = field(default_factory=list)
    """Heartbeats whose source is the flow's source."""
    checkpoints: list[tuple[Checkpoint, int]] | None = None
    """Checkpoints with their record timestamps (``syncs`` likewise). None: there is no checkpoints topic."""
    syncs_topic: str | None = None
    syncs: list[tuple[OffsetSync, int]] = field(default_factory=list)
    target_ends: dict[PartitionTuple, int] = field(default_factory=dict)
    newest_records: dict[str, int] = field(default_factory=dict)
    """Largest record timestamp, by remote topic."""
    source_ends: Mapping[PartitionTuple, int] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    def remote_topics(self, flow: FlowSettings) -> dict[str, str]:
        """Return the remote topic by source topic, for topics with a source offset or with a remote topic's name."""
        out = {topic: self._remote(flow, topic) for topic, _ in self.source_offsets}
        if flow.keeps_names:
            return out  # a name does not show its source
        for name in self.topics:
            upstream = flow.policy.upstream_topic(name)
            is_ours = upstream and flow.policy.topic_source(name) == flow.source_alias
            if is_ours and upstream and not flow.policy.is_internal_topic(name):
                out.setdefault(upstream, name)
        return out

    def _remote(self, flow: FlowSettings, topic: str) -> str:
        remote = flow.remote_topic(topic)
        # Without a properties file, the replication policy is a guess. The topic may have the same name on both sides.
        return topic if remote not in self.topics and topic in self.topics else remote


def flow_status(flow: FlowSettings, state: TargetState, selected: frozenset[str], *, any_target: bool) -> FlowStatus:
    """Return the status of a flow.

    Args:
        flow: Settings of the flow, or those that could be derived without a properties file.
        state: Everything that was read from the target.
        selected: Topics of the source that the flow mirrors. Empty if they are unknown.
        any_target: Whether the target's alias is unknown. The heartbeats then supply it, if all of them agree.
    """
    target = flow.target_alias
    beats = sorted(state.heartbeats, key=lambda beat: (beat.target_alias != target, beat.target_alias))
    if any_target and len({beat.target_alias for beat in beats}) == 1:
        target = beats[0].target_alias
    if not beats:
        state.unknown.append(
            f"whether a mirror runs: the topic heartbeats has no heartbeats of {flow.source.alias} (no mirror ran, or "
            "emit.heartbeats.enabled=false)"
        )
    if state.plan is None and state.source_offsets:
        state.unknown.append(
            "exactly once: there is no shard plan of klamm; it is unknown whether MirrorMaker 2 used transactions"
        )
    remote_topics = {topic: flow.remote_topic(topic) for topic in selected} | state.remote_topics(flow)
    return FlowStatus(
        source=flow.source.alias,
        target=target,
        topics=_topics(flow, state, remote_topics),
        heartbeats=tuple(beats),
        groups=_groups(state),
        syncs=_syncs(state),
        shards=None if state.plan is None else Shards(count=state.plan.shards, before=state.plan.before),
        requested=state.requested,
        preserves_offsets=flow.preserves_offsets,
        unknown=tuple(state.unknown),
    )


def _topics(flow: FlowSettings, state: TargetState, remote_topics: Mapping[str, str]) -> tuple[MirroredTopic, ...]:
    numbers: dict[str, set[int]] = {
        topic: set(range(state.topics.get(remote, 0))) for topic, remote in remote_topics.items()
    }
    for topic, number in (*state.source_offsets, *state.source_ends):
        if topic in numbers:
            numbers[topic].add(number)
    return tuple(_topic(flow, state, topic, remote_topics[topic], sorted(numbers[topic])) for topic in sorted(numbers))


def _topic(flow: FlowSettings, state: TargetState, topic: str, remote: str, numbers: Sequence[int]) -> MirroredTopic:
    """Return the status of a topic from the offsets that were state."""
    partitions = []
    for number in numbers:
        source_offset = state.source_offsets.get((topic, number))
        partitions.append(
            MirroredPartition(
                partition=number,
                next_offset=None if source_offset is None else source_offset.next_offset,
                written_at_ms=None if source_offset is None else source_offset.written_at_ms,
                target_end=state.target_ends.get((remote, number)),
                source_end=state.source_ends.get((topic, number)),
            )
        )
    return MirroredTopic(
        topic=topic,
        remote_topic=remote,
        exists=remote in state.topics,
        newest_record_ms=state.newest_records.get(remote),
        partitions=tuple(partitions),
        is_heartbeats=is_heartbeats_topic(flow.policy, topic),
    )


def _groups(state: TargetState) -> tuple[CheckpointedGroup, ...] | None:
    if state.checkpoints is None:
        return None
    by_group: dict[str, list[tuple[Checkpoint, int]]] = {}
    for checkpoint, written_at_ms in state.checkpoints:
        by_group.setdefault(checkpoint.group, []).append((checkpoint, written_at_ms))
    return tuple(_group(state, group, by_group[group]) for group in sorted(by_group))


def _group(state: TargetState, group: str, checkpoints: list[tuple[Checkpoint, int]]) -> CheckpointedGroup:
    """Return the status of a group from its checkpoints."""
    ends = [state.target_ends.get((checkpoint.topic, checkpoint.partition)) for checkpoint, _ in checkpoints]
    return CheckpointedGroup(
        group=group,
        topics=tuple(sorted({checkpoint.topic for checkpoint, _ in checkpoints})),
        partitions=len(checkpoints),
        newest_checkpoint_ms=max(at for _, at in checkpoints),
        to_read=total(
            [
                None if end is None else max(0, end - checkpoint.downstream_offset)
                for end, (checkpoint, _) in zip(ends, checkpoints, strict=True)
            ]
        ),
    )


def _syncs(state: TargetState) -> OffsetSyncs | None:
    if state.syncs_topic is None:
        return None
    return OffsetSyncs(
        topic=state.syncs_topic, partitions=len(state.syncs), newest_ms=newest([at for _, at in state.syncs])
    )
