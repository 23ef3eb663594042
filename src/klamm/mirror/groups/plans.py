"""What becomes of a group's offsets: pure functions from what is known to checkpoints and commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from klamm.mirror.formats import Checkpoint
from klamm.mirror.model import Committed
from klamm.mirror.naming import original_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from klamm.mirror.groups.copied_runs import Translation
    from klamm.mirror.model import Partition
    from klamm.mirror.settings.flow import FlowSettings


class Translator(Protocol):
    """What is known of the offsets on both sides."""

    def knows(self, topic: str, partition: int) -> bool:
        """Tell whether anything is known of a partition of the source."""
        ...

    def translate(self, topic: str, partition: int, upstream: int) -> Translation | None:
        """Return where the record of a source offset is on the target; None: it can not be said."""
        ...


class Translated(NamedTuple):
    """One offset of a group."""

    topic: str
    partition: int
    checkpoint: Checkpoint | None
    """None: there is a reason."""
    again_at_most: int
    reason: str


def remote_topic_of(flow: FlowSettings, topic: str) -> str:
    """Return what a topic of the source is called on the target: its old name, when it came from there."""
    if flow.policy.topic_source(topic) == flow.target.alias:
        return original_topic(flow.policy, topic)
    return flow.remote_topic(topic)


def accepted(flow: FlowSettings, offsets: Mapping[Partition, Committed]) -> dict[Partition, Committed]:
    """Return the offsets on topics that the topic filter accepts; one below 0 stands for none."""
    wanted = flow.selection.topic_filter.should_replicate_topic
    return {where: found for where, found in offsets.items() if found.offset >= 0 and wanted(where[0])}


def translate_group(
    flow: FlowSettings,
    group: str,
    offsets: Mapping[Partition, Committed],
    translator: Translator,
    ends: Mapping[Partition, int],
) -> list[Translated]:
    """Translate the offsets of a group.

    Args:
        flow: whose names and filters count.
        group: its id.
        offsets: on topics that the filter accepts.
        translator: what the offset syncs say.
        ends: log end offsets of the target's partitions; one that does not exist or has no leader is missing.
    """
    return [
        _translate(flow, group, where, found, translator=translator, ends=ends)
        for where, found in sorted(offsets.items())
    ]


def _translate(
    flow: FlowSettings,
    group: str,
    where: Partition,
    found: Committed,
    *,
    translator: Translator,
    ends: Mapping[Partition, int],
) -> Translated:
    topic, partition = where
    remote = (remote_topic_of(flow, topic), partition)

    def without(reason: str) -> Translated:
        return Translated(topic, partition, None, 0, reason)

    if not translator.knows(topic, partition):
        return without(f"nothing of {topic}-{partition} was mirrored yet, as far as the offset syncs tell")
    translation = translator.translate(topic, partition, found.offset)
    if translation is None:
        return without(f"offset {found.offset} is older than every offset sync of {topic}-{partition}")
    end = ends.get(remote)
    if end is None:
        return without(f"{remote[0]}-{partition} does not exist on cluster {flow.target.alias}, or has no leader")
    if translation.downstream > end:
        return without(
            f"offset {found.offset} would be {translation.downstream}, beyond the end {end} of "
            f"{remote[0]}-{partition}: was it made anew?"
        )
    checkpoint = Checkpoint(
        group=group,
        topic=remote[0],
        partition=partition,
        upstream_offset=found.offset,
        downstream_offset=translation.downstream,
        metadata=found.metadata,
    )
    return Translated(topic, partition, checkpoint, translation.again_at_most, "")


def is_more_recent(checkpoint: Checkpoint, last: Checkpoint | None) -> bool:
    """Tell whether a checkpoint is to be written (Kafka's ``MirrorCheckpointTask.checkpointIsMoreRecent``).

    It is when it is the first, when the group went back on the source, or when it goes forward on the target.
    """
    return (
        last is None
        or checkpoint.upstream_offset < last.upstream_offset
        or checkpoint.downstream_offset > last.downstream_offset
    )


def offsets_to_commit(
    checkpoints: Iterable[Checkpoint], current: Mapping[Partition, Committed]
) -> dict[Partition, Committed]:
    """Return what a group of the target is given: only forwards, never below what it has.

    Args:
        checkpoints: the newest of each partition.
        current: what the group has on the target; one below 0 is overwritten.
    """
    out = {}
    for checkpoint in checkpoints:
        where = (checkpoint.topic, checkpoint.partition)
        now = current.get(where)
        if now is None or now.offset < 0 or now.offset < checkpoint.downstream_offset:
            out[where] = Committed(checkpoint.downstream_offset, checkpoint.metadata)
    return out
