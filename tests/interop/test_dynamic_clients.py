"""Hand-over between confluent-kafka's clients in a group of several, and clients without central configs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaException, TopicPartition

from klamm.admin import AdminClient, ClientConfigEntity, ClientConfigOp, NewTopic
from klamm.clients import KafkaConsumer, KafkaProducer, aio, confluent
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest
from klamm.protocol.messages.heartbeat import HeartbeatRequest
from klamm.protocol.messages.join_group import JoinGroupRequest
from klamm.protocol.messages.leave_group import LeaveGroupRequest
from tests.support.frame_proxy import FrameProxy
from tests.support.klamm import KlammBroker
from tests.support.long_tests import long_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from klamm.clients import ConfigUpdate

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


def confluent_consumer(
    servers: str, client_id: str, group: str, on_change: Callable[[ConfigUpdate], None] | None = None, /, **more: Any
) -> confluent.Consumer:
    properties = {
        "bootstrap.servers": servers,
        "client.id": client_id,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "metadata.max.age.ms": 200,
        SESSION_TIMEOUT: 30_000,
        "heartbeat.interval.ms": 300,
    }
    return confluent.Consumer(properties | more, on_dynamic_config_change=on_change, logger=SILENT)


def poll_until(client: confluent.Consumer, condition: Callable[[], bool]) -> list[bytes]:
    deadline = time.monotonic() + 30
    values = []
    while not condition():
        assert time.monotonic() < deadline
        message = client.poll(0.05)
        if message is not None:
            assert message.error() is None
            values.append(message.value())
    return values


def test_confluent_producer_is_replaced_without_loss_and_in_order(admin: AdminClient, proxy: FrameProxy) -> None:
    """K649-34: Resolved dynamic values override the client's static (.properties) values; static overrides built-in
    defaults.

    K649-74: Producer: fetch in the send loop; acks of later Produce requests follow the dynamic value.

    K649-75: Producer registers [acks]; consumer registers [session.timeout.ms, heartbeat.interval.ms].

    K649-77: A key that vanishes from the answer reverts to the client's static value.
    """
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


@pytest.mark.parametrize("assignor", ["range", *long_only("cooperative-sticky")])
def test_confluent_consumer_rejoins_without_a_rebalance(
    assignor: str, admin: AdminClient, proxy: FrameProxy, broker: KlammBroker
) -> None:
    """K649-73: Consumer: first fetch is done before the first JoinGroup so the join already carries the dynamic session
    timeout; then periodically.

    K649-77: A key that vanishes from the answer reverts to the client's static value.

    K649-78: Changed session.timeout.ms is sent to the coordinator by a new JoinGroup; a stable group must not rebalance
    for that alone.
    """
    # given
    name = topic(admin, f"confluent-timeouts-{uuid4()}", 2)
    group, strategy = name, {"partition.assignment.strategy": assignor}
    put(admin, "c-timeouts", **{SESSION_TIMEOUT: "21000"})
    assigned: list[int] = []
    client = confluent_consumer(
        proxy.bootstrap_servers, "c-timeouts", group, **strategy, **{"enable.auto.commit": False}
    )
    client.subscribe([name], on_assign=lambda _, partitions: assigned.append(len(partitions)))
    other = confluent_consumer(broker.bootstrap_servers, "c-other", group, **strategy)
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
        beats = len(proxy.requests(12))
        poll_until(client, lambda: len(proxy.requests(12)) > beats + 1)  # cooperative members join once more
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


@pytest.mark.parametrize("is_automatic", [True, False], ids=["offsets stored by librdkafka", "by the application"])
def test_confluent_consumer_commits_what_it_read_before_its_replacement(
    admin: AdminClient, proxy: FrameProxy, *, is_automatic: bool
) -> None:
    """An application that commits after a batch would fail, or read the first part of the batch again."""
    # given
    name = topic(admin, f"confluent-commits-{uuid4()}", 2)
    more = {"enable.auto.commit": False, "enable.auto.offset.store": is_automatic}
    both = [TopicPartition(name, number) for number in range(2)]
    with (
        confluent_producer(proxy.bootstrap_servers, "c-commits-writer") as writer,
        confluent_consumer(proxy.bootstrap_servers, name, name, **more) as client,
    ):
        client.subscribe([name])

        def write_and_read(*partitions: int) -> None:
            for partition in partitions:
                writer.produce(name, b"", partition=partition)
            assert writer.flush(20) == 0
            for _ in partitions:
                (message,) = client.consume(1, 30)
                if not is_automatic:
                    client.store_offsets(message)

        write_and_read(0, 1)
        # when
        put(admin, name, **{SESSION_TIMEOUT: "22000"})
        poll_until(client, lambda: session_timeouts(proxy)[-1] == 22_000 and len(client.assignment()) == 2)
        # then
        assert [each.offset for each in client.position(both)] == [1, 1]
        write_and_read(0)
        client.commit(asynchronous=False)
        assert [each.offset for each in client.committed(both, timeout=20)] == [2, 1]
        client.seek(TopicPartition(name, 1, 0))
        assert [each.offset for each in client.position(both)] == [2, OFFSET_INVALID]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """A consumer of two partitions that has read one record of each and is replaced by the next ``poll``."""

    client: confluent.Consumer
    broker: KlammBroker
    topic: str
    messages: dict[int, Any]
    has_values: threading.Event

    def replace(self) -> None:
        """Start the replacement. The new consumer has no assignment yet."""
        with AdminClient(self.broker.bootstrap_servers, timeout_ms=20_000) as admin:
            put(admin, self.topic, **{SESSION_TIMEOUT: "22000"})
        assert self.has_values.wait(20)
        assert self.client.poll(0) is None

    def join(self) -> None:
        poll_until(self.client, lambda: len(self.client._consumer.assignment()) == 2)

    def committed(self) -> list[int]:
        both = [TopicPartition(self.topic, number) for number in range(2)]
        return [each.offset for each in self.client.committed(both, timeout=20)]


@contextlib.contextmanager
def replaced(
    admin: AdminClient, broker: KlammBroker, *, is_automatic: bool = True, **listeners: Any
) -> Iterator[Replaced]:
    name = topic(admin, f"confluent-replaced-{uuid4()}", 2)
    servers, has_values = broker.bootstrap_servers, threading.Event()
    more = {"enable.auto.commit": False, "enable.auto.offset.store": is_automatic}
    with (
        confluent_producer(servers, f"{name}-writer") as writer,
        confluent_consumer(servers, name, name, lambda _: has_values.set(), **more) as client,
    ):
        for partition in range(2):
            writer.produce(name, b"", partition=partition)
        assert writer.flush(20) == 0
        client.subscribe([name], **listeners)
        messages = {message.partition(): message for message in client.consume(2, 30)}
        yield Replaced(client=client, broker=broker, topic=name, messages=messages, has_values=has_values)


def test_confluent_consumer_commits_on_revoke_what_it_read_before_its_replacement(
    admin: AdminClient, broker: KlammBroker
) -> None:
    """Without it, the next owner of the partitions reads these records again."""
    revoked: list[int] = []

    def commit(client: Any, partitions: list[Any]) -> None:
        revoked.append(len(partitions))
        with contextlib.suppress(KafkaException):  # nothing to commit when the consumer is closed
            client.commit(asynchronous=False)

    with contextlib.ExitStack() as stack, replaced(admin, broker, on_revoke=commit) as case:
        case.replace()
        case.join()
        # when
        other = stack.enter_context(confluent_consumer(broker.bootstrap_servers, "second", case.topic))
        other.subscribe([case.topic])
        other.poll(0)
        poll_until(case.client, lambda: bool(revoked))
        # then
        assert case.committed() == [1, 1]
        poll_until(case.client, lambda: other.poll(0.05) is None and len(other.assignment()) == 1)


@pytest.mark.parametrize("is_automatic", [True, False], ids=["offsets stored by librdkafka", "by the application"])
def test_commit_before_the_new_assignment_keeps_the_static_member(
    admin: AdminClient, broker: KlammBroker, *, is_automatic: bool
) -> None:
    """A commit before the new consumer has joined would be fenced, which is fatal for librdkafka."""
    with replaced(admin, broker, is_automatic=is_automatic) as case:
        case.replace()
        # when
        if not is_automatic:
            for message in case.messages.values():
                case.client.store_offsets(message)
        committed = case.client.commit(asynchronous=False)
        # then
        assert sorted((one.partition, one.offset) for one in committed) == [(0, 1), (1, 1)]
        case.join()
        assert case.committed() == [1, 1]


def test_transaction_commits_offsets_before_the_new_assignment(admin: AdminClient, broker: KlammBroker) -> None:
    """Without them, the records of the transaction would be processed again."""
    with (
        replaced(admin, broker) as case,
        confluent_producer(broker.bootstrap_servers, "c-eos", acks="all", **{"transactional.id": case.topic}) as eos,
    ):
        eos.init_transactions(20)
        eos.begin_transaction()
        case.replace()
        # when
        positions = case.client.position(case.client.assignment())
        eos.send_offsets_to_transaction(positions, case.client.consumer_group_metadata(), 20)
        eos.commit_transaction(20)
        # then
        assert case.committed() == [1, 1]
        case.join()


def test_commit_of_one_partition_leaves_the_other_to_the_next_commit(admin: AdminClient, broker: KlammBroker) -> None:
    with replaced(admin, broker) as case:
        case.replace()
        case.client.commit(offsets=[TopicPartition(case.topic, 0, 1)], asynchronous=False)
        case.join()
        # when
        case.client.commit(asynchronous=False)
        # then
        assert case.committed() == [1, 1]


def test_offsets_stored_during_a_replacement_are_committed(admin: AdminClient, broker: KlammBroker) -> None:
    with replaced(admin, broker, is_automatic=False) as case:
        case.replace()
        case.client.store_offsets(case.messages[0])
        case.join()
        # when
        case.client.commit(asynchronous=False)
        # then
        assert case.committed() == [1, OFFSET_INVALID]


@pytest.mark.parametrize("is_asynchronous", [True, False], ids=["asynchronous", "synchronous"])
def test_commit_after_a_replacement_does_not_go_back(
    admin: AdminClient, broker: KlammBroker, *, is_asynchronous: bool
) -> None:
    """An offset that was stored earlier than the latest commit is not committed."""
    with replaced(admin, broker, is_automatic=False) as case:
        case.client.store_offsets(offsets=[TopicPartition(case.topic, 0, 0)])
        case.client.commit(message=case.messages[0], asynchronous=is_asynchronous)
        case.replace()
        case.join()
        # when
        with contextlib.suppress(KafkaException):  # nothing to commit
            case.client.commit(asynchronous=False)
        # then
        assert case.committed() == [1, OFFSET_INVALID]


@pytest.mark.parametrize("is_over", [False, True], ids=["at once", "after unsubscribing has ended"])
def test_consumer_that_has_unsubscribed_is_no_member_after_close(
    is_over: bool, admin: AdminClient, broker: KlammBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a static member. librdkafka removes it only if the offsets are committed before its consumer is closed."""
    # given
    caplog.set_level(logging.INFO, "klamm.clients")
    name = topic(admin, f"unsubscribed-{uuid4()}")
    with confluent_producer(broker.bootstrap_servers, "c-writer") as writer:
        writer.produce(name, b"value")
        assert writer.flush(20) == 0
    client = confluent_consumer(broker.bootstrap_servers, "c-unsubscribed", name)
    client.subscribe([name])
    poll_until(client, lambda: _at(client, 1))

    def members() -> int:
        return len(admin.describe_groups([name]).result()[name].members)

    assert members() == 1
    # when
    client.unsubscribe()
    if is_over:
        poll_until(client, lambda: members() == 0)
    client.close()
    # then
    assert members() == 0
    assert "did not leave" not in caplog.text


