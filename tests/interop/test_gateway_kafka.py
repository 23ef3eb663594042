"""Two gateways in front of three nodes of real Apache Kafka: clients, transactions, tools, faults, addresses."""

from __future__ import annotations

import contextlib
import gc
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer

import klamm
from klamm.admin import AdminClient, NewTopic
from tests.support.families import FAMILIES
from tests.support.java import java_tool
from tests.support.processes import wait_until
from tests.support.taps import Taps, consecutive_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.families.model import RunningConsumer, RunningProducer
    from tests.support.kafka import KafkaCluster

_COUNT = 1500
_PATIENCE_S = 120.0

# The libraries leave the sockets of a broker that died to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture(autouse=True)
def _sockets_collected() -> Iterator[None]:
    yield
    gc.collect()


class Rig:
    """The cluster, the gateways, and what clients bootstrap from: the taps before the gateways."""

    def __init__(self, cluster: KafkaCluster, gateways: list[klamm.Gateway], taps: list[Taps]) -> None:
        self.cluster = cluster
        self.gateways = gateways
        self.taps = taps

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of both gateways."""
        return ",".join(f"127.0.0.1:{tap.base}" for tap in self.taps)


@pytest.fixture(scope="module")
def rig(real_kafka_3: KafkaCluster) -> Iterator[Rig]:
    """Clients may receive any byte but the addresses of brokers and of the gateways behind the taps."""
    forbidden = [node.port for node in real_kafka_3.nodes.values()]
    count = len(forbidden) + 1
    bases = [consecutive_ports(count) for _ in range(2)]
    gateways: list[klamm.Gateway] = []
    with contextlib.ExitStack() as stack:
        taps = [
            stack.enter_context(Taps(count, lambda number, base=base: base + number, forbidden + bases))  # type: ignore[misc]
            for base in bases
        ]
        for base, tap in zip(bases, taps, strict=True):
            gateway = klamm.Gateway(
                real_kafka_3.bootstrap_servers,
                listen=f"127.0.0.1:{base}",
                config={"advertised.listeners": f"127.0.0.1:{tap.base}"},
            )
            gateways.append(stack.enter_context(gateway))
        yield Rig(real_kafka_3, gateways, taps)


def test_clients_of_all_families_continue_through_kills_of_brokers_and_gateways(rig: Rig) -> None:
    topics = {family.name: f"gateway-{uuid.uuid4().hex[:8]}" for family in FAMILIES}
    with AdminClient(rig.bootstrap_servers) as admin:
        new = [NewTopic(name=topic, num_partitions=3, replication_factor=3) for topic in topics.values()]
        admin.create_topics(new).all().result()
    producers: dict[str, RunningProducer] = {}
    consumers: dict[str, RunningConsumer] = {}
    with contextlib.ExitStack() as ending:
        for family in FAMILIES:
            topic = topics[family.name]
            consumers[family.name] = family.consumer(rig.bootstrap_servers, topic, topic)
            ending.callback(consumers[family.name].stop)
        for family in FAMILIES:
            producer = family.producer(
                rig.bootstrap_servers, topics[family.name], count=_COUNT, records_per_s=_COUNT // 10
            )
            ending.callback(producer.stop)
            producers[family.name] = producer
        _until_acknowledged(producers, _COUNT // 4)
        rig.cluster.nodes[2].kill()
        _until_acknowledged(producers, _COUNT // 2)
        rig.cluster.nodes[2].start(expected_nodes=3)
        rig.gateways[0].kill()
        _until_acknowledged(producers, 3 * _COUNT // 4)
        rig.gateways[0].start()
        for producer in producers.values():
            producer.join(_PATIENCE_S)
        wanted = set(range(_COUNT))
        for name, consumer in consumers.items():
            wait_until(
                lambda each=consumer: {delivery.value for delivery in each.delivered} == wanted,  # type: ignore[misc]
                timeout_s=_PATIENCE_S,
                what=f"every record of {name}",
                alive=consumer.check,
            )
    assert {name: producer.failures for name, producer in producers.items()} == {family.name: [] for family in FAMILIES}
    _assert_no_address_leaked(rig)


def _until_acknowledged(producers: dict[str, RunningProducer], count: int) -> None:
    for name, producer in producers.items():
        wait_until(
            lambda each=producer: len(each.acknowledged) >= count,  # type: ignore[misc]
            timeout_s=_PATIENCE_S,
            what=f"{count} acknowledged records of {name}",
            alive=producer.check,
        )


def test_a_transaction_with_group_offsets_is_committed_as_a_whole(rig: Rig) -> None:
    source, target = (f"gateway-{uuid.uuid4().hex[:8]}" for _ in range(2))
    with AdminClient(rig.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name=name, num_partitions=1) for name in (source, target)]).all().result()
    common = {"bootstrap.servers": rig.bootstrap_servers, "log_level": 0}
    reading = {**common, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    filler = Producer(common)
    filler.produce(source, b"1")
    assert filler.flush(30) == 0
    consumer = Consumer({**reading, "group.id": source, "enable.auto.commit": False})
    check = Consumer({**reading, "group.id": target})
    producer = Producer({**common, "transactional.id": target})
    try:
        consumer.subscribe([source])
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        producer.init_transactions(60)
        for value, commits in ((b"aborted", False), (b"committed", True)):
            producer.begin_transaction()
            producer.produce(target, value)
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 60
            )
            (producer.commit_transaction if commits else producer.abort_transaction)(60)
        check.subscribe([target])
        answer = check.poll(60)
        assert answer is not None
        assert answer.value() == b"committed"
        (committed,) = consumer.committed(consumer.assignment(), timeout=60)
        assert committed.offset == 1
    finally:
        consumer.close()
        check.close()
    _assert_no_address_leaked(rig)


def test_kafkas_tools_work_through_the_gateway(rig: Rig) -> None:
    topic = f"gateway-{uuid.uuid4().hex[:8]}"
    at = ("--bootstrap-server", rig.bootstrap_servers)
    tool = "org.apache.kafka.tools.TopicCommand"
    java_tool(tool, *at, "--create", "--topic", topic, "--partitions", "2", "--replication-factor", "3")
    assert "ReplicationFactor: 3" in java_tool(tool, *at, "--describe", "--topic", topic)
    alter = ("--alter", "--add-config", "retention.ms=1234")
    java_tool("kafka.admin.ConfigCommand", *at, "--entity-type", "topics", "--entity-name", topic, *alter)
    quorum = java_tool("org.apache.kafka.tools.MetadataQuorumCommand", *at, "describe", "--status")
    assert rig.cluster.cluster_id in quorum
    _assert_no_address_leaked(rig)


def _assert_no_address_leaked(rig: Rig) -> None:
    assert sum(tap.received_bytes for tap in rig.taps) > 0
    assert [chunk for tap in rig.taps for chunk in tap.leaked] == []
