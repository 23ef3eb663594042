"""What the topics of offset syncs and of checkpoints hold, read to their ends."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from klamm.mirror.control_records import TopicGoneError
from klamm.mirror.formats import Checkpoint, FormatError, OffsetSync
from klamm.mirror.groups.copied_runs import PartitionTranslation, RunSync
from klamm.mirror.groups.offset_translation import SyncPair
from klamm.protocol.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klamm.mirror.groups.copied_runs import Translation

logger = logging.getLogger(__name__)


class InternalTopicReader(Protocol):
    """Reads a topic of the mirror's own."""

    def read(self, topic: str, from_offset: int) -> tuple[list[Record], int]:
        """Read partition 0 to its present end; returns the records and the offset to go on with.

        Raises:
            TopicGoneError: the topic does not exist, or was made anew.
            ConnectionLostError: not all of it can be read now.
        """
        ...


class TopicWriter(Protocol):
    """Writes to a topic of the mirror's own."""

    def write(self, topic: str, records: Sequence[Record]) -> None:
        """Write records to partition 0 and wait until they are acknowledged.

        Raises:
            ConnectionLostError: not all were.
        """
        ...


class SyncStore:
    """The offset syncs of one flow. Thread-confined."""

    def __init__(self, reader: InternalTopicReader, topic: str) -> None:
        self._reader = reader
        self._topic = topic
        self._next_offset = 0
        self._partitions: dict[tuple[str, int], PartitionTranslation] = {}

    def refresh(self, *, newest_only: bool = False) -> None:
        """Read what is new.

        Args:
            newest_only: of each partition only the newest sync counts: it is not known how far checkpoints already
                were, and an older one might lead back.

        Raises:
            TopicGoneError: the topic does not exist; or it was made anew, then the next time reads all of it.
            ConnectionLostError: not all of it can be read now; nothing of it counts yet.
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
            logger.warning("%s: ignored the record at offset %d: %s", self._topic, record.offset, error)
            return
        key = (sync.topic, sync.partition)
        run = RunSync.of(SyncPair(sync.upstream_offset, sync.downstream_offset), record.headers)
        known = self._partitions.get(key)
        if known is None or newest_only:
            self._partitions[key] = PartitionTranslation(run)
        else:
            known.add(run)

    def knows(self, topic: str, partition: int) -> bool:
        """Tell whether there is a sync of a partition."""
        return (topic, partition) in self._partitions

    def translate(self, topic: str, partition: int, upstream: int) -> Translation | None:
        """Return where the record of a source offset is on the target; None: it can not be said."""
        known = self._partitions.get((topic, partition))
        return None if known is None else known.translate(upstream)


class CheckpointStore:
    """The newest checkpoint of each group and partition. Thread-confined."""

    def __init__(
        self,
        reader: InternalTopicReader,
        writer: TopicWriter,
        topic: str,
        *,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._topic = topic
        self._wanted = wanted
        self._newest: dict[str, dict[tuple[str, int], Checkpoint]] = {}
        """By group; by topic and partition of the target."""

    def load(self) -> None:
        """Read what was written before.

        Raises:
            TopicGoneError: the topic does not exist, or may not be read: nothing is known of it.
            ConnectionLostError: not all of it can be read now.
        """
        records, _ = self._reader.read(self._topic, 0)
        for record in records:
            if record.key is not None and record.value is None:
                continue  # a tombstone: somebody cleans up
            try:
                self._keep(Checkpoint.parse(record.key or b"", record.value or b""))
            except FormatError as error:
                logger.warning("%s: ignored the record at offset %d: %s", self._topic, record.offset, error)

    def _keep(self, checkpoint: Checkpoint) -> None:
        if self._wanted(checkpoint.group):
            self._newest.setdefault(checkpoint.group, {})[checkpoint.topic, checkpoint.partition] = checkpoint

    def newest(self, group: str, topic: str, partition: int) -> Checkpoint | None:
        """Return the newest checkpoint of a group and a partition of the target."""
        return self._newest.get(group, {}).get((topic, partition))

    def of_group(self, group: str) -> list[Checkpoint]:
        """Return the newest checkpoints of a group."""
        return list(self._newest.get(group, {}).values())

    def write(self, checkpoints: Sequence[Checkpoint], now_ms: int) -> None:
        """Write checkpoints; they count when the target has them.

        Raises:
            ConnectionLostError: not all were acknowledged.
        """
        if not checkpoints:
            return
        self._writer.write(
            self._topic, [Record(key=each.key(), value=each.value(), timestamp=now_ms) for each in checkpoints]
        )
        for checkpoint in checkpoints:
            self._keep(checkpoint)
