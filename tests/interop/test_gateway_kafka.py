"""Two gateways in front of three nodes of real Apache Kafka: clients, transactions, tools, faults, addresses."""

from __future__ import annotations

import contextlib
import gc
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer

import klamm
from klamm.admin import AdminClient, ElectionType, NewTopic, TopicPartition
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from tests.support.families import CONFLUENT_KAFKA, FAMILIES
from tests.support.java import STREAMS, start_java, streams_class_path
from tests.support.kafka_tools import KafkasTools, run_tool
from tests.support.logs import batch
from tests.support.processes import free_port, stop_process, wait_until
from tests.support.security import Certificates, client_properties
from tests.support.taps import Taps, TlsTap, consecutive_ports
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from klamm.protocol.schema import Message
    from tests.support.families import Family
    from tests.support.families.model import RunningConsumer, RunningProducer
    from tests.support.kafka import KafkaCluster, KafkaNode

_COUNT = 300
_PATIENCE_S = 120.0
_TOOLS = "org.apache.kafka.tools"

# The libraries leave the sockets of a broker that died to the garbage collector.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]


@pytest.fixture(autouse=True)
def _sockets_collected() -> Iterator[None]:
    yield
    gc.collect()


class Rig:
    """The cluster with a broker that is not started yet, the gateways, and the taps that clients bootstrap from."""

    def __init__(
        self, cluster: KafkaCluster, later: KafkaNode, gateways: list[klamm.Gateway], taps: list[Taps]
    ) -> None:
        self.cluster = cluster
        self.later = later
        self.gateways = gateways
        self.taps = taps

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of both gateways."""
        return ",".join(f"127.0.0.1:{tap.base}" for tap in self.taps)


@pytest.fixture(scope="module")
def rig(real_kafka_3: KafkaCluster) -> Iterator[Rig]:
    """Clients may receive any byte but the addresses of brokers and of the gateways behind the taps."""
    gateways: list[klamm.Gateway] = []
    with contextlib.ExitStack() as stack:
        later = stack.enter_context(real_kafka_3.another_broker())
        forbidden = [node.port for node in real_kafka_3.nodes.values()]
        count = len(forbidden) + 1
        bases = [consecutive_ports(count) for _ in range(2)]
        taps = [
            stack.enter_context(Taps(count, lambda number, base=base: base + number, forbidden + bases))  # type: ignore[misc]
            for base in bases
        ]
        for base, tap in zip(bases, taps, strict=True):
            gateway = klamm.Gateway(
                f"{real_kafka_3.nodes[1].host}:{real_kafka_3.nodes[1].port}",
                listen=f"127.0.0.1:{base}",
                config={"advertised.listeners": f"127.0.0.1:{tap.base}"},
            )
            gateways.append(stack.enter_context(gateway))
        yield Rig(real_kafka_3, later, gateways, taps)


@pytest.mark.parametrize(
    ("families", "joins"),
    [((CONFLUENT_KAFKA,), False), (FAMILIES, True)],
    ids=["librdkafka", "all"],
)
def test_clients_continue_through_changes_of_brokers_and_gateways(
    rig: Rig, families: Sequence[Family], *, joins: bool
) -> None:
    """Leaders are moved, a broker and a gateway are killed, come back and lead, as does a broker that joins."""
    topics = {family.name: f"gateway-{uuid.uuid4().hex[:8]}" for family in families}
    with AdminClient(rig.bootstrap_servers) as admin:
        new = [NewTopic(name=topic, num_partitions=3, replication_factor=3) for topic in topics.values()]
        admin.create_topics(new).all().result()
    producers: dict[str, RunningProducer] = {}
    consumers: dict[str, RunningConsumer] = {}
    with contextlib.ExitStack() as ending:
        ending.callback(rig.cluster.remove, rig.later)
        ending.callback(_delete, rig, topics.values())  # the broker that leads them leaves
        for family in families:
            topic = topics[family.name]
            consumers[family.name] = family.consumer(rig.bootstrap_servers, topic, topic)
            ending.callback(consumers[family.name].stop)
        for family in families:
            producer = family.producer(
                rig.bootstrap_servers, topics[family.name], count=_COUNT, records_per_s=_COUNT // 10
            )
            ending.callback(producer.stop)
            producers[family.name] = producer
        _until_acknowledged(producers, _COUNT // 6)
        if joins:
            rig.later.launch()
        _move_leaders(rig, topics.values(), {0: (2, 3, 1), 1: (3, 1, 2), 2: (1, 2, 3)})
        _until_acknowledged(producers, 2 * _COUNT // 6)
        rig.cluster.nodes[2].kill()
        _until_acknowledged(producers, 3 * _COUNT // 6)
        rig.cluster.nodes[2].start(expected_nodes=3)
        rig.gateways[0].kill()
        _until_acknowledged(producers, 4 * _COUNT // 6)
        rig.gateways[0].start()
        leader = 2
        if joins:
            rig.later.wait_ready(expected_nodes=4)
            leader = 4
        _move_leaders(rig, topics.values(), {0: (leader, 3, 1), 1: (leader, 3, 1), 2: (leader, 1, 3)})
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
    assert {name: producer.failures for name, producer in producers.items()} == {family.name: [] for family in families}
    _assert_no_address_leaked(rig)


def _move_leaders(rig: Rig, topics: Collection[str], replicas: Mapping[int, Sequence[int]]) -> None:
    """Have an operator assign replicas to the partitions of each topic, and make the first of each the leader."""
    wanted = {TopicPartition(topic, index): each for topic in topics for index, each in replicas.items()}
    with AdminClient(rig.bootstrap_servers) as admin:
        admin.alter_partition_reassignments(wanted).all().result(300)
        wait_until(
            lambda: not admin.list_partition_reassignments(wanted).result(300),
            timeout_s=_PATIENCE_S,
            what="the replicas to move",
        )
        wait_until(
            lambda: _are_led(admin, wanted), timeout_s=_PATIENCE_S, what="the first replicas to lead", interval_s=0.2
        )


def _are_led(admin: AdminClient, wanted: Mapping[TopicPartition, Sequence[int]]) -> bool:
    """Elect the first replicas; return whether they lead. A broker that a busy machine delays may lose the lead."""
    for outcome in admin.elect_leaders(ElectionType.PREFERRED, wanted).values().values():
        outcome.exception(60)  # most often, that no election is needed
    described = admin.describe_topics({partition.topic for partition in wanted}).all().result(300)
    return all(
        described[partition.topic].partitions[partition.partition].leader == replicas[0]
        for partition, replicas in wanted.items()
    )


def _wait_until_known(rig: Rig, topics: Collection[str]) -> None:
    """Wait until each of the three brokers knows the topics."""
    for number in (1, 2, 3):
        node = rig.cluster.nodes[number]
        with WireClient(f"{node.host}:{node.port}", timeout_s=60) as client:
            _wait_until_listed(client, topics, f"broker {number} to know {topics}")


def _wait_until_listed(client: WireClient, topics: Collection[str], what: str) -> None:
    wait_until(lambda: client.topic_ids().keys() >= set(topics), timeout_s=_PATIENCE_S, what=what)


def _delete(rig: Rig, topics: Collection[str]) -> None:
    with AdminClient(rig.bootstrap_servers) as admin:
        admin.delete_topics(topics).all().result(300)


def _until_acknowledged(producers: dict[str, RunningProducer], count: int) -> None:
    for name, producer in producers.items():
        wait_until(
            lambda each=producer: len(each.acknowledged) >= count,  # type: ignore[misc]
            timeout_s=_PATIENCE_S,
            what=f"{count} acknowledged records of {name}",
            alive=producer.check,
        )


def test_transaction_with_group_offsets_commits_atomically(rig: Rig) -> None:
    source, target = (f"gateway-{uuid.uuid4().hex[:8]}" for _ in range(2))
    with AdminClient(rig.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name=name, num_partitions=1) for name in (source, target)]).all().result()
    _wait_until_known(rig, {source, target})  # a consumer reports a topic that a broker does not know
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
    tool = f"{_TOOLS}.TopicCommand"
    run_tool(tool, *at, "--create", "--topic", topic, "--partitions", "2", "--replication-factor", "3")
    _wait_until_known(rig, {topic})
    assert "ReplicationFactor: 3" in run_tool(tool, *at, "--describe", "--topic", topic)
    alter = ("--alter", "--add-config", "retention.ms=1234")
    run_tool("kafka.admin.ConfigCommand", *at, "--entity-type", "topics", "--entity-name", topic, *alter)
    quorum = run_tool(f"{_TOOLS}.MetadataQuorumCommand", *at, "describe", "--status")
    assert rig.cluster.cluster_id in quorum
    _assert_no_address_leaked(rig)


def test_java_clients_reach_each_broker_by_host_name_on_one_port(
    real_kafka_3: KafkaCluster, make_klamm_gateway: Callable[..., klamm.Gateway], tmp_path: Path
) -> None:
    # given: names that lead to a tap before the gateway, the only port that clients can reach
    certificates = Certificates.create(tmp_path)
    store = certificates.issue("kafka", "/CN=kafka", hosts=("kafka.example", "*.kafka.example"))
    names = {
        node_id: f"broker-{node_id}.kafka.example" for node_id, node in real_kafka_3.nodes.items() if node.is_running
    }
    (tmp_path / "hosts").write_text("".join(f"127.0.0.1 {name}\n" for name in ("kafka.example", *names.values())))
    tls = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
    }
    port = free_port()
    forbidden = [port, *(node.port for node in real_kafka_3.nodes.values())]
    with TlsTap(port, store, certificates.authority, forbidden) as tap:
        config = {
            "advertised.listeners": f"SSL://kafka.example:{tap.port}",
            "broker.host.pattern": "broker-$(nodeId).kafka.example",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
        }
        make_klamm_gateway(real_kafka_3.bootstrap_servers, listen=f"SSL://127.0.0.1:{port}", config=config)
        at = ("--bootstrap-server", f"kafka.example:{tap.port}")
        properties = ("--command-config", str(client_properties(tmp_path / "client.properties", tls)))
        topic = ("--topic", f"gateway-{uuid.uuid4().hex[:8]}")
        lines = {f"{number}" for number in range(30)}
        with KafkasTools(f"-Djdk.net.hosts.file={tmp_path / 'hosts'}") as tools:

            def run(tool: str, *arguments: str, stdin: str = "") -> str:
                outcome = tools.run(tool, *at, *properties, *arguments, stdin=stdin.encode())
                assert outcome.exit_code == 0, outcome
                return outcome.stdout

            # when: one leader at each broker, records with keys, a group, a changed config
            run(f"{_TOOLS}.TopicCommand", "--create", *topic, "--replica-assignment", "1,2,3")
            keys = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
            run(f"{_TOOLS}.ConsoleProducer", *topic, *keys, stdin="".join(f"{line}:{line}\n" for line in lines))
            counted = ("--max-messages", str(len(lines)), "--timeout-ms", "60000")
            read = run(f"{_TOOLS}.consumer.ConsoleConsumer", *topic, "--group", topic[1], "--from-beginning", *counted)
            change = ("--alter", "--add-config", "retention.ms=1234", "--entity-type", "topics")
            run("kafka.admin.ConfigCommand", *change, "--entity-name", topic[1])
            # then
            wait_until(
                lambda: "retention.ms=1234" in run(f"{_TOOLS}.TopicCommand", "--describe", *topic),
                timeout_s=_PATIENCE_S,
                what="a broker to know the changed config",
            )
            listed = run(f"{_TOOLS}.BrokerApiVersionsCommand")
    assert set(read.split()) == lines
    assert {each for each in listed.split() if each.startswith("broker-")} == {
        f"{name}:{tap.port}" for name in names.values()
    }
    assert tap.asked == {"kafka.example", *names.values()}
    assert tap.received_bytes > 0
    assert tap.leaked == []


def test_no_version_of_any_response_has_the_address_of_a_broker(rig: Rig) -> None:
    """Among them Produce and Fetch that are sent to a broker that does not lead the partition (KIP-951)."""
    topic = f"gateway-{uuid.uuid4().hex[:8]}"
    with AdminClient(rig.bootstrap_servers) as admin:
        created = admin.create_topics([NewTopic(name=topic, replicas_assignments={0: (1, 2)})]).values()[topic]
        topic_id = created.result(300).topic_id
    _wait_until_known(rig, {topic})
    led_elsewhere = ErrorCode.NOT_LEADER_OR_FOLLOWER
    data = ProduceRequest.PartitionProduceData(index=0, records=bytes(batch("x")))
    produced = ProduceRequest(
        acks=-1,
        timeout_ms=5_000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, topic_id=topic_id, partition_data=[data])],
    )
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    fetched = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        topics=[FetchRequest.FetchTopic(topic=topic, topic_id=topic_id, partitions=[partition])],
    )
    listed = ListOffsetsRequest(
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name=topic, partitions=[ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)]
            )
        ]
    )
    requests: list[tuple[Message, type[Message], int]] = [
        (MetadataRequest(topics=None), MetadataResponse, 1),
        (FindCoordinatorRequest(key=topic, key_type=0, coordinator_keys=[topic]), FindCoordinatorResponse, 0),
        (FindCoordinatorRequest(key=topic, key_type=1, coordinator_keys=[topic]), FindCoordinatorResponse, 1),
        (DescribeClusterRequest(), DescribeClusterResponse, 0),
        (DescribeClusterRequest(endpoint_type=2), DescribeClusterResponse, 1),
        (produced, ProduceResponse, 3),
        (fetched, FetchResponse, 4),
        (listed, ListOffsetsResponse, 1),
    ]
    seen: set[tuple[str, int]] = set()
    hinted = 0
    for tap in rig.taps:
        with WireClient(f"127.0.0.1:{tap.base + 3}", timeout_s=60) as client:
            versions = client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2)
            offered = {api.api_key: api for api in versions.api_keys}
            for request, response_class, first in requests:
                api = offered[request.API_KEY]
                for version in range(max(api.min_version, first), api.max_version + 1):
                    answer: Any = client.ask(request, response_class, version)
                    seen.add((response_class.__name__, version))
                    if isinstance(answer, ProduceResponse):
                        ((entry,),) = [each.partition_responses for each in answer.responses]
                        assert entry.error_code == led_elsewhere
                        for leader in answer.node_endpoints:
                            hinted += 1
                            assert (leader.node_id, leader.port) == (1, tap.base + 1)
    assert {("MetadataResponse", 13), ("ProduceResponse", 13), ("FetchResponse", 15)} <= seen
    assert hinted == len(rig.taps) * len(range(10, 14))
    _assert_no_address_leaked(rig)


def test_kafka_streams_counts_each_record_once_while_a_gateway_dies(rig: Rig, tmp_path: Path) -> None:
    """With ``exactly_once_v2``: each count is written once, whatever was repeated."""
    source, target = (f"gateway-{uuid.uuid4().hex[:8]}" for _ in range(2))
    with AdminClient(rig.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name=name, num_partitions=2) for name in (source, target)]).all().result(300)
    _wait_until_known(rig, {source, target})  # Streams ends when a broker does not know its topic
    half, keys = 300, 10

    def produce(first: int) -> None:
        producer = Producer({"bootstrap.servers": rig.bootstrap_servers, "log_level": 0})
        for number in range(first, first + half):
            producer.produce(source, key=b"k%d" % (number % keys), value=b"%d" % number)
        assert producer.flush(60) == 0

    counts: dict[bytes, list[int]] = {}
    consumer = Consumer(
        {
            "bootstrap.servers": rig.bootstrap_servers,
            "group.id": target,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.subscribe([target])

    def read_until(count: int) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while sum(map(len, counts.values())) < count:
            assert time.monotonic() < deadline, (counts, [line for line in log.open() if "INFO" not in line][-50:])
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                counts.setdefault(message.key() or b"", []).append(int(message.value() or b""))

    produce(0)
    log = tmp_path / "streams.log"
    program = start_java(
        str(STREAMS), rig.bootstrap_servers, source, target, target, log=log, jars=streams_class_path()
    )
    try:
        read_until(half)
        rig.gateways[0].kill()
        produce(half)
        read_until(half + half // 2)
        rig.gateways[0].start()
        read_until(2 * half)
    finally:
        consumer.close()
        stop_process(program)
    assert counts == {b"k%d" % key: list(range(1, 2 * half // keys + 1)) for key in range(keys)}
    _assert_no_address_leaked(rig)


def _assert_no_address_leaked(rig: Rig) -> None:
    assert sum(tap.received_bytes for tap in rig.taps) > 0
    assert [chunk for tap in rig.taps for chunk in tap.leaked] == []
