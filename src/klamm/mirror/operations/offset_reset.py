"""Reset of source offsets: where the copying of stopped topics continues (compare KIP-875)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.kafka_client.data.cluster import Cluster
from klamm.lazy_dataclass import dataclass
from klamm.mirror.copy.settings import copy_settings
from klamm.mirror.records.source_offsets import SourceOffset, resume_offset

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from klamm.mirror.copy.source_offset_store import SourceOffsetStore, StoredSourceOffsets
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.protocol.types import PartitionTuple


class OffsetResetError(Exception):
    """The offsets cannot be reset as requested. The message names the partition."""


class ResetTo(StrEnum):
    """Kinds of new offsets, as of kafka-consumer-groups.sh."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    SHIFT = "shift"
    """Current offset plus a number."""
    TIMESTAMP = "timestamp"
    """First record not older than a time in milliseconds since the epoch, or the log end."""


class TopicPartitions(NamedTuple):
    """Source topic, or some of its partitions."""

    topic: str
    partitions: tuple[int, ...] | None = None
    """None: all."""

    @classmethod
    def of(cls, plain: Any) -> TopicPartitions:
        """Return the topic of its JSON form.

        Raises:
            OffsetResetError: It is not one.
        """
        match plain:
            case {"topic": str(topic), "partitions": None}:
                return cls(topic)
            case {"topic": str(topic), "partitions": [*numbers]} if all(type(number) is int for number in numbers):
                return cls(topic, tuple(numbers))
            case _:
                raise OffsetResetError(f"{plain!r}: expected a topic and its partitions")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetChange:
    """Change of one source offset."""

    topic: str
    """Source topic."""
    partition: int
    remote_topic: str
    current_offset: int | None
    """Next source offset to copy before the change. None: there is no source offset."""
    new_offset: int
    log_start_offset: int
    """First offset of the source partition; ``log_end_offset`` is its end."""
    log_end_offset: int
    requested_offset: int
    """New offset before it was limited to the log of the source."""

    @property
    def effect(self) -> str:
        """Effect of the change on the remote topic."""
        limited = ""
        if self.requested_offset != self.new_offset:
            limited = f"; {self.requested_offset} is outside the log of the source"
        moved = self.new_offset - (self.log_start_offset if self.current_offset is None else self.current_offset)
        if self.current_offset is None:
            return f"the first offset is stored{limited}"
        if moved < 0:
            return f"{_offsets_are(-moved)} mirrored again, as duplicates in {self.remote_topic}{limited}"
        return f"{_offsets_are(moved)} not mirrored{limited}" if moved else f"no change{limited}"


def _offsets_are(count: int) -> str:
    return "1 offset is" if count == 1 else f"{count} offsets are"


class SourceOffsetReset:
    """Plan of a reset, and its execution. Used once."""

    def __init__(self, flow: FlowSettings, stored: StoredSourceOffsets) -> None:
        """Create a reset.

        Args:
            flow: Settings of the flow.
            stored: Current source offsets.
        """
        self._flow = flow
        self._stored = stored
        self.absent: tuple[str, ...] = ()
        """Source topics that the last plan of all topics left out, because the source does not list them."""

    def plan(self, topics: Sequence[TopicPartitions], to: ResetTo, value: int) -> list[OffsetChange]:
        """Return the change of each partition. Nothing is written.

        Args:
            topics: Source topics that the flow selects. Empty: all of them that have source offsets and exist.
            to: Kind of the new offset.
            value: Offset, number or time in milliseconds, by the kind.

        Raises:
            OffsetResetError: The flow does not select a topic. A partition does not exist, or has no source offset to
                shift.
            ConnectionLostError: The source is unavailable.
        """
        names = partitions_by_topic(topics) or dict.fromkeys(reset_topics(self._flow, self._stored))
        for name in names:
            if not self._flow.selection.includes(name):
                raise OffsetResetError(f"topic {name} is not selected by the flow; name topics as on the source")
        with Cluster.connected(copy_settings(self._flow).source, sorted(names)) as source:
            if not topics:  # the offsets of deleted topics stay stored
                self.absent = tuple(sorted(names.keys() - source.topics.keys()))
                names = {name: numbers for name, numbers in names.items() if name in source.topics}
            partitions = list(_partitions(source, names))
            bounds = source.log_bounds(partitions)
            times = source.list_offsets(partitions, value) if to is ResetTo.TIMESTAMP else {}
        changes = []
        for key in partitions:
            if key not in bounds or (to is ResetTo.TIMESTAMP and key not in times):
                raise OffsetResetError(f"{key[0]}-{key[1]} has no leader on the source now; retry")
            at = times.get(key, -1)  # -1: all records are older
            requested = self._requested(key, to, value, bounds[key].start, bounds[key].stop if at < 0 else at)
            changes.append(self._change(key, requested, bounds[key]))
        return changes

    def _current(self, key: PartitionTuple) -> int | None:
        last_mirrored = self._stored.offsets.get(key)
        return None if last_mirrored is None else resume_offset(last_mirrored)

    def _requested(self, key: PartitionTuple, to: ResetTo, value: int, first: int, latest: int) -> int:
        match to:
            case ResetTo.EARLIEST:
                return first
            case ResetTo.LATEST | ResetTo.TIMESTAMP:
                return latest
            case ResetTo.OFFSET:
                return value
            case ResetTo.SHIFT:
                if (current := self._current(key)) is None:
                    raise OffsetResetError(f"{key[0]}-{key[1]} has no source offset that could be shifted")
                return current + value

    def _change(self, key: PartitionTuple, requested: int, bounds: range) -> OffsetChange:
        return OffsetChange(
            topic=key[0],
            partition=key[1],
            remote_topic=self._flow.remote_topic(key[0]),
            current_offset=self._current(key),
            new_offset=min(max(requested, bounds.start), bounds.stop),
            log_start_offset=bounds.start,
            log_end_offset=bounds.stop,
            requested_offset=requested,
        )

    def execute(self, store: SourceOffsetStore, changes: Iterable[OffsetChange]) -> None:
        """Write the new source offsets. The stored topic ids are deleted: the offsets belong to the current topics.

        Raises:
            ConnectionLostError: Not all were acknowledged. Repeating the call is safe.
        """
        moved = {(change.topic, change.partition): SourceOffset(change.new_offset) for change in changes}
        store.write(moved, dict.fromkeys(moved.keys() & self._stored.topic_ids.keys()))


def reset_topics(flow: FlowSettings, stored: StoredSourceOffsets) -> set[str]:
    """Return the source topics that a reset of the whole flow changes. Other flows may share its offsets topic."""
    return {topic for topic, _ in stored.offsets if flow.selection.includes(topic)}


def partitions_by_topic(topics: Sequence[TopicPartitions]) -> dict[str, tuple[int, ...] | None]:
    """Return the partitions of each topic, which may be named several times. None: all."""
    names: dict[str, tuple[int, ...] | None] = {}
    for each in topics:
        before = names.get(each.topic, ())
        names[each.topic] = None if before is None or each.partitions is None else (*before, *each.partitions)
    return names


def _partitions(source: Cluster, names: Mapping[str, tuple[int, ...] | None]) -> Iterable[PartitionTuple]:
    for topic, numbers in sorted(names.items()):
        state = source.topics.get(topic)
        if state is None:
            raise OffsetResetError(f"topic {topic} does not exist on the source")
        for number in sorted(state.partitions) if numbers is None else sorted(set(numbers)):
            if number not in state.partitions:
                raise OffsetResetError(f"{topic}-{number} does not exist on the source")
            yield topic, number
