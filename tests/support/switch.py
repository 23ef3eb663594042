"""Clients that move from the source of a mirror with equal offsets to its target."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from klamm.admin import AdminClient, OffsetSpec
from klamm.admin import TopicPartition as AdminPartition
from tests.support.families import CONFLUENT_KAFKA, Delivery, Family
from tests.support.mirror import create_topic
from tests.support.processes import wait_until
from tests.support.transactional_clients import Confluent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tests.support.families.model import RunningConsumer, RunningProducer

PARTITIONS: Final = 3
"""The producers of all families write to the partitions 0 to 2."""
VALUE_BYTES: Final = 4096
_ABORTED: Final = 2
"""Offsets of partition 0 that an aborted record and its marker take."""
_ABORTED_VALUE: Final = -1
_AT_ONCE: Final = 20
_TIMEOUT_S: Final = 120.0


class _LoadProducer(CONFLUENT_KAFKA.producer):  # type: ignore[name-defined, misc]  # a class in a field
    settings = {"enable.idempotence": True, "linger.ms": 5}  # noqa: RUF012 - the base class declares it
    value_bytes = VALUE_BYTES


LOAD: Final = Family(
    name="load",
    admin=CONFLUENT_KAFKA.admin,
    producer=_LoadProducer,
    consumer=CONFLUENT_KAFKA.consumer,
    alters_incrementally=True,
)
"""librdkafka with large records that are not compressed."""


class MovingClients:
    """An idempotent producer and a group member of a client family. After a move, only ``bootstrap.servers`` differs.

    Args:
        family: Client family.
        records_per_s: Rate of the producer.
    """

    def __init__(self, family: Family, *, records_per_s: int) -> None:
        self.topic, self.group = f"switch-{family.name}", f"readers-{family.name}"
        self._family = family
        self._records_per_s = records_per_s
        self.producers: list[RunningProducer] = []
        self.members: list[RunningConsumer] = []

    def create(self, address: str) -> None:
        """Create the topic. It begins with an aborted transaction, which shifts offsets that are not kept."""
        create_topic(address, self.topic, PARTITIONS, {"retention.ms": "-1"})
        with Confluent(address, self.topic) as producer:
            producer.begin()
            producer.send(self.topic, f"{_ABORTED_VALUE}")
            producer.abort()
        with Confluent(address, self.topic):
            """A new producer is accepted once the marker of the transaction is written."""

    def start_producer(self, address: str) -> None:
        """Start a producer."""
        producer = self._family.producer(address, self.topic, count=10**9, records_per_s=self._records_per_s)
        self.producers.append(producer)

    def start_member(self, address: str) -> None:
        """Start a member of the group."""
        self.members.append(self._family.consumer(address, self.topic, self.group))

    def wait_for_acknowledged(self, count: int) -> None:
        """Wait until the latest producer has acknowledged records."""
        producer = self.producers[-1]
        wait_until(
            lambda: len(producer.acknowledged) >= count,
            timeout_s=_TIMEOUT_S,
            what=f"{count} records in {self.topic}",
            interval_s=0.01,
            alive=producer.check,
        )

    def wait_for_delivered(self, count: int | None = None) -> None:
        """Wait until the members have read a number of records, or as many as are acknowledged."""
        member = self.members[-1]
        wait_until(
            lambda: len(self._delivered()) >= (len(self._acknowledged()) if count is None else count),
            timeout_s=_TIMEOUT_S,
            what=f"the records of {self.group}",
            alive=member.check,
        )

    def use(self, address: str) -> None:
        """Start a member, let the latest producer write some records, and stop both when all are read."""
        self.start_member(address)
        self.wait_for_acknowledged(50)
        self.producers[-1].stop()
        self.wait_for_delivered()
        self.members[-1].stop()

    def assert_each_record_once_and_in_order(self) -> None:
        """Compare what the producers have acknowledged on both clusters with what the members have read."""
        assert [failure for producer in self.producers for failure in producer.failures] == []
        written = _by_partition(self._acknowledged())
        for partition, deliveries in written.items():
            deliveries.sort(key=lambda each: each.offset)
            first = 0 if partition else _ABORTED
            offsets = [each.offset for each in deliveries]
            assert offsets == list(range(first, first + len(deliveries))), f"{self.topic}-{partition}"
        for producer in self.producers:
            for deliveries in _by_partition(producer.acknowledged).values():
                values = [each.value for each in sorted(deliveries, key=lambda each: each.offset)]
                assert values == sorted(values)
        read = _by_partition(self._delivered())
        for partition, deliveries in written.items():
            offsets = [each.offset for each in read[partition]]
            assert offsets == [each.offset for each in deliveries], f"{self.topic}-{partition}: {offsets}"
        assert read == written

    def _acknowledged(self) -> list[Delivery]:
        return [each for producer in self.producers for each in producer.acknowledged]

    def _delivered(self) -> list[Delivery]:
        # Members that read uncommitted records read the aborted one, too, on the source alone.
        return [each for member in self.members for each in member.delivered if each.value != _ABORTED_VALUE]

    def written(self) -> set[tuple[int, int, int]]:
        """Return partition, offset and number of each acknowledged record."""
        return {(each.partition, each.offset, each.value) for each in self._acknowledged()}


def _by_partition(deliveries: Iterable[Delivery]) -> dict[int, list[Delivery]]:
    by_partition = defaultdict[int, list[Delivery]](list)
    for delivery in deliveries:
        by_partition[delivery.partition].append(delivery)
    return dict(by_partition)


def log_ends(address: str, topics: Iterable[str]) -> dict[AdminPartition, int]:
    """Return the log end of each partition of some topics."""
    latest = {AdminPartition(topic, number): OffsetSpec.LATEST for topic in topics for number in range(PARTITIONS)}
    with AdminClient(address) as admin:
        return {at: end.offset for at, end in admin.list_offsets(latest).all().result(300).items()}


def group_offsets(address: str, groups: Iterable[str]) -> dict[str, Mapping[AdminPartition, int]]:
    """Return the committed offsets of groups."""
    with AdminClient(address) as admin:
        listed = admin.list_group_offsets(dict.fromkeys(groups)).values()
        return {
            group: {at: committed.offset for at, committed in offsets.result(300).items()}
            for group, offsets in listed.items()
        }


class SqliteReader:
    """Consumer that stores records and its offsets in one transaction of a database, as sinks of Flink do.

    Args:
        path: Database.
        topic: Topic to read.
    """

    def __init__(self, path: Path, topic: str) -> None:
        self._path, self._topic = path, topic
        with sqlite3.connect(path) as database:
            database.execute('CREATE TABLE records ("partition", "offset", value, PRIMARY KEY ("partition", "offset"))')
            database.execute('CREATE TABLE offsets ("partition" PRIMARY KEY, next_offset)')

    def read_to_end(self, address: str) -> None:
        """Read from the stored offsets to the present log ends."""
        ends = {at.partition: end for at, end in log_ends(address, [self._topic]).items()}
        settings = {"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False}
        settings |= {"auto.offset.reset": "error"}
        consumer = Consumer(settings)
        database = sqlite3.connect(self._path)
        try:
            offsets = dict.fromkeys(ends, 0) | dict(database.execute("SELECT * FROM offsets"))
            consumer.assign([TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()])
            while any(offsets[partition] < end for partition, end in ends.items()):
                messages = consumer.consume(1_000, 1.0)
                with database:
                    for message in messages:
                        assert message.error() is None, message.error()
                        partition, offset = message.partition() or 0, message.offset() or 0
                        offsets[partition] = offset + 1
                        row = (partition, offset, int(message.value() or b""))
                        database.execute("INSERT INTO records VALUES (?, ?, ?)", row)
                    database.executemany("INSERT OR REPLACE INTO offsets VALUES (?, ?)", offsets.items())
        finally:
            consumer.close()
            database.close()

    def records(self) -> list[tuple[int, int, int]]:
        """Return partition, offset and number of each record."""
        with sqlite3.connect(self._path) as database:
            return database.execute("SELECT * FROM records").fetchall()


def write_by_new_producers(address: str, topic: str, count: int) -> None:
    """Write a record by each of so many new idempotent producers, and by as many new transactional producers."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda _: _write_idempotent(address, topic), range(count)))
        list(pool.map(lambda number: _write_transaction(address, topic, number), range(count)))


def _write_idempotent(address: str, topic: str) -> None:
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 0})
    producer.produce(topic, b"0", partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(_TIMEOUT_S) == 0
    assert errors == [None]


def _write_transaction(address: str, topic: str, number: int) -> None:
    with Confluent(address, f"new-{number}") as producer:
        producer.begin()
        producer.send(topic, "0")
        producer.commit()
