"""Transactional producers and consumers of three client families, with one interface."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition  # type: ignore[import-untyped]  # has no stubs
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition
from kafka.structs import OffsetAndMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

_TIMEOUT_S = 60.0


class Transactional(ABC):
    """Producer with a transactional id. Every method raises when the broker rejects its request."""

    @abstractmethod
    def __init__(self, bootstrap_servers: str, transactional_id: str) -> None:
        """Connect, and fence older producers with this id."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    @abstractmethod
    def send(self, topic: str, value: str) -> None:
        """Write a record to partition 0 and wait until it is acknowledged."""

    @abstractmethod
    def send_offset(self, topic: str, offset: int, group: str) -> None:
        """Commit an offset of partition 0 with the transaction."""

    @abstractmethod
    def commit(self) -> None:
        """Commit."""

    @abstractmethod
    def abort(self) -> None:
        """Abort."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


class Confluent(Transactional):
    """confluent-kafka."""

    def __init__(self, bootstrap_servers: str, transactional_id: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 900_000,  # a start of Spark may take longer than the default, a minute
                "linger.ms": 0,
            }
        )
        self._bootstrap_servers = bootstrap_servers
        self._producer.init_transactions(_TIMEOUT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: str) -> None:
        self._producer.produce(topic, value.encode(), partition=0)
        self._producer.flush(_TIMEOUT_S)

    def send_offset(self, topic: str, offset: int, group: str) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap_servers, "group.id": group})
        self._producer.send_offsets_to_transaction(
            [ConfluentPartition(topic, 0, offset)], consumer.consumer_group_metadata(), _TIMEOUT_S
        )
        consumer.close()

    def commit(self) -> None:
        self._producer.commit_transaction(_TIMEOUT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(_TIMEOUT_S)

    def close(self) -> None:
        self._producer.purge()


class KafkaPython(Transactional):
    """kafka-python."""

    def __init__(self, bootstrap_servers: str, transactional_id: str) -> None:
        self._producer = KafkaProducer(bootstrap_servers=bootstrap_servers, transactional_id=transactional_id)
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: str) -> None:
        self._producer.send(topic, value.encode(), partition=0).get(_TIMEOUT_S)

    def send_offset(self, topic: str, offset: int, group: str) -> None:
        offsets = {PythonPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
        self._producer.send_offsets_to_transaction(offsets, group)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=5)


class Aio(Transactional):
    """aiokafka, on its own event loop."""

    def __init__(self, bootstrap_servers: str, transactional_id: str) -> None:
        self._runner = asyncio.Runner()
        self._bootstrap_servers = bootstrap_servers
        self._producer = self._runner.run(self._start(transactional_id))

    async def _start(self, transactional_id: str) -> Any:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap_servers, transactional_id=transactional_id, request_timeout_ms=30_000
        )
        await producer.start()
        return producer

    def _run(self, step: Callable[[], Any]) -> None:
        async def run() -> None:
            async with asyncio.timeout(_TIMEOUT_S):
                await step()

        self._runner.run(run())

    def begin(self) -> None:
        self._run(self._producer.begin_transaction)

    def send(self, topic: str, value: str) -> None:
        self._run(lambda: self._producer.send_and_wait(topic, value.encode(), partition=0))

    def send_offset(self, topic: str, offset: int, group: str) -> None:
        self._run(lambda: self._producer.send_offsets_to_transaction({TopicPartition(topic, 0): offset}, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction)

    def abort(self) -> None:
        self._run(self._producer.abort_transaction)

    def close(self) -> None:
        self._run(self._producer.stop)
        self._runner.close()


FAMILIES: Mapping[str, type[Transactional]] = {"confluent": Confluent, "kafka-python": KafkaPython, "aiokafka": Aio}


def read_by_confluent(bootstrap_servers: str, topic: str, count: int) -> list[str]:
    """Return the first ``count`` committed values of partition 0, and those that arrive within a second after them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"reader-of-{topic}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([ConfluentPartition(topic, 0, 0)])
    values: list[str] = []
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            values.append((message.value() or b"").decode())
        elif len(values) >= count:
            break
    consumer.close()
    return values


def read_by_kafka_python(bootstrap_servers: str, topic: str, count: int) -> list[str]:
    """The same by kafka-python."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers, isolation_level="read_committed")
    partition = PythonPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    values: list[str] = []
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        records = consumer.poll(1000).get(partition, [])
        values += [record.value.decode() for record in records]
        if not records and len(values) >= count:
            break
    consumer.close()
    return values


async def _read_by_aiokafka(bootstrap_servers: str, topic: str, count: int) -> list[str]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, isolation_level="read_committed")
    await consumer.start()
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    values: list[str] = []
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        records = (await consumer.getmany(timeout_ms=1000)).get(partition, [])
        values += [record.value.decode() for record in records]
        if not records and len(values) >= count:
            break
    await consumer.stop()
    return values


def read_by_aiokafka(bootstrap_servers: str, topic: str, count: int) -> list[str]:
    """The same by aiokafka."""
    return asyncio.run(_read_by_aiokafka(bootstrap_servers, topic, count))


READERS: Mapping[str, Callable[[str, str, int], list[str]]] = {
    "confluent": read_by_confluent,
    "kafka-python": read_by_kafka_python,
    "aiokafka": read_by_aiokafka,
}
