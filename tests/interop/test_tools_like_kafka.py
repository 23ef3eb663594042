"""Kafka 4.3's other tools print the same for klamm and Apache Kafka: groups, offsets, leaders, producers.

One play of commands runs against both, and then some that measure or never end by themselves. kafka-topics,
kafka-configs and kafka-get-offsets are in test_cli_like_kafka.py.
"""

from __future__ import annotations

import json
import re
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
import pytest
from confluent_kafka import Consumer
from kafka import KafkaConsumer

from klamm.admin import AdminClient, NewTopic, OffsetAndMetadata, TopicPartition
from klamm.protocol.records import Record, encode_batch
from tests.support.java import java_tool
from tests.support.kafka_tools import KafkasTools, Outcome, shared_tools
from tests.support.kept_up import KeptUp
from tests.support.klamm import KlammBroker
from tests.support.klamm_tools import run_ours
from tests.support.long_tests import long_only
from tests.support.processes import wait_until
from tests.support.shared_cluster import unique
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.support.kafka import KafkaCluster
    from tests.support.probe import Cluster

_PACKAGE: Final = "org.apache.kafka.tools"
TOOLS: Final = {
    "client-metrics": f"{_PACKAGE}.ClientMetricsCommand",
    "cluster": f"{_PACKAGE}.ClusterTool",
    "consumer-groups": f"{_PACKAGE}.consumer.group.ConsumerGroupCommand",
    "console-consumer": f"{_PACKAGE}.consumer.ConsoleConsumer",
    "delete-records": f"{_PACKAGE}.DeleteRecordsCommand",
    "e2e-latency": f"{_PACKAGE}.EndToEndLatency",
    "features": f"{_PACKAGE}.FeatureCommand",
    "get-offsets": f"{_PACKAGE}.GetOffsetShell",
    "groups": f"{_PACKAGE}.GroupsCommand",
    "leader-election": f"{_PACKAGE}.LeaderElectionCommand",
    "log-dirs": f"{_PACKAGE}.LogDirsCommand",
    "producer-perf-test": f"{_PACKAGE}.ProducerPerformance",
    "reassign-partitions": f"{_PACKAGE}.reassign.ReassignPartitionsCommand",
    "streams-application-reset": f"{_PACKAGE}.StreamsResetter",
    "transactions": f"{_PACKAGE}.TransactionsCommand",
    "verifiable-consumer": f"{_PACKAGE}.VerifiableConsumer",
    "verifiable-producer": f"{_PACKAGE}.VerifiableProducer",
    "versions": f"{_PACKAGE}.BrokerApiVersionsCommand",
}
TOPIC: Final = "tools.t"
LIVE, IDLE, NEXT = "tools-live", "tools-idle", "tools-next"
"""A group with a member, one without, and one of the protocol of KIP-848 with a member."""
RECORDS: Final = 5
PARTITIONS: Final = 2

