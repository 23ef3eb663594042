"""Contents of the offset-syncs topic, the checkpoints topic and the source offsets."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.errors import CLUSTER_ERRORS
from klamm.mirror.records.formats import Checkpoint, FormatError, OffsetSync
from klamm.mirror.records.internal_topic import TopicGoneError
from klamm.mirror.records.offset_translation import PartitionTranslation, RunSync, SyncPair, Translation
from klamm.mirror.records.source_offsets import resume_offset
from klamm.protocol.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from klamm.mirror.records.internal_topic import ControlConnection, LogBounds
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.protocol.types import PartitionTuple

logger = logging.getLogger(__name__)


class DamagedRecords:
    """Records of an internal topic that could not be read and are ignored."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.count = 0
        self.latest = ""
        """What is wrong with the latest one, and where it is. Empty without any."""

    def add(self, offset: int, error: FormatError) -> None:
        """Count and log one record."""
        self.count += 1
        self.latest = f"{self._topic}: ignored the record at offset {offset}: {error}"
        logger.warning("%s", self.latest)


class SyncStore:
    """Offset syncs of one flow. Confined to one thread."""

    def __init__(self, reader: ControlConnection, topic: str) -> None:
        self._reader = reader
        self._topic = topic
        self.damaged: Final = DamagedRecords(topic)
        self._next_offset = 0
        self._partitions: dict[tuple[str, int], PartitionTranslation] = {}

    def refresh(self, *, newest_only: bool = False) -> None:
        """Read the new records of the topic.

        Args:
            newest_only: Whether only the newest sync of each partition counts. Needed if the earlier checkpoints are
                unknown: an older sync might translate to an offset before them.

        Raises:
            TopicGoneError: The topic does not exist or was recreated. In the second case the next call reads all of it.
            ConnectionLostError: The topic cannot be read to its end now. Nothing was added.
        """
        try:
            records, next_offset = self._reader.read(self._topic, self._next_offset)
        except TopicGoneError:
            self._next_offset = 0
            self._partitions.clear()
            raise
        for record in records:
            self._take(record, newest_only=newest_only)
        self._next_offset = next_offset

    def _take(self, record: Record, *, newest_only: bool) -> None:
        try:
            sync = OffsetSync.parse(record.key or b"", record.value or b"")
        except FormatError as error:
            self.damaged.add(record.offset, error)
            return
        key = (sync.topic, sync.partition)
        run = RunSync.of(SyncPair(sync.upstream_offset, sync.downstream_offset), record.headers)
        translation = self._partitions.get(key)
        if translation is None or newest_only:
            self._partitions[key] = PartitionTranslation(run)
        else:
            translation.add(run)

    def knows(self, topic: str, partition: int) -> bool:
        """Return whether a partition has an offset sync."""
        return (topic, partition) in self._partitions

    def translate(self, topic: str, partition: int, upstream: int, source_end: int | None = None) -> Translation | None:
        """Return the translation of a source offset. None: the partition has no sync that is old enough.

        Args:
            topic: Source topic.
            partition: Number of the partition.
            upstream: Offset of a group.
            source_end: Log end of the source partition. None: unknown.
        """
        translation = self._partitions.get((topic, partition))
        return None if translation is None else translation.translate(upstream, source_end)

    def would_skip(self, topic: str, partition: int, checkpoint: Checkpoint) -> bool:
        """Return whether the syncs of a source partition show that a checkpoint is of a remote topic that was deleted.

        Its target offset is then after a record that its group has not read.
        """
        translation = self._partitions.get((topic, partition))
        return translation is not None and translation.would_skip(
            checkpoint.upstream_offset, checkpoint.downstream_offset
        )


class EqualOffsets(SyncStore):
    """Translation of a flow that keeps offsets: every source offset is the same on the target."""

    def __init__(self, reader: ControlConnection) -> None:
        super().__init__(reader, "")

    def refresh(self, *, newest_only: bool = False) -> None:
        """Do nothing: there are no offset syncs."""

    def knows(self, topic: str, partition: int) -> bool:
        """Return True."""
        return True

    def translate(self, topic: str, partition: int, upstream: int, source_end: int | None = None) -> Translation | None:
        """Return the same offset."""
        return Translation(upstream, 0)


