"""Predictions for records that disappear: who has not read them, and who still writes and reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.impact.facts import REPORTED_PRODUCER_MS
from klamm.impact.findings import Names, counted, moment, size
from klamm.lazy_dataclass import dataclass
from klamm.protocol.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from klamm.impact.facts import ClusterFacts, GroupFacts, ObservedTopic, PartitionFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Records at the start of a topic's logs that go, as bounds over all partitions."""

    max_bytes: int
    """Bytes of one replica that go at most."""
    min_bytes: int
    """Bytes that go at least."""
    max_records: int
    oldest_ms: int | None
    """Timestamp of the oldest record that goes, in milliseconds since the epoch. None if unknown."""
    new_starts: Mapping[int, int]
    """Highest possible start offset afterwards, by partition."""

    @property
    def figures(self) -> dict[str, int]:
        """Return the figures of a finding."""
        oldest = {} if self.oldest_ms is None else {"oldest_ms": self.oldest_ms}
        bounds = {"deleted_bytes": self.max_bytes, "deleted_bytes_min": self.min_bytes}
        return {**bounds, "deleted_records": self.max_records, **oldest}

    @property
    def text(self) -> str:
        """Return the amount for people."""
        since = "" if self.oldest_ms is None else f", the oldest of {moment(self.oldest_ms)}"
        exact = self.max_bytes == self.min_bytes
        bound = "" if exact else f" (at least {size(self.min_bytes)}: segments are not visible from outside)"
        amount = "" if exact else "up to about "
        return f"{amount}{size(self.max_bytes)} and {counted(self.max_records, 'record')}{bound}{since}"


def removal(topic: ObservedTopic, starts: Mapping[int, tuple[int, int]], min_bytes: int) -> Removal | None:
    """Return what goes if logs start later.

    Args:
        topic: The topic.
        starts: New start offset and deleted bytes, by partition.
        min_bytes: Bytes that go at least.

    Returns:
        None if no record goes.
    """
    moved = {p.partition: p for p in topic.partitions if starts.get(p.partition, (-1, 0))[0] > p.start_offset >= 0}
    if not moved:
        return None
    times = [p.oldest_ms for p in moved.values() if p.oldest_ms is not None]
    return Removal(
        max_bytes=sum(starts[index][1] for index in moved),
        min_bytes=min_bytes,
        max_records=sum(starts[index][0] - p.start_offset for index, p in moved.items()),
        oldest_ms=min(times, default=None),
        new_starts={index: starts[index][0] for index in moved},
    )


def whole_log(partition: PartitionFacts) -> tuple[int, int]:
    """Return the new start and the deleted bytes if every record of a partition is deleted."""
    return partition.end_offset, partition.size or 0


def losers(topic: ObservedTopic, new_starts: Mapping[int, int], groups: Iterable[GroupFacts]) -> dict[str, int]:
    """Return the records that groups with committed offsets would not read, by group."""
    lost: dict[str, int] = {}
    starts = {p.partition: p.start_offset for p in topic.partitions}
    for group in groups:
        for partition, new_start in new_starts.items():
            offset = group.offsets.get(TopicPartition(topic.name, partition), -1)
            if 0 <= offset < new_start:
                lost[group.name] = lost.get(group.name, 0) + new_start - max(offset, starts[partition])
    return lost


def unread(
    topic: ObservedTopic, new_starts: Mapping[int, int], facts: ClusterFacts, *, at_most: bool = False
) -> tuple[str, dict[str, Any]]:
    """Return a sentence, and ``figures`` and ``names``, about groups and mirrors that lose unread records.

    Args:
        topic: The topic.
        new_starts: New start offsets, by partition.
        facts: Facts of the cluster.
        at_most: Whether some records before the new starts may stay.
    """
    groups, mirrors = losers(topic, new_starts, facts.groups), losers(topic, new_starts, facts.mirrors)
    text, figures, names = "", dict[str, int](), dict[str, Names]()
    if groups:
        names["groups"], figures["unread_records"] = Names.of(groups), sum(groups.values())
        named = f"{counted(len(groups), 'group')} ({names['groups']})"
        bound = "up to " if at_most else ""
        text += f" {named} would not read {bound}{counted(sum(groups.values()), 'record')}."
    if mirrors:
        names["mirrors"], figures["unmirrored_records"] = Names.of(mirrors), sum(mirrors.values())
        named = f"{counted(len(mirrors), 'mirror flow')} ({names['mirrors']})"
        text += f" {named} would not copy up to {counted(sum(mirrors.values()), 'record')}."
    return text, {"figures": figures, "names": names}


def readers(topic: ObservedTopic, groups: Iterable[GroupFacts], *, only_active: bool = False) -> Names:
    """Return the groups with committed offsets in a topic."""
    indexes = [TopicPartition(topic.name, p.partition) for p in topic.partitions]
    return Names.of(g.name for g in groups if (g.is_active or not only_active) and any(i in g.offsets for i in indexes))


def active_producers(topic: ObservedTopic, now_ms: int) -> Names:
    """Return the producers that appended a batch in the last minutes or have an open transaction."""
    return Names.of(
        producer.name
        for partition in topic.partitions
        for producer in partition.producers or ()
        if producer.is_in_transaction or producer.last_timestamp_ms >= now_ms - REPORTED_PRODUCER_MS
    )
