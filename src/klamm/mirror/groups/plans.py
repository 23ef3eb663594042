"""Pure functions that turn committed offsets and offset syncs into checkpoints and target commits."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from klamm.admin import OffsetAndMetadata
from klamm.mirror.naming import original_topic
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.records.formats import Checkpoint
from klamm.mirror.records.offset_translation import Translation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from klamm.mirror.cluster_admin import CommittedOffsets
    from klamm.mirror.groups.stores import SyncStore
    from klamm.mirror.progress.flow_progress import PartitionStatus
    from klamm.mirror.records.internal_topic import LogBounds
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.protocol.types import PartitionTuple


class Translated(NamedTuple):
    """Translation of one offset of a group."""

    topic: str
    partition: int
    checkpoint: Checkpoint | None
    """Checkpoint for the offset. None: it cannot be translated, see ``reason``."""
    again_at_most: int
    reason: str


def remote_topic_of(flow: FlowSettings, topic: str) -> str:
    """Return the name of a source topic on the target: its original name if it was mirrored from there."""
    if flow.policy.topic_source(topic) == flow.target_alias:
        return original_topic(flow.policy, topic)
    return flow.remote_topic(topic)


def accepted(flow: FlowSettings, offsets: CommittedOffsets) -> dict[PartitionTuple, OffsetAndMetadata]:
    """Return the offsets on topics that the topic filter accepts. Negative offsets mean no offset and are left out.

    As in MirrorMaker, a topic that the flow accepts but does not mirror, such as one that was mirrored from the target,
    has no checkpoint because it has no offset syncs. A flow that keeps offsets has none for any topic, so it leaves out
    the topics that it does not mirror.
    """
    wanted = flow.selection.topic_filter.should_replicate_topic
    return {
        where: committed
        for where, committed in offsets.items()
        if committed.offset >= 0
        and wanted(where[0])
        and (not flow.preserves_offsets or flow.selection.includes(where[0]))
    }


class Logs(NamedTuple):
    """Bounds of the partitions of a group on both clusters. Those that do not exist or have no leader are missing."""

    target: Mapping[PartitionTuple, LogBounds]
    """Requested before ``source``, so that no record that the source received in between is skipped."""
    source: Mapping[PartitionTuple, LogBounds]
    next_offsets: Mapping[PartitionTuple, int] = MappingProxyType({})
    """Next source offset to mirror, of partitions from ``ends_without_syncs``."""
    handed_over: Mapping[PartitionTuple, int] = MappingProxyType({})
    """Log ends at which remote partitions were handed over to brokers of the target, by source partition. -1: unknown.

    From there on, producers write other records than those of the source.
    """
    unequal: Mapping[PartitionTuple, str] = MappingProxyType({})
    """Reasons why offsets may not be equal although the flow keeps them, by source partition."""


def not_equal(row: PartitionStatus | None, flow: FlowSettings) -> str:
    """Return why a remote partition of a flow that keeps offsets may not equal its source. Empty: no reason is known.

    Args:
        row: Progress of the partition. None: no task has reported it yet.
        flow: Settings of the flow.
    """
    if row is not None and row.state is CopyState.STOPPED:
        return f"its copying stopped, so its offsets may not be equal any more: {row.reason}"
    if flow.replica is not None and (row is None or row.end_offset < 0 or row.state is CopyState.WAITING):
        # A new task does not know the reason for which the one before stopped, until it has read the source. In flows
        # that produce, ``EqualityCheck`` compares the logs without the tasks.
        reason = "" if row is None else row.reason
        return f"it is not verified yet that offsets are equal: {reason or 'the source was not read yet'}"
    return ""


def ends_without_syncs(
    offsets: CommittedOffsets, translator: SyncStore, source: Mapping[PartitionTuple, LogBounds]
) -> dict[PartitionTuple, int]:
    """Return the source ends that a group has reached without an offset sync: perhaps there was no record to mirror.

    A log may have control batches, aborted transactions or compacted batches alone. Empty logs are left out.
    """
    return {
        where: bounds.end
        for where, committed in offsets.items()
        if (bounds := source.get(where)) is not None
        and not bounds.is_empty
        and committed.offset == bounds.end
        and translator.translate(*where, committed.offset, bounds.end) is None
    }


def translate_group(
    flow: FlowSettings, group: str, offsets: CommittedOffsets, translator: SyncStore, logs: Logs
) -> list[Translated]:
    """Translate the offsets of a group.

    Args:
        flow: Flow with the naming policy and the filters.
        group: Group id.
        offsets: Committed offsets on topics that the topic filter accepts.
        translator: Offset syncs of the flow.
        logs: Bounds of these partitions.
    """
    return [
        _translate(flow, group, where, committed, translator=translator, logs=logs)
        for where, committed in sorted(offsets.items())
    ]


def _translate(
    flow: FlowSettings,
    group: str,
    where: PartitionTuple,
    committed: OffsetAndMetadata,
    *,
    translator: SyncStore,
    logs: Logs,
) -> Translated:
    topic, partition = where
    remote = (remote_topic_of(flow, topic), partition)

    def without(reason: str) -> Translated:  # the log has equal reasons of many partitions in one line
        return Translated(topic, partition, None, 0, reason)

    source = logs.source.get(where)
    translation = translator.translate(topic, partition, committed.offset, None if source is None else source.end)
    if translation is None:
        translation = _without_syncs(flow, where, committed.offset, logs)
    if translation is None:
        return without(_untranslated(flow, topic, is_known=translator.knows(topic, partition)))
    bounds = logs.target.get(remote)
    if bounds is None:
        return without(f"its partition does not exist on cluster {flow.target.alias}, or has no leader")
    if (handed_over := logs.handed_over.get(where)) is not None:
        if handed_over < 0:
            return without(f"brokers lead {remote[0]}, and the offset at which klamm handed it over is unknown")
        translation = translation._replace(downstream=min(translation.downstream, handed_over))
    if translation.downstream > bounds.end:
        return without(
            f"offset {committed.offset} is not mirrored yet: {remote[0]}-{partition} ends at {bounds.end}"
            if flow.preserves_offsets
            else f"offset {committed.offset} would be {translation.downstream}, beyond the end {bounds.end} of "
            f"{remote[0]}-{partition}: was the topic recreated?"
        )
    if where in logs.unequal:
        return without(logs.unequal[where])
    checkpoint = Checkpoint(
        group=group,
        topic=remote[0],
        partition=partition,
        upstream_offset=committed.offset,
        downstream_offset=translation.downstream,
        metadata=committed.metadata,
    )
    return Translated(topic, partition, checkpoint, translation.again_at_most, "")


def _untranslated(flow: FlowSettings, topic: str, *, is_known: bool) -> str:
    """Return why the offset syncs do not translate an offset.

    Args:
        flow: Settings of the flow.
        topic: Source topic that the topic filter accepts.
        is_known: Whether there are offset syncs of the partition.
    """
    if is_known:
        return "its offset is older than every offset sync"
    if flow.selection.includes(topic):
        return "nothing was mirrored yet, according to the offset syncs"
    is_internal = flow.policy.is_internal_topic(topic)
    why = "is internal" if is_internal else f"was mirrored from cluster {flow.target.alias}"
    return f"the topic {why}, so {flow.name} does not mirror it: {flow.name}.topics.exclude leaves its offsets out"


def _without_syncs(flow: FlowSettings, where: PartitionTuple, offset: int, logs: Logs) -> Translation | None:
    """Translate an offset on a source partition of which nothing remains to be mirrored.

    A group that has read everything continues at the end of the remote partition, which only the mirror writes. If the
    remote topic has the name of the source topic, producers may have moved already: the group reads their records.
    """
    topic, partition = where
    source, target = logs.source.get(where), logs.target.get((flow.remote_topic(topic), partition))
    if source is None or target is None or offset > source.end or not flow.selection.includes(topic):
        return None
    if not source.is_empty and logs.next_offsets.get(where, -1) < source.end:
        return None
    if offset == source.end and flow.remote_topic(topic) != topic:
        return Translation(target.end, 0)
    return Translation(target.first, target.end - target.first)


def is_more_recent(checkpoint: Checkpoint, last: Checkpoint | None) -> bool:
    """Return whether to write a checkpoint (Kafka's ``MirrorCheckpointTask.checkpointIsMoreRecent``).

    True for the first checkpoint, if the group went back on the source, or if it goes forward on the target.
    """
    return (
        last is None
        or checkpoint.upstream_offset < last.upstream_offset
        or checkpoint.downstream_offset > last.downstream_offset
    )


def offsets_to_commit(
    checkpoints: Iterable[Checkpoint], current: CommittedOffsets, bounds: Mapping[PartitionTuple, LogBounds]
) -> dict[PartitionTuple, OffsetAndMetadata]:
    """Return the offsets to commit for a group on the target. They only move forward.

    Args:
        checkpoints: Newest checkpoint of each partition, none of them beyond the end of its log.
        current: Committed offsets of the group on the target. Overwritten are negative ones, and those beyond the end
            of the log, which belong to a topic that was deleted.
        bounds: Bounds of the remote partitions, requested after ``current``. Of others no offset is committed.
    """
    out = {}
    for checkpoint in checkpoints:
        where = (checkpoint.topic, checkpoint.partition)
        if where not in bounds:
            continue
        now = current.get(where)
        if now is None or not checkpoint.downstream_offset <= now.offset <= bounds[where].end:
            out[where] = OffsetAndMetadata(checkpoint.downstream_offset, metadata=checkpoint.metadata)
    return out
