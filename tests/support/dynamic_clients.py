"""Clients whose configs change while they run, with one interface: producers and consumers of three libraries."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import aiokafka  # type: ignore[import-untyped]
import confluent_kafka
import kafka

from klamm.client_configs.definitions import ACKS, HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS
from klamm.clients import ConfigUpdate, KafkaConsumer, KafkaProducer, aio, confluent
from klamm.protocol.codec import encode
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsResponse
from klamm.protocol.messages.join_group import JoinGroupRequest
from klamm.protocol.messages.produce import ProduceRequest
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from klamm.protocol.frames import RequestHeader
    from tests.support.frame_proxy import FrameProxy, RecordedRequest

TOPIC: Final = unique("followed-")
INTERVAL_MS: Final = 100
"""``metadata.max.age.ms`` of all clients in this module."""
STATIC: Final[Mapping[str, str]] = {ACKS: "1", SESSION_TIMEOUT_MS: "30000", HEARTBEAT_INTERVAL_MS: "300"}
SILENT: Final = logging.getLogger("silent-librdkafka")
SILENT.propagate = False


class RunningClient(Protocol):
    """A running client."""

    def work(self) -> None:
        """Send one record, or poll once."""

    def close(self) -> None:
        """Shut the client down in order."""


AnyClient_co = TypeVar("AnyClient_co", bound=RunningClient, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings that a test chooses. All other settings are the same for all clients."""

    servers: str
    client_id: str
    enabled: bool = True
    idempotent: bool = False
    """Whether a producer is idempotent, and so has ``acks=all``."""
    on_change: Callable[[ConfigUpdate], None] | None = None
    topic: str = TOPIC
    """Topic that a consumer subscribes to. Consumers do not commit automatically, and a new group starts at the end."""
    assignor: str = "range"
    """Assignor of librdkafka's consumer."""


class RunningConsumer(RunningClient, Protocol):
    """Consumer with a manual position."""

    def is_assigned(self, partitions: int) -> bool:
        """Return whether the consumer has that many partitions and knows the position of each."""

    def read(self) -> list[tuple[int, bytes]]:
        """Poll once; return partition and value of each record."""

    def pause(self, partition: int) -> None:
        """Pause a partition."""

    def resume(self, partition: int) -> None:
        """Resume a partition."""

    def seek(self, partition: int, offset: int) -> None:
        """Continue from an offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(Generic[AnyClient_co]):
    """Producer or consumer of one library."""

    name: str
    api: int
    """API key of the request that shows the effective values."""
    key: str
    """Config that this request carries."""
    read: Callable[[RecordedRequest], int]
    new: tuple[str, int]
    """A value that is set centrally, and its form in the request."""
    old: int
    """Form of the client's own value in the request."""
    bad: Mapping[str, str]
    """Values with which the client cannot run."""
    keys: tuple[str, ...]
    """Keys that the client registers."""
    start: Callable[[Settings], AnyClient_co]

    def sent(self, proxy: FrameProxy) -> list[int]:
        """Return the values in the requests so far, oldest first."""
        return [self.read(request) for request in proxy.requests(self.api)]


@dataclass(slots=True)
class CentralConfigs:
    """Answer to key 50 in place of the broker's, with the present central configs."""

    values: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, _: RequestHeader, __: memoryview) -> bytes:
        """Return the answer."""
        values = [DescribeClientConfigsResponse.ValueData(key=key, value=value) for key, value in self.values.items()]
        entry = DescribeClientConfigsResponse.EntryData(values=values)
        return encoded(DescribeClientConfigsResponse(error_message=None, entries=[entry]))


