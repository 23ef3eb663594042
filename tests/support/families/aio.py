"""aiokafka: an asyncio client with the oldest protocol versions of the maintained clients."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # type: ignore[import-untyped]
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic  # type: ignore[import-untyped]
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType  # type: ignore[import-untyped]

from tests.support.families.model import Delivery, Family, RunningConsumer, RunningProducer

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping


class _Producer(RunningProducer):
    def _work(self) -> None:
        asyncio.run(self._produce())

    async def _produce(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap_servers, enable_idempotence=True, compression_type="snappy", linger_ms=20
        )
        await producer.start()
        try:
            start = time.monotonic()
            for number in range(self.count):
                if number % 100 == 0:
                    if self._stop.is_set():
                        return
                    await asyncio.sleep(max(0.0, number / self.records_per_s - (time.monotonic() - start)))
                key, value = b"%d" % (number % 97), b"%d" % number
                sent = await producer.send(self.topic, value, key, partition=number % 3)
                sent.add_done_callback(lambda done, number=number: self._on_done(number, done))
            await producer.flush()
        finally:
            await producer.stop()

    def _on_done(self, number: int, done: asyncio.Future[Any]) -> None:
        if (error := done.exception()) is not None:
            self.failures.append(f"{number}: {error!r}")
        else:
            metadata = done.result()
            self.acknowledged.append(Delivery(partition=metadata.partition, offset=metadata.offset, value=number))


class _Consumer(RunningConsumer):
    def _work(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        consumer = AIOKafkaConsumer(
            self.topic, bootstrap_servers=self.bootstrap_servers, group_id=self.group, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            while not self._stop.is_set():
                for partition, records in (await consumer.getmany(timeout_ms=200)).items():
                    self.delivered.extend(
                        Delivery(partition=partition.partition, offset=record.offset, value=int(record.value))
                        for record in records
                    )
                self.assignment = frozenset(partition.partition for partition in consumer.assignment())
        finally:
            await consumer.stop()


class _Admin:
    """Admin client. It checks the error codes in responses, which the library does not."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._runner = asyncio.Runner()
        self._client = self._run(_connected(bootstrap_servers))

    def _run(self, step: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(step)

    def create_topic(self, name: str, *, partitions: int, configs: Mapping[str, str]) -> None:
        topic = NewTopic(name, partitions, 1, topic_configs=dict(configs))
        for _, code, message in self._run(self._client.create_topics([topic])).topic_errors:
            assert code == 0, message

    def create_partitions(self, name: str, *, total: int) -> None:
        for _, code, message in self._run(self._client.create_partitions({name: NewPartitions(total)})).topic_errors:
            assert code == 0, message

    def partition_count(self, name: str) -> int:
        # Naming the topic in the request could create it: list all.
        topics = {topic["topic"]: topic["partitions"] for topic in self._run(self._client.describe_topics())}
        return len(topics.get(name, ()))

    def describe_config(self, name: str) -> Mapping[str, str]:
        (answer,) = self._run(self._client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)]))
        ((code, message, _, _, entries),) = answer.resources
        assert code == 0, message
        return {entry[0]: entry[1] for entry in entries}

    def alter_config(self, name: str, configs: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, name, dict(configs))
        (answer,) = self._run(self._client.alter_configs([resource]))
        ((code, message, *_),) = answer.resources
        assert code == 0, message

    def delete_topic(self, name: str) -> None:
        for _, code in self._run(self._client.delete_topics([name])).topic_error_codes:
            assert code == 0, code

    def close(self) -> None:
        self._run(self._client.close())
        self._runner.close()


async def _connected(bootstrap_servers: str) -> AIOKafkaAdminClient:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await client.start()
    return client


AIOKAFKA = Family(name="aiokafka", admin=_Admin, producer=_Producer, consumer=_Consumer, alters_incrementally=False)
