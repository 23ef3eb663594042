"""Records that the broker keeps in an internal topic with one partition."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from klamm.broker.topics.placement import place
from klamm.protocol.errors import KafkaApiError, StorageError
from klamm.protocol.records import Record, decode_records, encode_batch, iter_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from klamm.broker.cluster import ClusterInfo
    from klamm.broker.topics.catalog import Topic, TopicCatalog
    from klamm.storage.log import LogManager, PartitionLog

logger = logging.getLogger(__name__)

PARTITION = 0
MAX_REPLICAS = 3
READ_BYTES = 1024 * 1024


class InternalRecords:
    """Internal topic as a list of keys and values. Used on the event loop only.

    The topic is created when the first record is appended. Policies do not apply to it.
    """

    def __init__(
        self,
        *,
        name: str,
        configs: Mapping[str, str],
        topics: TopicCatalog,
        logs: LogManager,
        cluster: ClusterInfo,
        now_ms: Callable[[], int],
    ) -> None:
        self._name = name
        self._configs = configs
        self._topics = topics
        self._logs = logs
        self._cluster = cluster
        self._now_ms = now_ms

    def read_all(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Yield key and value of every record, oldest first; nothing when the topic does not exist.

        Records that are unreadable because the log is damaged are logged and skipped.
        """
        topic = self._topics.get(self._name)
        if topic is None:
            return
        try:
            log = self._log(topic)
        except StorageError as error:
            logger.error("Records of %s cannot be read: %s", self._name, error)  # noqa: TRY400 -- the message has all there is
            return
        offset, is_damaged = log.log_start_offset, False
        while offset < log.end_offset:
            last = offset
            try:
                for batch in iter_batches(log.read(offset, READ_BYTES)):
                    for record in decode_records(batch):
                        if record.offset >= offset:
                            yield record.key, record.value
                    last = batch.last_offset + 1
            except KafkaApiError as error:
                if not is_damaged:
                    logger.error("Some records of %s cannot be read: %s", self._name, error)  # noqa: TRY400 -- the message has all there is
                is_damaged = True
            offset = max(last, offset + 1)

    async def append(self, key: bytes, value: bytes) -> None:
        """Append a record. On return it is in the operating system's page cache, but not yet flushed to disk.

        Raises:
            StorageError: The record cannot be written.
        """
        topic = self._topics.get(self._name) or await self._create()
        batch = encode_batch([Record(key=key, value=value, timestamp=self._now_ms())])
        if self._logs.is_new(topic.topic_id, PARTITION):
            await self._logs.create_directories([(topic.topic_id, PARTITION)])
        self._log(topic).append(memoryview(batch))

    def _log(self, topic: Topic) -> PartitionLog:
        try:
            log = self._logs.get(topic.topic_id, PARTITION)
        except OSError as error:
            raise StorageError(f"Cannot open {topic.name}-{PARTITION}: {error}") from error
        if log is None:
            raise StorageError(f"{topic.name}-{PARTITION} has no log")
        return log

    async def _create(self) -> Topic:
        node_ids = self._cluster.node_ids
        partitions = place(1, min(MAX_REPLICAS, len(node_ids)), node_ids=node_ids, first=0)
        return await self._topics.create(self._name, partitions, configs=self._configs, is_internal=True)