class _EventLoop:
    """Event loop of aiokafka's clients, in its own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, task: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(task, self._loop).result(300)

    def call(self, function: Callable[[], Any]) -> Any:
        async def called() -> Any:
            return function()

        return self.run(called())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


class _KafkaPythonProducer:
    def __init__(self, settings: Settings) -> None:
        self._client = KafkaProducer(
            bootstrap_servers=settings.servers,
            client_id=settings.client_id,
            acks="all" if settings.idempotent else int(STATIC[ACKS]),
            enable_idempotence=settings.idempotent,
            metadata_max_age_ms=INTERVAL_MS,
            enable_dynamic_config=settings.enabled,
            on_dynamic_config_change=settings.on_change,
        )

    def work(self) -> None:
        self._client.send(TOPIC, b"x").get(30)

    def close(self) -> None:
        self._client.close()


class _KafkaPythonConsumer:
    def __init__(self, settings: Settings) -> None:
        self._topic = settings.topic
        self._client = KafkaConsumer(
            settings.topic,
            bootstrap_servers=settings.servers,
            client_id=settings.client_id,
            group_id=settings.client_id,
            enable_auto_commit=False,
            session_timeout_ms=int(STATIC[SESSION_TIMEOUT_MS]),
            heartbeat_interval_ms=int(STATIC[HEARTBEAT_INTERVAL_MS]),
            metadata_max_age_ms=INTERVAL_MS,
            enable_dynamic_config=settings.enabled,
            on_dynamic_config_change=settings.on_change,
        )

    def work(self) -> None:
        self.read()

    def is_assigned(self, partitions: int) -> bool:
        assigned = self._client.assignment()
        return len(assigned) == partitions and all(
            self._client.position(partition) is not None for partition in assigned
        )

    def read(self) -> list[tuple[int, bytes]]:
        batches = self._client.poll(20)
        return [(partition.partition, record.value) for partition, records in batches.items() for record in records]

    def pause(self, partition: int) -> None:
        self._client.pause(kafka.TopicPartition(self._topic, partition))

    def resume(self, partition: int) -> None:
        self._client.resume(kafka.TopicPartition(self._topic, partition))

    def seek(self, partition: int, offset: int) -> None:
        self._client.seek(kafka.TopicPartition(self._topic, partition), offset)

    def close(self) -> None:
        self._client.close()


class _ConfluentProducer:
    def __init__(self, settings: Settings) -> None:
        self._client = confluent.Producer(
            {
                "bootstrap.servers": settings.servers,
                "client.id": settings.client_id,
                ACKS: "all" if settings.idempotent else STATIC[ACKS],
                "enable.idempotence": settings.idempotent,
                "metadata.max.age.ms": INTERVAL_MS,
                "linger.ms": 0,
            },
            enable_dynamic_config=settings.enabled,
            on_dynamic_config_change=settings.on_change,
            logger=SILENT,
        )

    def work(self) -> None:
        self._client.produce(TOPIC, b"x")
        assert self._client.flush(30) == 0

    def close(self) -> None:
        assert self._client.close(30) == 0


class _ConfluentConsumer:
    def __init__(self, settings: Settings) -> None:
        self._client = confluent.Consumer(
            {
                "bootstrap.servers": settings.servers,
                "client.id": settings.client_id,
                "group.id": settings.client_id,
                SESSION_TIMEOUT_MS: STATIC[SESSION_TIMEOUT_MS],
                HEARTBEAT_INTERVAL_MS: STATIC[HEARTBEAT_INTERVAL_MS],
                "metadata.max.age.ms": INTERVAL_MS,
                "enable.auto.commit": False,
                "partition.assignment.strategy": settings.assignor,
            },
            enable_dynamic_config=settings.enabled,
            on_dynamic_config_change=settings.on_change,
            logger=SILENT,
        )
        self._topic = settings.topic
        self._client.subscribe([settings.topic])

    def work(self) -> None:
        self.read()

    def is_assigned(self, partitions: int) -> bool:
        return len(self._client.assignment()) == partitions

    def read(self) -> list[tuple[int, bytes]]:
        message = self._client.poll(0.02)
        if message is None:
            return []
        assert message.error() is None, message.error()
        return [(message.partition(), message.value())]

    def pause(self, partition: int) -> None:
        self._client.pause([confluent_kafka.TopicPartition(self._topic, partition)])

    def resume(self, partition: int) -> None:
        self._client.resume([confluent_kafka.TopicPartition(self._topic, partition)])

    def seek(self, partition: int, offset: int) -> None:
        self._client.seek(confluent_kafka.TopicPartition(self._topic, partition, offset))

    def close(self) -> None:
        self._client.close()


class _AioProducer:
    def __init__(self, settings: Settings) -> None:
        self._loop = _EventLoop()

        async def start() -> Any:
            client = aio.AIOKafkaProducer(
                bootstrap_servers=settings.servers,
                client_id=settings.client_id,
                acks="all" if settings.idempotent else int(STATIC[ACKS]),
                enable_idempotence=settings.idempotent,
                metadata_max_age_ms=INTERVAL_MS,
                enable_dynamic_config=settings.enabled,
                on_dynamic_config_change=settings.on_change,
            )
            await client.start()
            return client

        self._client = self._loop.run(start())

    def work(self) -> None:
        self._loop.run(self._client.send_and_wait(TOPIC, b"x"))

    def close(self) -> None:
        self._loop.run(self._client.stop())
        self._loop.close()


class _AioConsumer:
    def __init__(self, settings: Settings) -> None:
        self._loop = _EventLoop()

        async def start() -> Any:
            client = aio.AIOKafkaConsumer(
                settings.topic,
                bootstrap_servers=settings.servers,
                client_id=settings.client_id,
                group_id=settings.client_id,
                enable_auto_commit=False,
                session_timeout_ms=int(STATIC[SESSION_TIMEOUT_MS]),
                heartbeat_interval_ms=int(STATIC[HEARTBEAT_INTERVAL_MS]),
                metadata_max_age_ms=INTERVAL_MS,
                enable_dynamic_config=settings.enabled,
                on_dynamic_config_change=settings.on_change,
            )
            await client.start()
            return client

        self._topic = settings.topic
        self._client = self._loop.run(start())

    def work(self) -> None:
        self.read()

    def is_assigned(self, partitions: int) -> bool:
        async def positions() -> list[int]:
            return [await self._client.position(partition) for partition in self._client.assignment()]

        return len(self._loop.run(positions())) == partitions

    def read(self) -> list[tuple[int, bytes]]:
        batches = self._loop.run(self._client.getmany(timeout_ms=20))
        return [(partition.partition, record.value) for partition, records in batches.items() for record in records]

    def pause(self, partition: int) -> None:
        self._loop.call(lambda: self._client.pause(aiokafka.TopicPartition(self._topic, partition)))

    def resume(self, partition: int) -> None:
        self._loop.call(lambda: self._client.resume(aiokafka.TopicPartition(self._topic, partition)))

    def seek(self, partition: int, offset: int) -> None:
        self._loop.call(lambda: self._client.seek(aiokafka.TopicPartition(self._topic, partition), offset))

    def close(self) -> None:
        self._loop.run(self._client.stop())
        self._loop.close()


def _acks(request: RecordedRequest) -> int:
    return request.read(ProduceRequest).acks


def _session_timeout(request: RecordedRequest) -> int:
    return request.read(JoinGroupRequest).session_timeout_ms


def _producer(name: str, start: Callable[[Settings], RunningClient]) -> Family[RunningClient]:
    return Family(
        name=f"{name} producer",
        api=ProduceRequest.API_KEY,
        key=ACKS,
        read=_acks,
        new=("all", -1),
        old=1,
        bad={ACKS: "2"},
        keys=(ACKS,),
        start=start,
    )


def _consumer(name: str, start: Callable[[Settings], RunningConsumer]) -> Family[RunningConsumer]:
    return Family(
        name=f"{name} consumer",
        api=JoinGroupRequest.API_KEY,
        key=SESSION_TIMEOUT_MS,
        read=_session_timeout,
        new=("21000", 21_000),
        old=30_000,
        bad={SESSION_TIMEOUT_MS: "22000", HEARTBEAT_INTERVAL_MS: "22000"},
        keys=(SESSION_TIMEOUT_MS, HEARTBEAT_INTERVAL_MS),
        start=start,
    )


PRODUCERS: Final = (
    _producer("kafka-python", _KafkaPythonProducer),
    _producer("confluent", _ConfluentProducer),
    _producer("aiokafka", _AioProducer),
)
CONSUMERS: Final = (
    _consumer("kafka-python", _KafkaPythonConsumer),
    _consumer("confluent", _ConfluentConsumer),
    _consumer("aiokafka", _AioConsumer),
)


def encoded(response: DescribeClientConfigsResponse) -> bytes:
    """Return the body of an answer to key 50."""
    return bytes(encode(response, 0))