def _at(client: confluent.Consumer, offset: int) -> bool:
    return [position.offset for position in client.position(client.assignment())] == [offset]


async def test_consumer_without_a_group_sends_no_config_request(admin: AdminClient, proxy: FrameProxy) -> None:
    """K649-71: Client switch ``enable.dynamic.config`` (bool, default true); false -> never sends key 50."""
    # given
    name = topic(admin, f"without-a-group-{uuid4()}")
    client = KafkaConsumer(name, bootstrap_servers=proxy.bootstrap_servers, group_id=None, metadata_max_age_ms=100)
    # when
    client.poll(300)
    client.close()

    theirs = aio.AIOKafkaConsumer(name, bootstrap_servers=proxy.bootstrap_servers, metadata_max_age_ms=100)
    await theirs.start()
    await theirs.getmany(timeout_ms=300)
    await theirs.stop()
    # then
    assert proxy.requests(50) == []


HALF = 20


def in_a_transaction_of_kafka_python(servers: str, client_id: str, name: str, meanwhile: Callable[[], None]) -> None:
    with KafkaProducer(
        bootstrap_servers=servers, client_id=client_id, transactional_id=client_id, metadata_max_age_ms=100
    ) as client:
        client.init_transactions()
        client.begin_transaction()
        for number in range(2 * HALF):
            if number == HALF:
                client.flush(30)
                meanwhile()
            client.send(name, b"%d" % number)
        client.commit_transaction()