PLAY: Final = """\
consumer-groups --list
consumer-groups --list --state
consumer-groups --list --type
consumer-groups --list --state Empty
consumer-groups --list --type consumer
consumer-groups --list --type share
consumer-groups --describe --group tools-live
consumer-groups --describe --group tools-live --verbose
consumer-groups --describe --group tools-live --members
consumer-groups --describe --group tools-live --members --verbose
consumer-groups --describe --group tools-live --state
consumer-groups --describe --group tools-live --state --verbose
consumer-groups --describe --group tools-next
consumer-groups --describe --group tools-next --verbose
consumer-groups --describe --group tools-next --members
consumer-groups --describe --group tools-next --members --verbose
consumer-groups --describe --group tools-next --state
consumer-groups --describe --group tools-next --state --verbose
consumer-groups --describe --group tools-next --group tools-live --members --verbose
consumer-groups --describe --group tools-idle
consumer-groups --describe --group tools-idle --members
consumer-groups --describe --group tools-idle --state
consumer-groups --describe --group tools-nothing --group tools-idle
consumer-groups --describe --group tools-live --group tools-idle
consumer-groups --describe --group tools-nothing --members
consumer-groups --describe --group tools-nothing --state
consumer-groups --reset-offsets --group tools-idle --topic tools.t --to-earliest --dry-run
consumer-groups --reset-offsets --group tools-idle --topic tools.t --to-latest --execute
consumer-groups --reset-offsets --group tools-idle --topic tools.t:0 --shift-by -2 --execute
consumer-groups --reset-offsets --group tools-idle --all-topics --to-offset 1 --execute
consumer-groups --reset-offsets --group tools-idle --topic tools.t:0 --to-datetime 2020-01-01T00:00:00.000 --execute
consumer-groups --reset-offsets --group tools-idle --topic tools.t --by-duration PT1H --dry-run
consumer-groups --reset-offsets --group tools-idle --topic tools.t:0 --to-datetime 2050-01-01T00:00:00.000+02:00
consumer-groups --reset-offsets --group tools-idle --topic tools.t:0 --shift-by -200 --dry-run
consumer-groups --reset-offsets --group tools-idle --topic tools.t --to-offset 100 --dry-run
consumer-groups --reset-offsets --group tools-idle --topic tools.t --to-offset 0 --dry-run
consumer-groups --reset-offsets --group tools-idle --topic tools.t:0 --shift-by 0 --dry-run
consumer-groups --reset-offsets --group tools-idle --topic tools.t --by-duration PT0S --dry-run
consumer-groups --reset-offsets --group tools-idle --topic tools.t --to-datetime 1970-01-01T00:00:00.000 --dry-run
consumer-groups --reset-offsets --group tools-idle --topic tools.t --to-current --export
consumer-groups --reset-offsets --group tools-idle --group tools-new --topic tools.t --to-current --export --dry-run
consumer-groups --reset-offsets --group tools-idle --from-file @/offsets.csv --execute
consumer-groups --reset-offsets --group tools-live --topic tools.t --to-earliest --execute
consumer-groups --reset-offsets --group tools-idle --topic tools.nothing --to-earliest --dry-run
consumer-groups --reset-offsets --group tools-fresh --topic tools.t --to-earliest --execute
consumer-groups --describe --group tools-fresh --offsets
consumer-groups --delete-offsets --group tools-idle --topic tools.t:0
consumer-groups --delete-offsets --group tools-idle --topic tools.t --topic tools.nothing
consumer-groups --delete-offsets --group tools-live --topic tools.t
consumer-groups --delete-offsets --group tools-nothing --topic tools.t
consumer-groups --delete --group tools-live
consumer-groups --delete --group tools-idle
consumer-groups --delete --group tools-idle
consumer-groups --delete --group tools-fresh --group tools-nothing
consumer-groups --validate-regex tools.*
groups --list
groups --list --consumer
groups --list --share
groups --list --group-type classic
groups --list --protocol consumer
get-offsets --topic tools.t --time -2
get-offsets --topic tools.t --time earliest-local
get-offsets --topic tools.t --time latest-tiered
get-offsets --topic-partitions tools.t:0-1
log-dirs --describe --topic-list tools.t,tools.nothing
log-dirs --describe --topic-list tools.t --broker-list 1
log-dirs --describe --broker-list 1,9
delete-records --offset-json-file @/delete.json
get-offsets --topic tools.t --time earliest
leader-election --election-type preferred --topic tools.t --partition 0
leader-election --election-type unclean --topic tools.t --partition 1
leader-election --election-type preferred --path-to-json-file @/elect.json
leader-election --election-type preferred --topic tools.nothing --partition 0
client-metrics --alter --name tools-m1 --metrics a.b --interval 1000 --match client_id=x
client-metrics --describe --name tools-m1
client-metrics --list
client-metrics --delete --name tools-m1
client-metrics --describe --name tools-nothing
client-metrics --delete --name tools-nothing
reassign-partitions --generate --topics-to-move-json-file @/move.json --broker-list 1
reassign-partitions --execute --reassignment-json-file @/reassign.json
reassign-partitions --verify --reassignment-json-file @/reassign.json
reassign-partitions --cancel --reassignment-json-file @/reassign.json
reassign-partitions --list
streams-application-reset --application-id tools-app --input-topics tools.t --dry-run
transactions describe --transactional-id tools-nothing
transactions describe-producers --topic tools.t --partition 0
transactions find-hanging --topic tools.t
"""
READS: Final = frozenset(
    {"--list", "--describe", "--dry-run", "--verify", "get-offsets", "describe", "describe-producers"}
)
"""Words of commands that change nothing. After the others, the next one runs when the broker knows of the change."""
UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<!\S)[\w+/-]{22}(?= +/)")
"""A random id: in text, or as librdkafka writes the id of a member of KIP-848, before its host."""
TRACE: Final = re.compile(r"(?m)^\s+(at |\.\.\. ).*\n")
JAVA_ERROR: Final = re.compile(r"(java\.util\.concurrent\.\w+: )?org\.apache\.kafka\.common\.errors\.\w+: ")
LOG_DIR: Final = re.compile(r'"logDir":"[^"]*"|"/[^"]*/data"')


