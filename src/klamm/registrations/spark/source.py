"""The registration topic as a Spark data source, batch and stream: the driver asks for offsets, tasks fetch records.

Options: ``bootstrap_servers``, ``topic``, ``settings`` (JSON of kafka-python's connection settings),
``records_per_task``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from kafka import KafkaConsumer, TopicPartition
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from klamm.client_configs.registrations import TOPIC
from klamm.registrations.ranges import DEFAULT_RECORDS_PER_TASK, OffsetRange, split

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FORMAT = "klamm-registrations"
POLL_MS = 1_000
MAX_SILENT_POLLS = 60

RECORD_SCHEMA = StructType(
    [
        StructField("partition", IntegerType(), nullable=False),
        StructField("offset", LongType(), nullable=False),
        StructField("timestamp_ms", LongType(), nullable=False),
        StructField("key", BinaryType(), nullable=True),
        StructField("value", BinaryType(), nullable=True),
    ]
)


class RangePartition(InputPartition):
    """One range of offsets for one task; None stands for a topic without records."""

    def __init__(self, offsets: OffsetRange | None) -> None:
        super().__init__(0)
        self.offsets = offsets


class RegistrationsDataSource(DataSource):
    """Reader of the registration topic."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of the raw records."""
        return RECORD_SCHEMA

    def reader(self, schema: StructType) -> RegistrationsReader:
        """Return the reader of all that is there now."""
        return RegistrationsReader(self._topic())

    def streamReader(self, schema: StructType) -> RegistrationsStreamReader:  # noqa: N802  # Spark's name
        """Return the reader that goes on with what comes."""
        return RegistrationsStreamReader(self._topic())

    def _topic(self) -> RegistrationsTopic:
        return RegistrationsTopic(
            bootstrap_servers=self.options["bootstrap_servers"].split(","),
            topic=self.options.get("topic", TOPIC),
            settings=json.loads(self.options.get("settings", "{}")),
            records_per_task=int(self.options.get("records_per_task", str(DEFAULT_RECORDS_PER_TASK))),
        )


class RegistrationsReader(DataSourceReader):
    """Reads what is there when it is planned."""

    def __init__(self, topic: RegistrationsTopic) -> None:
        self._topic = topic

    def partitions(self) -> list[InputPartition]:
        """Return one piece of work per range of offsets, up to what is there now."""
        return self._topic.pieces(self._topic.bounds())

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield the records of one range."""
        return self._topic.read(partition)


class RegistrationsStreamReader(DataSourceStreamReader):
    """Reads from the beginning and goes on; offsets by partition, as strings for Spark's checkpoint."""

    def __init__(self, topic: RegistrationsTopic) -> None:
        self._topic = topic

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Return where to begin."""
        return {str(partition): first for partition, (first, _) in self._topic.bounds().items()}

    def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Return how far the topic reaches; newer versions of Spark tell where they are and how much they want."""
        return {str(partition): end for partition, (_, end) in self._topic.bounds().items()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return one piece of work per range of offsets; a partition that is new since ``start`` from its beginning."""
        return self._topic.pieces({int(name): (start.get(name, 0), to) for name, to in end.items()})

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield the records of one range."""
        return self._topic.read(partition)


class RegistrationsTopic:
    """Plans on the driver, reads in tasks. Travels to the tasks: holds plain values only."""

    def __init__(
        self, *, bootstrap_servers: list[str], topic: str, settings: dict[str, Any], records_per_task: int
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._settings = settings
        self._records_per_task = records_per_task

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return first and end offset by partition; nothing when the topic does not exist."""
        consumer = self._consumer()
        try:
            known = consumer.partitions_for_topic(self._topic) or set()
            partitions = [TopicPartition(self._topic, partition) for partition in sorted(known)]
            first = consumer.beginning_offsets(partitions) if partitions else {}
            end = consumer.end_offsets(partitions) if partitions else {}
        finally:
            consumer.close()
        return {partition.partition: (first[partition], end[partition]) for partition in partitions}

    def pieces(self, bounds: Mapping[int, tuple[int, int]]) -> list[InputPartition]:
        """Return one piece of work per range of offsets."""
        ranges = split(bounds, records_per_task=self._records_per_task)
        return [RangePartition(offsets) for offsets in ranges] or [RangePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield the records of one range.

        Raises:
            TimeoutError: The broker delivers nothing for a minute.
        """
        offsets = cast("RangePartition", partition).offsets
        if offsets is None:
            return
        consumer = self._consumer()
        try:
            assigned = TopicPartition(self._topic, offsets.partition)
            consumer.assign([assigned])
            consumer.seek(assigned, offsets.start)
            silent_polls = 0
            while consumer.position(assigned) < offsets.end:
                batch = consumer.poll(timeout_ms=POLL_MS).get(assigned, [])
                silent_polls = 0 if batch else silent_polls + 1
                if silent_polls > MAX_SILENT_POLLS:
                    raise TimeoutError(f"No records of {self._topic}-{offsets.partition} for a minute")
                for record in batch:
                    if record.offset < offsets.end:
                        yield (offsets.partition, record.offset, record.timestamp, record.key, record.value)
        finally:
            consumer.close()

    def _consumer(self) -> Any:
        return KafkaConsumer(
            bootstrap_servers=self._bootstrap_servers,
            client_id="klamm-registrations",
            group_id=None,
            enable_auto_commit=False,
            exclude_internal_topics=False,
            **self._settings,
        )