class CheckpointStore:
    """Newest checkpoint of each group and partition. Confined to one thread."""

    def __init__(
        self,
        reader: ControlConnection,
        writer: ControlConnection,
        topic: str,
        *,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._topic = topic
        self._wanted = wanted
        self.damaged: Final = DamagedRecords(topic)
        self._newest: dict[str, dict[tuple[str, int], Checkpoint]] = {}
        """Newest checkpoints by group, then by remote topic and partition number."""

    def load(self) -> None:
        """Read the existing checkpoints.

        Raises:
            TopicGoneError: The topic does not exist or the principal may not read it.
            ConnectionLostError: The topic cannot be read to its end now.
        """
        records, _ = self._reader.read(self._topic, 0)
        for record in records:
            if record.key is not None and record.value is None:
                continue  # a tombstone, written by a cleanup
            try:
                self._keep(Checkpoint.parse(record.key or b"", record.value or b""))
            except FormatError as error:
                self.damaged.add(record.offset, error)

    def _keep(self, checkpoint: Checkpoint) -> None:
        try:
            is_wanted = self._wanted(checkpoint.group)
        except Exception:  # noqa: BLE001 - of a custom group filter, logged when the groups are found
            is_wanted = True
        if is_wanted:
            self._newest.setdefault(checkpoint.group, {})[checkpoint.topic, checkpoint.partition] = checkpoint

    def newest(self, group: str, topic: str, partition: int) -> Checkpoint | None:
        """Return the newest checkpoint of a group and a target partition."""
        return self._newest.get(group, {}).get((topic, partition))

    def of_group(self, group: str) -> list[Checkpoint]:
        """Return the newest checkpoints of a group."""
        return list(self._newest.get(group, {}).values())

    def discard_stale(
        self,
        bounds: Mapping[PartitionTuple, LogBounds],
        source: Mapping[PartitionTuple, PartitionTuple],
        syncs: SyncStore,
    ) -> None:
        """Discard the checkpoints of remote topics that were deleted and created again.

        These are beyond the ends of their logs, or the offset syncs of the new topic show that they would skip records.
        An offset at the start of its log skips none: the records before it are deleted.

        Args:
            bounds: Bounds of remote partitions. Checkpoints of other partitions stay.
            source: Source partitions of remote partitions. For others, the offset syncs are not considered.
            syncs: Offset syncs of the flow.
        """
        for newest in self._newest.values():
            for where in newest.keys() & bounds.keys():
                offset, log = newest[where].downstream_offset, bounds[where]
                of_syncs = offset > log.first and where in source and syncs.would_skip(*source[where], newest[where])
                if offset > log.end or of_syncs:
                    del newest[where]

    def write(self, checkpoints: Sequence[Checkpoint], now_ms: int) -> None:
        """Write checkpoints. They become the newest ones once they are acknowledged.

        Raises:
            ConnectionLostError: Not all were acknowledged.
        """
        if not checkpoints:
            return
        self._writer.write(
            self._topic, [Record(key=each.key(), value=each.value(), timestamp=now_ms) for each in checkpoints]
        )
        for checkpoint in checkpoints:
            self._keep(checkpoint)


class MirroredOffsets:
    """Progress of a flow, according to the source offsets on the target. Confined to one thread."""

    def __init__(self, flow: FlowSettings, read: Callable[[FlowSettings], Mapping[PartitionTuple, int]]) -> None:
        """Create a store.

        Args:
            flow: Settings of the flow.
            read: Returns the last mirrored offset by source partition; see ``mirrored_offsets``.
        """
        self._flow = flow
        self._read = read
        self._next: dict[PartitionTuple, int] = {}
        self._final: frozenset[PartitionTuple] = frozenset()

    def next_offsets(
        self, ends: Mapping[PartitionTuple, int], final: Collection[PartitionTuple] = ()
    ) -> Mapping[PartitionTuple, int]:
        """Return the next offsets to mirror. Read them again if a partition was not mirrored up to its end yet.

        Args:
            ends: End offsets of the partitions that matter. Empty: nothing is read for them.
            final: Partitions that are not mirrored any more. They are read once.
        """
        final = frozenset(final)
        must_read = bool(final - self._final)
        self._final &= final
        if must_read or any(self._next.get(where, -1) < end for where, end in ends.items()):
            try:
                self._next = {where: resume_offset(last) for where, last in self._read(self._flow).items()}
                self._final = final
            except CLUSTER_ERRORS as error:
                logger.debug("%s: source offsets cannot be read: %s", self._flow.name, error)
        return self._next
