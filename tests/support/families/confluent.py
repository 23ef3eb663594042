"""confluent-kafka: librdkafka, on which the C, Go, .NET and Python clients are based."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports without saying so
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from tests.support.families.model import Delivery, Family, RunningConsumer, RunningProducer

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT_S = 30.0
_QUEUE_FULL_S = 0.05


class _Producer(RunningProducer):
    settings: ClassVar[Mapping[str, object]] = {"enable.idempotence": True, "compression.type": "lz4"}
    value_bytes: ClassVar[int] = 0
    """Minimal size of a value. Shorter ones are filled with spaces."""

    def _work(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, **self.settings})
        for number in self.paced():
            on_delivery = functools.partial(self._on_delivery, number)
            key, value = b"%d" % (number % 97), (b"%d" % number).ljust(self.value_bytes)
            while True:
                try:
                    producer.produce(self.topic, value, key, number % 3, on_delivery=on_delivery)
                except BufferError:
                    producer.poll(_QUEUE_FULL_S)
                else:
                    break
            producer.poll(0)
        producer.flush()

    def _on_delivery(self, number: int, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(f"{number}: {error}")
        else:
            self.acknowledged.append(Delivery(partition=message.partition(), offset=message.offset(), value=number))


class _Consumer(RunningConsumer):
    def _work(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                # A coordinator that is down is looked for after a tenth of it: by default once in a minute.
                "coordinator.query.interval.ms": 10_000,
            }
        )
        consumer.subscribe([self.topic])
        try:
            while not self._stop.is_set():
                for message in consumer.consume(1_000, timeout=0.2):
                    if message.error() is not None:
                        raise KafkaException(message.error())
                    self.delivered.append(_delivery(message))
                self.assignment = frozenset(partition.partition for partition in consumer.assignment())
        finally:
            consumer.close()


def _delivery(message: Any) -> Delivery:
    return Delivery(partition=message.partition(), offset=message.offset(), value=int(message.value()))


class _Admin:
    def __init__(self, bootstrap_servers: str) -> None:
        self._client = AdminClient({"bootstrap.servers": bootstrap_servers})

    def create_topic(self, name: str, *, partitions: int, configs: Mapping[str, str]) -> None:
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(configs))
        self._client.create_topics([topic])[name].result(_TIMEOUT_S)

    def create_partitions(self, name: str, *, total: int) -> None:
        self._client.create_partitions([NewPartitions(name, total)])[name].result(_TIMEOUT_S)

    def partition_count(self, name: str) -> int:
        # Naming the topic in the request could create it: list all.
        topics = self._client.list_topics(timeout=_TIMEOUT_S).topics
        return len(topics[name].partitions) if name in topics else 0

    def describe_config(self, name: str) -> Mapping[str, str]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        entries = self._client.describe_configs([resource])[resource].result(_TIMEOUT_S)
        return {key: entry.value for key, entry in entries.items()}

    def alter_config(self, name: str, configs: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in configs.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        self._client.incremental_alter_configs([resource])[resource].result(_TIMEOUT_S)

    def delete_topic(self, name: str) -> None:
        self._client.delete_topics([name])[name].result(_TIMEOUT_S)

    def close(self) -> None:
        """The client closes with its last reference."""


CONFLUENT_KAFKA = Family(
    name="confluent-kafka", admin=_Admin, producer=_Producer, consumer=_Consumer, alters_incrementally=True
)
