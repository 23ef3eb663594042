"""Conversion of the records found on a target into the status of a flow. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from klamm.mirror.naming import is_heartbeats_topic
from klamm.mirror.status.model import (
    CheckpointedGroup,
    FlowSight,
    MirroredPartition,
    MirroredTopic,
    OffsetSyncs,
    Shards,
    newest,
    total,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.mirror.records.formats import Checkpoint, Heartbeat, OffsetSync
    from klamm.mirror.records.source_offsets import ShardPlan
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.protocol.types import PartitionTuple


class ReportedSourceOffset(NamedTuple):
    """Committed source offset of a partition."""

    next_offset: int
    written_at_ms: int


@dataclass(slots=True, kw_only=True)
class Found:
    """Everything that was read from the target, in the order of reading."""

    topics: Mapping[str, int]
    """Number of partitions of all topics of the target, by name."""
    positions: dict[PartitionTuple, ReportedSourceOffset] = field(default_factory=dict)
    """Committed source offsets, by source topic and partition."""
    plan: ShardPlan | None = None
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
        out = {topic: self._remote(flow, topic) for topic, _ in self.positions}
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


def piece_together(flow: FlowSettings, found: Found, selected: frozenset[str], *, any_target: bool) -> FlowSight:
    """Return the status of a flow.

    Args:
        flow: Settings of the flow, or those that could be derived without a properties file.
        found: Everything that was read from the target.
        selected: Topics of the source that the flow mirrors. Empty if they are unknown.
        any_target: Whether the target's alias is unknown. The heartbeats then supply it, if all of them agree.
    """
    target = flow.target_alias
    beats = sorted(found.heartbeats, key=lambda beat: (beat.target_alias != target, beat.target_alias))
    if any_target and len({beat.target_alias for beat in beats}) == 1:
        target = beats[0].target_alias
    if not beats:
        found.unknown.append(
            f"whether a mirror runs: the topic heartbeats has no heartbeats of {flow.source.alias} (no mirror ran, or "
            "emit.heartbeats.enabled=false)"
        )
    if found.plan is None and found.positions:
        found.unknown.append(
            "exactly once: there is no shard plan of klamm; it is unknown whether MirrorMaker 2 used transactions"
        )
    remote_topics = {topic: flow.remote_topic(topic) for topic in selected} | found.remote_topics(flow)
    return FlowSight(
        source=flow.source.alias,
        target=target,
        topics=_topics(flow, found, remote_topics),
        heartbeats=tuple(beats),
        groups=_groups(found),
        syncs=_syncs(found),
        shards=None if found.plan is None else Shards(count=found.plan.shards, before=found.plan.before),
        unknown=tuple(found.unknown),
    )


def _topics(flow: FlowSettings, found: Found, remote_topics: Mapping[str, str]) -> tuple[MirroredTopic, ...]:
    numbers: dict[str, set[int]] = {
        topic: set(range(found.topics.get(remote, 0))) for topic, remote in remote_topics.items()
    }
    for topic, number in (*found.positions, *found.source_ends):
        if topic in numbers:
            numbers[topic].add(number)
    return tuple(_topic(flow, found, topic, remote_topics[topic], sorted(numbers[topic])) for topic in sorted(numbers))


def _topic(flow: FlowSettings, found: Found, topic: str, remote: str, numbers: Sequence[int]) -> MirroredTopic:
    """Return the status of a topic from the offsets that were found."""
    partitions = []
    for number in numbers:
        position = found.positions.get((topic, number))
        partitions.append(
            MirroredPartition(
                partition=number,
                next_offset=None if position is None else position.next_offset,
                written_at_ms=None if position is None else position.written_at_ms,
                target_end=found.target_ends.get((remote, number)),
                source_end=found.source_ends.get((topic, number)),
            )
        )
    return MirroredTopic(
        topic=topic,
        remote_topic=remote,
        exists=remote in found.topics,
        newest_record_ms=found.newest_records.get(remote),
        partitions=tuple(partitions),
        is_heartbeats=is_heartbeats_topic(flow.policy, topic),
    )


def _groups(found: Found) -> tuple[CheckpointedGroup, ...] | None:
    if found.checkpoints is None:
        return None
    by_group: dict[str, list[tuple[Checkpoint, int]]] = {}
    for checkpoint, written_at_ms in found.checkpoints:
        by_group.setdefault(checkpoint.group, []).append((checkpoint, written_at_ms))
    return tuple(_group(found, group, by_group[group]) for group in sorted(by_group))


def _group(found: Found, group: str, checkpoints: list[tuple[Checkpoint, int]]) -> CheckpointedGroup:
    """Return the status of a group from its checkpoints."""
    ends = [found.target_ends.get((one.topic, one.partition)) for one, _ in checkpoints]
    return CheckpointedGroup(
        group=group,
        topics=tuple(sorted({one.topic for one, _ in checkpoints})),
        partitions=len(checkpoints),
        newest_checkpoint_ms=max(at for _, at in checkpoints),
        to_read=total(
            [
                None if end is None else max(0, end - one.downstream_offset)
                for end, (one, _) in zip(ends, checkpoints, strict=True)
            ]
        ),
    )


def _syncs(found: Found) -> OffsetSyncs | None:
    if found.syncs_topic is None:
        return None
    return OffsetSyncs(
        topic=found.syncs_topic, partitions=len(found.syncs), newest_ms=newest([at for _, at in found.syncs])
    )