def in_a_transaction_of_confluent(servers: str, client_id: str, name: str, meanwhile: Callable[[], None]) -> None:
    with confluent_producer(servers, client_id, **{"transactional.id": client_id, "acks": "all"}) as client:
        client.init_transactions(30)
        client.begin_transaction()
        for number in range(2 * HALF):
            if number == HALF:
                assert client.flush(30) == 0
                meanwhile()
            client.produce(name, b"%d" % number)
        client.commit_transaction(30)


def in_a_transaction_of_aiokafka(servers: str, client_id: str, name: str, meanwhile: Callable[[], None]) -> None:
    async def scenario() -> None:
        client = aio.AIOKafkaProducer(
            bootstrap_servers=servers, client_id=client_id, transactional_id=client_id, metadata_max_age_ms=100
        )
        await client.start()
        try:
            async with client.transaction():
                for number in range(2 * HALF):
                    if number == HALF:
                        await client.flush()
                        await asyncio.to_thread(meanwhile)
                    await client.send(name, b"%d" % number)
        finally:
            await client.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "produce",
    [in_a_transaction_of_kafka_python, in_a_transaction_of_confluent, in_a_transaction_of_aiokafka],
    ids=lambda produce: produce.__name__,
)
def test_transaction_continues_despite_central_acks(
    produce: Callable[[str, str, str, Callable[[], None]], None],
    admin: AdminClient,
    proxy: FrameProxy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """K649-76: A set that fails client validation (e.g. heartbeat >= session."""
    # given
    name = topic(admin, f"transaction-{uuid4()}")

    def set_acks() -> None:
        put(admin, name, acks="0")
        requests_before = len(proxy.requests(50))
        proxy.wait_for(lambda: len(proxy.requests(50)) >= requests_before + 2, timeout_s=60)

    # when
    produce(proxy.bootstrap_servers, name, name, set_acks)
    # then
    assert set(proxy.produced_acks()) == {-1}
    assert caplog.text.count("are rejected, the last good ones stay") == 1
    properties = {"isolation.level": "read_committed", "enable.auto.commit": False}
    with confluent_consumer(proxy.bootstrap_servers, "transaction-reader", name, **properties) as reader:
        reader.subscribe([name])
        read: list[bytes] = []
        deadline = time.monotonic() + 60
        while len(read) < 2 * HALF:
            assert time.monotonic() < deadline, read
            read += [message.value() for message in reader.consume(2 * HALF - len(read), 0.2)]
    assert read == [b"%d" % number for number in range(2 * HALF)]
