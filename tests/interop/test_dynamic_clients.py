"""confluent-kafka's and aiokafka's clients follow what is set centrally: read from the frames they send."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from typing import TYPE_CHECKING, Any

import pytest

from klamm.admin import AdminClient, ClientConfigEntity, ClientConfigOp, NewTopic
from klamm.clients import aio, confluent
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest
from klamm.protocol.messages.heartbeat import HeartbeatRequest
from klamm.protocol.messages.join_group import JoinGroupRequest
from klamm.protocol.messages.leave_group import LeaveGroupRequest
from tests.support.frame_proxy import FrameProxy
from tests.support.klamm import KlammBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.kafka import KafkaCluster

SESSION_TIMEOUT = "session.timeout.ms"
SILENT = logging.getLogger("silent-librdkafka")
SILENT.propagate = False


@pytest.fixture(scope="module")
def broker() -> Iterator[KlammBroker]:
    with KlammBroker({"group.initial.rebalance.delay.ms": "0"}) as running:
        yield running


@pytest.fixture
def admin(broker: KlammBroker) -> Iterator[AdminClient]:
    with AdminClient(broker.bootstrap_servers, timeout_ms=20_000) as client:
        yield client


@pytest.fixture
def proxy(broker: KlammBroker) -> Iterator[FrameProxy]:
    with FrameProxy(broker.bootstrap_servers) as running:
        yield running


def topic(admin: AdminClient, name: str, partitions: int = 1) -> str:
    admin.create_topics([NewTopic(name=name, num_partitions=partitions, replication_factor=1)]).all().result()
    return name


def put(admin: AdminClient, client_id: str, **values: str | None) -> None:
    ops = [ClientConfigOp(name, value) for name, value in values.items()]
    admin.alter_client_configs({ClientConfigEntity.of_client("ANONYMOUS", client_id): ops}).all().result()


def flips(values: list[int]) -> list[int]:
    return [key for key, _ in itertools.groupby(values)]


def session_timeouts(proxy: FrameProxy) -> list[int]:
    return flips([request.read(JoinGroupRequest).session_timeout_ms for request in proxy.requests(11)])


def generations(proxy: FrameProxy) -> set[int]:
    return {request.read(HeartbeatRequest).generation_id for request in proxy.requests(12)}


def confluent_producer(servers: str, client_id: str, **more: Any) -> confluent.Producer:
    properties = {"bootstrap.servers": servers, "client.id": client_id, "acks": 1, "metadata.max.age.ms": 200}
    return confluent.Producer(properties | more, logger=SILENT)


def confluent_consumer(servers: str, client_id: str, group: str, **more: Any) -> confluent.Consumer:
    properties = {
        "bootstrap.servers": servers,
        "client.id": client_id,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "metadata.max.age.ms": 200,
        SESSION_TIMEOUT: 30_000,
        "heartbeat.interval.ms": 300,
    }
    return confluent.Consumer(properties | more, logger=SILENT)


def poll_until(client: confluent.Consumer, condition: Callable[[], bool]) -> list[bytes]:
    deadline = time.monotonic() + 30
    found = []
    while not condition():
        assert time.monotonic() < deadline
        message = client.poll(0.05)
        if message is not None:
            assert message.error() is None
            found.append(message.value())
    return found


def test_a_confluent_producer_hands_over_without_loss_and_in_order(admin: AdminClient, proxy: FrameProxy) -> None:
    """K649-34, K649-74, K649-75, K649-77."""
    # given
    name = topic(admin, "confluent-acks")
    updates: list[confluent.ConfigUpdate] = []
    delivered: list[int] = []

    def on_delivery(error: Any, message: Any) -> None:
        assert error is None
        delivered.append(int(message.value()))

    client = confluent.Producer(
        {"bootstrap.servers": proxy.bootstrap_servers, "client.id": "c-acks", "acks": 1, "metadata.max.age.ms": 200},
        on_dynamic_config_change=updates.append,
        logger=SILENT,
    )
    numbers = itertools.count()

    def produce_until(acks: int) -> None:
        deadline = time.monotonic() + 20
        while not proxy.produced_acks() or proxy.produced_acks()[-1] != acks:
            assert time.monotonic() < deadline
            for _ in range(10):
                client.produce(name, b"%d" % next(numbers), on_delivery=on_delivery)
            client.poll(0.02)

    # when
    produce_until(1)
    put(admin, "c-acks", acks="all")
    produce_until(-1)
    put(admin, "c-acks", acks=None)
    produce_until(1)
    assert client.close(20) == 0
    # then
    sent = next(numbers)
    assert delivered == list(range(sent))
    assert flips(proxy.produced_acks()) == [1, -1, 1]
    assert [update.effective["acks"] for update in updates] == ["all", "1"]
    with confluent_consumer(proxy.bootstrap_servers, "c-acks-reader", "c-acks-reader") as reader:
        reader.subscribe([name])
        read: list[bytes] = []
        while len(read) < sent:
            read += [message.value() for message in reader.consume(sent - len(read), 0.2)]
    assert [int(value) for value in read] == list(range(sent))
    assert proxy.requests(50)[0].read(DescribeClientConfigsRequest).supported_configs == ["acks"]


def test_an_idempotent_confluent_producer_is_never_replaced(admin: AdminClient, proxy: FrameProxy) -> None:
    """K649-76."""
    # given
    name = topic(admin, "confluent-idempotent")
    put(admin, "c-idempotent", acks="1")
    # when
    with confluent_producer(
        proxy.bootstrap_servers, "c-idempotent", **{"enable.idempotence": True, "acks": "all"}
    ) as client:
        client.produce(name, b"one")
        assert client.flush(20) == 0
    # then
    assert flips(proxy.produced_acks()) == [-1]


def test_a_confluent_consumer_rejoins_without_a_rebalance_and_goes_on_where_it_was(
    admin: AdminClient, proxy: FrameProxy, broker: KlammBroker
) -> None:
    """K649-73, K649-77, K649-78."""
    # given
    name = topic(admin, "confluent-timeouts", 2)
    put(admin, "c-timeouts", **{SESSION_TIMEOUT: "21000"})
    assigned: list[int] = []
    client = confluent_consumer(proxy.bootstrap_servers, "c-timeouts", "c-timeouts", **{"enable.auto.commit": False})
    client.subscribe([name], on_assign=lambda _, partitions: assigned.append(len(partitions)))
    other = confluent_consumer(broker.bootstrap_servers, "c-other", "c-timeouts")
    other.subscribe([name])
    with confluent_producer(broker.bootstrap_servers, "c-writer") as writer:

        def write(*numbers: int) -> None:
            for number in numbers:
                writer.produce(name, b"%d" % number, partition=0)
                writer.produce(name, b"%d" % number, partition=1)
            assert writer.flush(20) == 0

        # both are in, with one partition each
        poll_until(client, lambda: other.poll(0.05) is None and len(other.assignment()) == 1)
        poll_until(client, lambda: len(client.assignment()) == 1)
        mine = client.assignment()[0].partition
        write(*range(5))
        read: list[bytes] = []
        read += poll_until(client, lambda: len(client.position(client.assignment())) == 1 and _at(client, 5))
        before = generations(proxy)
        # when
        put(admin, "c-timeouts", **{SESSION_TIMEOUT: "22000"})
        read += poll_until(client, lambda: session_timeouts(proxy)[-1] == 22_000 and len(client.assignment()) == 1)
        write(*range(5, 10))
        read += poll_until(client, lambda: _at(client, 10))
    beats = len(proxy.requests(12))
    poll_until(client, lambda: len(proxy.requests(12)) > beats)
    # then
    assert read == [b"%d" % number for number in range(10)]
    assert session_timeouts(proxy) == [21_000, 22_000]
    assert client.assignment()[0].partition == mine
    assert max(generations(proxy)) == max(before)
    assert sum(1 for count in assigned if count) <= 2  # alone, then beside the other; not for the hand-over
    instances = {request.read(JoinGroupRequest).group_instance_id for request in proxy.requests(11)}
    assert len(instances) == 1
    client.close()
    left = [request.read(LeaveGroupRequest) for request in proxy.requests(13)]
    assert [member.group_instance_id for request in left for member in request.members] == list(instances)
    other.close()


def _at(client: confluent.Consumer, offset: int) -> bool:
    return [one.offset for one in client.position(client.assignment())] == [offset]


def test_a_confluent_client_that_is_told_not_to_never_asks(admin: AdminClient, proxy: FrameProxy) -> None:
    """K649-71."""
    # given
    name = topic(admin, "confluent-off")
    client = confluent.Producer(
        {"bootstrap.servers": proxy.bootstrap_servers, "client.id": "c-off"}, enable_dynamic_config=False, logger=SILENT
    )
    # when
    client.produce(name, b"one")
    assert client.close(20) == 0
    # then
    assert proxy.requests(50) == []


async def _produce_until(client: aio.AIOKafkaProducer, name: str, proxy: FrameProxy, acks: int) -> int:
    deadline = time.monotonic() + 20
    for count in range(1, 10_000):
        await client.send_and_wait(name, b"%d" % count)
        if proxy.produced_acks()[-1] == acks:
            return count
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    raise AssertionError


def test_an_aiokafka_producer_follows_acks(admin: AdminClient, proxy: FrameProxy) -> None:
    """K649-74, K649-75, K649-77."""
    # given
    name = topic(admin, "aio-acks")
    put(admin, "a-acks", acks="all")
    updates: list[aio.ConfigUpdate] = []

    async def scenario() -> None:
        client = aio.AIOKafkaProducer(
            bootstrap_servers=proxy.bootstrap_servers,
            client_id="a-acks",
            acks=1,
            metadata_max_age_ms=200,
            on_dynamic_config_change=updates.append,
        )
        await client.start()
        try:
            assert await _produce_until(client, name, proxy, -1) == 1
            put(admin, "a-acks", acks=None)
            await _produce_until(client, name, proxy, 1)
        finally:
            await client.stop()

    # when
    asyncio.run(scenario())
    # then
    assert flips(proxy.produced_acks()) == [-1, 1]
    assert [update.effective["acks"] for update in updates] == ["all", "1"]


def test_an_aiokafka_consumer_follows_its_timeouts_within_one_generation(admin: AdminClient, proxy: FrameProxy) -> None:
    """K649-73, K649-78, K649-79."""
    # given
    name = topic(admin, "aio-timeouts")
    put(admin, "a-timeouts", **{SESSION_TIMEOUT: "21000"})

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110  # what the proxy saw, it saw in another thread
                await asyncio.sleep(0.02)

    async def scenario() -> None:
        client = aio.AIOKafkaConsumer(
            name,
            bootstrap_servers=proxy.bootstrap_servers,
            client_id="a-timeouts",
            group_id="a-timeouts",
            session_timeout_ms=30_000,
            heartbeat_interval_ms=5_000,
            metadata_max_age_ms=200,
        )
        await client.start()
        try:
            put(admin, "a-timeouts", **{SESSION_TIMEOUT: "22000"})
            await until(lambda: session_timeouts(proxy)[-1] == 22_000)
            put(admin, "a-timeouts", **{"heartbeat.interval.ms": "100"})
            await until(lambda: len(proxy.requests(12)) > 10)
        finally:
            await client.stop()

    # when
    asyncio.run(scenario())
    # then
    assert session_timeouts(proxy) == [21_000, 22_000]
    first = proxy.requests(50)[0]
    assert first.at_s < proxy.requests(11)[0].at_s
    beats = [request.at_s for request in proxy.requests(12)][-8:]
    gaps = sorted(later - sooner for sooner, later in itertools.pairwise(beats))
    assert gaps[len(gaps) // 2] < 1


def test_against_real_kafka_both_work_and_send_nothing_of_kip_649(real_kafka: KafkaCluster) -> None:
    """K649-67, K649-70."""
    # given
    with AdminClient(real_kafka.bootstrap_servers) as admin:
        topic(admin, "dynamic-clients-elsewhere")

    async def scenario(servers: str) -> None:
        client = aio.AIOKafkaProducer(bootstrap_servers=servers)
        await client.start()
        try:
            await client.send_and_wait("dynamic-clients-elsewhere", b"two")
        finally:
            await client.stop()

    with FrameProxy(real_kafka.bootstrap_servers) as proxy:
        # when
        with confluent_producer(proxy.bootstrap_servers, "elsewhere") as client:
            client.produce("dynamic-clients-elsewhere", b"one")
            assert client.flush(20) == 0
        asyncio.run(scenario(proxy.bootstrap_servers))
        consumer = confluent_consumer(proxy.bootstrap_servers, "elsewhere", "elsewhere")
        consumer.subscribe(["dynamic-clients-elsewhere"])
        found: list[bytes] = []
        while len(found) < 2:
            found += [message.value() for message in consumer.consume(2, 0.2)]
        consumer.close()
        # then
        assert found == [b"one", b"two"]
        assert proxy.requests(50) == []
        assert {request.read(JoinGroupRequest).group_instance_id for request in proxy.requests(11)} == {None}