@pytest.fixture(scope="module")
def klamm_broker_process() -> Iterator[KlammBroker]:
    with KlammBroker({"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


@pytest.fixture(scope="module")
def tools(java: None) -> KafkasTools:
    return shared_tools()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands of the play read."""
    directory = tmp_path_factory.mktemp("tools")
    partition, missing = {"topic": TOPIC, "partition": 0}, {"topic": "tools.nothing", "partition": 0}
    contents: dict[str, dict[str, Any]] = {
        "delete": {"partitions": [{**partition, "offset": 1}]},
        "elect": {"partitions": [partition, missing]},
        "move": {"topics": [{"topic": TOPIC}]},
        "reassign": {"partitions": [{**partition, "replicas": [1]}]},
    }
    for name, content in contents.items():
        (directory / f"{name}.json").write_text(json.dumps({"version": 1, **content}))
    (directory / "offsets.csv").write_text(f"{TOPIC},0,1\n")
    return directory


@contextmanager
def inhabited(address: str, broker: KeptUp) -> Iterator[None]:
    """A topic with records, a group with a member and one without."""
    batch = bytes(encode_batch([Record(None, b"x" * 100, (), time.time_ns() // 1_000_000)]))
    with AdminClient(address) as admin, WireClient(address) as client:
        admin.create_topics([NewTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)]).all().result()
        broker.wait_for_effect()  # a coordinator that learns of a topic late begins a further epoch
        for _ in range(RECORDS):
            client.produce(TOPIC, 0, batch)
        commits = {TopicPartition(TOPIC, 0): OffsetAndMetadata(offset=2)}
        admin.alter_group_offsets(IDLE, commits).all().result()
        with member(address), next_member(address):
            wait_until(
                lambda: all(
                    len(offsets) == 2
                    for offsets in admin.list_group_offsets({LIVE: None, NEXT: None}).all().result().values()
                ),
                timeout_s=60,
                what="the members to have read and committed",
            )
            yield
        admin.delete_groups([LIVE, NEXT]).all().result()
        admin.delete_topics([TOPIC]).all().result()


@contextmanager
def next_member(address: str) -> Iterator[None]:
    consumer = Consumer({
        "bootstrap.servers": address, "group.id": NEXT, "group.protocol": "consumer", "client.id": "next-reader",
        "auto.offset.reset": "earliest", "enable.auto.commit": False,
    })  # fmt: skip
    consumer.subscribe([TOPIC])
    ending = threading.Event()

    def read() -> None:
        while not ending.is_set():
            assigned = consumer.assignment()
            consumer.poll(0.1)
            if len(assigned) == PARTITIONS:
                end = [confluent_kafka.TopicPartition(TOPIC, 0, RECORDS), confluent_kafka.TopicPartition(TOPIC, 1, 0)]
                consumer.commit(offsets=end, asynchronous=False)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        yield
    finally:
        ending.set()
        reading.join()
        consumer.close()


@contextmanager
def member(address: str) -> Iterator[None]:
    consumer = KafkaConsumer(
        TOPIC, bootstrap_servers=address, group_id=LIVE, client_id="reader", auto_offset_reset="earliest",
        auto_commit_interval_ms=200, metadata_max_age_ms=500,
    )  # fmt: skip
    ending = threading.Event()

    def read() -> None:
        while not ending.is_set():
            consumer.poll(100)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        yield
    finally:
        ending.set()
        reading.join()
        consumer.close()


def run(tools: KafkasTools, address: str, words: Sequence[str]) -> Outcome:
    at = ["--bootstrap-server", address]
    args = [words[1], *at, *words[2:]] if words[0] == "cluster" else [*at, *words[1:]]
    return tools.run(TOOLS[words[0]], *args)


def shown(line: str, outcome: Outcome, address: str) -> tuple[int, list[str], list[str]]:
    """Without addresses, ids and traces of Java; of what all others have left in a cluster nothing."""

    def plain(text: str) -> list[str]:
        text = LOG_DIR.sub("(directory)", UUID.sub("(id)", TRACE.sub("", text).replace(address, "(address)")))
        lines = sorted(" ".join(line.split()) for line in text.splitlines())
        return [each for each in lines if "tools" in each] if "--list" in line else lines

    return outcome.exit_code, plain(outcome.stdout), plain(outcome.stderr)


Shown = tuple[int, list[str], list[str]]


@pytest.fixture(scope="module")
def kafkas_plays(
    klamm_broker_process: KlammBroker, real_kafka: KafkaCluster, tools: KafkasTools, files: Path
) -> tuple[list[Shown], list[Shown]]:
    """Kafka's tools against Apache Kafka and against klamm, one after the other: another Java process takes seconds."""

    def play(address: str) -> list[Shown]:
        outcomes = []
        with KeptUp(address) as broker, inhabited(address, broker):
            for line in PLAY.splitlines():
                outcomes.append(shown(line, run(tools, address, line.replace("@", str(files)).split(" ")), address))
                if not READS.intersection(line.split(" ")):
                    broker.wait()
        return outcomes

    return play(real_kafka.bootstrap_servers), play(klamm_broker_process.bootstrap_servers)


@pytest.mark.long
def test_kafkas_tools_print_the_same_for_klamm_and_kafka(kafkas_plays: tuple[list[Shown], list[Shown]]) -> None:
    expected, actual = kafkas_plays
    assert sum(bool(stdout) for _, stdout, _ in expected) > len(expected) // 2
    assert [
        (line, actual, other)
        for line, actual, other in zip(PLAY.splitlines(), actual, expected, strict=True)
        if actual != other
    ] == []


@pytest.mark.long
def test_groups_command_prints_like_kafkas_tool(
    address: str, kafkas_plays: tuple[list[Shown], list[Shown]], files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def plain(lines: list[str]) -> list[str]:
        return [JAVA_ERROR.sub("", line) for line in lines]

    # given
    differences = []
    # when
    with KeptUp(address) as broker, inhabited(address, broker):
        for line, (code, stdout, stderr) in zip(PLAY.splitlines(), kafkas_plays[0], strict=True):
            if line.startswith("consumer-groups "):
                words = line.replace("consumer-groups", "groups").replace("@", str(files)).split(" ")
                ours = shown(line, run_ours(address, words, capsys), address)
                messages = [
                    each for each in ours[2] if not each.startswith("New offset (")
                ]  # logged, but not at level ERROR
                has_failed = any("Error:" in each for each in stdout)
                if ours[:2] != (2 if code else int(has_failed), plain(stdout)) or not set(messages) <= set(
                    plain(stderr)
                ):
                    differences.append((line, ours, stdout, stderr))
                broker.wait()
    # then
    assert differences == []


def test_every_served_version_is_also_served_by_kafka(
    klamm_broker_process: KlammBroker, real_kafka: KafkaCluster, tools: KafkasTools
) -> None:
    # when
    ours, kafkas = (
        re.findall(r"(?m)^\t(\w+)\((\d+)\): (.*?),?$", run(tools, cluster.bootstrap_servers, ["versions"]).stdout)
        for cluster in (klamm_broker_process, real_kafka)
    )
    # then
    assert len(ours) > 70
    assert [api for api in ours if api not in kafkas and api[2] != "UNSUPPORTED"] == []


def test_features_have_the_levels_of_apache_kafka(
    klamm_broker_process: KlammBroker, real_kafka: KafkaCluster, tools: KafkasTools
) -> None:
    ours, kafkas = (
        dict(re.findall(r"(?m)^Feature: (\S+)\s+(.*?)\s+Epoch", run(tools, cluster, ["features", "describe"]).stdout))
        for cluster in (klamm_broker_process.bootstrap_servers, real_kafka.bootstrap_servers)
    )
    assert sorted(ours) == ["client.configs", "group.version", "metadata.version", "transaction.version"]
    assert {name: levels for name, levels in ours.items() if name != "client.configs"}.items() <= kafkas.items()


@pytest.fixture(params=["klamm", *long_only("kafka")])
def address(request: pytest.FixtureRequest) -> str:
    cluster: Cluster = request.getfixturevalue({"klamm": "klamm_broker_process", "kafka": "real_kafka"}[request.param])
    return cluster.bootstrap_servers


@pytest.mark.long
def test_performance_and_verification_tools_complete(address: str, tools: KafkasTools) -> None:
    # given
    measured, verified = unique("measured-"), unique("verified-")
    # when
    perf = tools.run(
        TOOLS["producer-perf-test"], "--topic", measured, "--num-records", "500", "--record-size", "100",
        "--throughput", "-1", "--transactional-id", measured, "--transaction-duration-ms", "50",
        "--producer-props", f"bootstrap.servers={address}",
    )  # fmt: skip
    latency = tools.run(TOOLS["e2e-latency"], address, measured, "20", "all", "100")
    # It writes of what was sent when it is closed, by the end of its process.
    sent = java_tool(
        TOOLS["verifiable-producer"], "--bootstrap-server", address, "--topic", verified, "--max-messages", "5"
    )
    topic, five = ("--topic", verified), ("--max-messages", "5")
    read = run(
        tools,
        address,
        ["verifiable-consumer", *topic, *five, "--group-id", verified, "--reset-policy", "earliest"],
    )
    shown = run(tools, address, ["console-consumer", *topic, *five, "--from-beginning", "--timeout-ms", "20000"])
    open_ones = run(tools, address, ["transactions", "find-hanging", "--topic", measured])
    # then
    assert perf.exit_code == latency.exit_code == 0
    assert "500 records sent" in perf.stdout
    assert "Avg latency" in latency.stdout
    assert [event["value"] for event in events(sent, "producer_send_success")] == ["0", "1", "2", "3", "4"]
    assert sum(event["count"] for event in events(read.stdout, "records_consumed")) == 5
    assert events(read.stdout, "offsets_committed")[-1]["success"]
    assert shown.stdout.split() == ["0", "1", "2", "3", "4"]
    assert len(open_ones.stdout.splitlines()) == 1, "only the head of a table"
    with AdminClient(address) as admin:
        admin.delete_topics([measured, verified]).all().result()


def events(stdout: str, name: str) -> list[dict[str, Any]]:
    return [event for event in map(json.loads, stdout.splitlines()) if event.get("name") == name]


def test_unsupported_apis_are_reported_by_kafkas_tools(klamm_broker_process: KlammBroker, tools: KafkasTools) -> None:
    address = klamm_broker_process.bootstrap_servers
    quorum = tools.run(f"{_PACKAGE}.MetadataQuorumCommand", "--bootstrap-server", address, "describe", "--status")
    assert (quorum.exit_code, quorum.stderr.splitlines()[0].rpartition(": ")[2]) == (
        1,
        "The node does not support DESCRIBE_QUORUM",
    )
    upgrade = run(tools, address, ["features", "upgrade", "--feature", "transaction.version=2"])
    assert "The node does not support UPDATE_FEATURES" in upgrade.stdout
    unregister = run(tools, address, ["cluster", "unregister", "--id", "1"])
    assert "does not support the broker unregistration API" in unregister.stdout
