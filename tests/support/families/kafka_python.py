"""kafka-python 3."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaConnectionError

from tests.support.families.model import Delivery, Family, RunningConsumer, RunningProducer

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Producer(RunningProducer):
    def _work(self) -> None:
        producer = KafkaProducer(bootstrap_servers=self.bootstrap_servers, compression_type="gzip", linger_ms=20)
        try:
            for number in self.paced():
                sent = producer.send(self.topic, key=b"%d" % (number % 97), value=b"%d" % number, partition=number % 3)
                sent.add_callback(functools.partial(self._on_ack, number))
                sent.add_errback(functools.partial(self._on_failure, number))
            producer.flush()
        finally:
            producer.close()

    def _on_ack(self, number: int, metadata: Any) -> None:
        self.acknowledged.append(Delivery(partition=metadata.partition, offset=metadata.offset, value=number))

    def _on_failure(self, number: int, error: BaseException) -> None:
        self.failures.append(f"{number}: {error!r}")


class _Consumer(RunningConsumer):
    def _work(self) -> None:
        consumer = KafkaConsumer(
            self.topic, bootstrap_servers=self.bootstrap_servers, group_id=self.group, auto_offset_reset="earliest"
        )
        try:
            while not self._stop.is_set():
                try:
                    polled = consumer.poll(timeout_ms=200)
                except KafkaConnectionError:
                    continue  # raised while the coordinator's broker is down; an application continues to poll
                for partition, records in polled.items():
                    self.delivered.extend(
                        Delivery(partition=partition.partition, offset=record.offset, value=int(record.value))
                        for record in records
                    )
                self.assignment = frozenset(partition.partition for partition in consumer.assignment())
        finally:
            consumer.close()


class _Admin:
    def __init__(self, bootstrap_servers: str) -> None:
        self._client = KafkaAdminClient(bootstrap_servers=bootstrap_servers)

    def create_topic(self, name: str, *, partitions: int, configs: Mapping[str, str]) -> None:
        options = {"num_partitions": partitions, "replication_factor": 1, "configs": dict(configs)}
        self._client.create_topics({name: options})

    def create_partitions(self, name: str, *, total: int) -> None:
        self._client.create_partitions({name: total})

    def partition_count(self, name: str) -> int:
        return sum(len(topic["partitions"]) for topic in self._client.describe_topics([name]))

    def describe_config(self, name: str) -> Mapping[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        described = self._client.describe_configs([resource], config_filter="all")
        ((_, by_name),) = described.items()
        return {key: entry["value"] for key, entry in by_name[name].items()}

    def alter_config(self, name: str, configs: Mapping[str, str]) -> None:
        self._client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, dict(configs))], incremental=True)

    def delete_topic(self, name: str) -> None:
        self._client.delete_topics([name])

    def close(self) -> None:
        self._client.close()


KAFKA_PYTHON = Family(
    name="kafka-python", admin=_Admin, producer=_Producer, consumer=_Consumer, alters_incrementally=True
)
