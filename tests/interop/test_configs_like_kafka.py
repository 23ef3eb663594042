"""The same config requests to Apache Kafka and to klamm: equal error codes and messages.

Everything is validated only, so that the questions do not disturb each other and nothing is eventual. Where klamm
answers otherwise on purpose the question is listed with its own answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import klamm
from klamm.configs.definitions import own_broker_configs
from tests.support.conformance_kit import load_runner
from tests.support.kept_up import KeptUp
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.kafka import KafkaCluster

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
INVALID_REQUEST = "INVALID_REQUEST"


class Question(NamedTuple):
    resource_type: int
    resource_name: str
    operations: tuple[tuple[str, int, str | None], ...]
    decided: tuple[str, str] | None = None
    """klamm's code and message where it answers otherwise on purpose."""


def values(resource_type: int, resource_name: str, *pairs: tuple[str, str]) -> list[Question]:
    return [Question(resource_type, resource_name, ((key, SET, value),)) for key, value in pairs]


def not_a_list(resource_type: int, resource_name: str, key: str, kind: int = APPEND) -> Question:
    word = "APPEND" if kind == APPEND else "SUBTRACT"
    message = (
        f"Config value {word.lower()} is not allowed for config key: {key}"
        if resource_type == BROKER
        else f"Can't {word} to key {key} because its type is not LIST."
    )
    return Question(resource_type, resource_name, ((key, kind, "1"),), (INVALID_REQUEST, message))


NAME = unique("like-kafka-")
THROTTLED = "follower.replication.throttled.replicas"
QUESTIONS = [
    *values(
        TOPIC,
        NAME,
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("compression.lz4.level", "18"),
        ("compression.zstd.level", "23"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "NaN"),
        ("min.cleanable.dirty.ratio", "-0.5"),
        ("min.cleanable.dirty.ratio", "0x1p-2"),
        ("min.cleanable.dirty.ratio", ".5d"),
        ("min.cleanable.dirty.ratio", "abc"),
        ("segment.bytes", "2147483648"),
        ("segment.bytes", "1048575"),
        ("retention.ms", "\uff19\uff19"),
        ("retention.ms", "1_000"),
        ("retention.ms", "\u00a05"),
        ("retention.ms", " -1 "),
        ("preallocate", "yes"),
        ("message.timestamp.type", " CreateTime "),
        ("message.timestamp.type", "createtime"),
        ("cleanup.policy", "compact,"),
        ("cleanup.policy", ","),
        ("cleanup.policy", ""),
        ("cleanup.policy", "compact,compact"),
        ("remote.copy.lag.ms", "-2"),
        ("remote.copy.lag.ms", "5"),
        ("max.decompressed.message.bytes", "0"),
        ("errors.deadletterqueue.group.enable", "true"),
        ("cleanup.policy", " compact , delete "),
        (THROTTLED, "0:1,"),
        (THROTTLED, "*,"),
        (THROTTLED, "0:1,*"),
        ("internal.segment.bytes", "1000000"),
        ("local.retention.ms", "-3"),
        ("local.retention.bytes", "5"),
        ("remote.storage.enable", "true"),
        ("remote.log.copy.disable", "true"),
        ("", "x"),
    ),
    Question(TOPIC, NAME, (("retention.ms", SET, "y"), ("segment.ms", SET, "x"))),
    Question(TOPIC, NAME, (("segment.ms", SET, "x"), ("zzz", SET, "1"))),
    Question(TOPIC, NAME, (("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5"))),
    Question(TOPIC, NAME, (("cleanup.policy", APPEND, ""),)),
    Question(TOPIC, NAME, (("cleanup.policy", APPEND, ","),)),
    Question(TOPIC, NAME, (("a", SET, None), ("b", APPEND, None), ("c", DELETE, None))),
    not_a_list(TOPIC, NAME, "retention.ms"),
    not_a_list(TOPIC, NAME, "no.such", SUBTRACT),
    not_a_list(TOPIC, "bad name!", "retention.ms"),
    Question(TOPIC, "", ()),
    Question(TOPIC, f"{NAME}-missing", ()),
    Question(TOPIC, f"{NAME}-missing", (("zzz", SET, "1"),)),
    Question(TOPIC, "a" * 250, (("retention.ms", SET, "5"),)),
    *values(
        BROKER,
        "1",
        ("log.retention.ms", "-5"),
        ("log.retention.ms", "0"),
        ("num.io.threads", "100"),
        ("num.io.threads", "1"),
        ("num.io.threads", "0"),
        ("num.network.threads", "100"),
        ("num.network.threads", "1"),
        ("num.replica.fetchers", "0"),
        ("num.recovery.threads.per.data.dir", "99"),
        ("background.threads", "50"),
        ("log.cleaner.threads", "5"),
        ("log.cleaner.dedupe.buffer.size", "5"),
        ("message.max.bytes", "-1"),
        ("log.segment.bytes", "5"),
        ("log.local.retention.ms", "-1"),
        ("log.local.retention.ms", "99999999999"),
        ("log.local.retention.bytes", "99999999999"),
        ("max.connections.per.ip.overrides", "127.0.0.1:5"),
        ("max.connections.per.ip.overrides", "a/b:5"),
        ("max.connections.per.ip", "0"),
        ("max.connections", "0"),
        ("max.connection.creation.rate", "0"),
        ("listener.name.plaintext.max.connections", "0"),
        ("listener.name.plaintext.num.network.threads", "100"),
        ("metric.reporters", "no.Such"),
        ("principal.builder.class", "no.Such"),
        ("sasl.jaas.config", "x"),
        ("leader.replication.throttled.rate", "abc"),
        ("min.insync.replicas", "x"),
        ("min.insync.replicas", "1"),
        ("no.such", "1"),
        ("", "x"),
        ("ssl.truststore.location", "x"),
        ("listener.name.plaintext.ssl.keystore.password", "x"),
        ("listener.name.plaintext.max.connections", "abc"),
    ),
    *values(
        BROKER,
        "",
        ("num.io.threads", "100"),
        ("listeners", "PLAINTEXT://:1234"),
        ("sasl.jaas.config", "x"),
        ("listener.name.plaintext.ssl.keystore.password", "x"),
        ("listener.name.plaintext.max.connections", "5"),
        ("min.insync.replicas", "0"),
        ("no.such", "1"),
        ("leader.replication.throttled.rate", "5"),
    ),
    Question(BROKER, "1", (("num.partitions", SET, "5"), ("auto.create.topics.enable", SET, "true"))),
    Question(BROKER, "1", (("ssl.keystore.password", SET, "x"), ("ssl.key.password", SET, "x"))),
    Question(BROKER, "1", (("log.flush.interval.messages", 9, "5"), ("num.partitions", SET, "1"))),
    Question(BROKER, "1", (("num.partitions", DELETE, None),)),
    Question(BROKER, "1", (("min.insync.replicas", DELETE, None),)),
    Question(BROKER, "", (("min.insync.replicas", DELETE, None),)),
    Question(BROKER, "1", (("log.cleanup.policy", APPEND, "compact"),)),
    Question(BROKER, "1", (("log.cleanup.policy", APPEND, "x"),)),
    Question(BROKER, "2", (("log.flush.interval.messages", SET, "5"),)),
    Question(BROKER, "01", (("log.flush.interval.messages", SET, "5"),)),
    Question(BROKER, "abc", ()),
    not_a_list(BROKER, "1", "num.io.threads", SUBTRACT),
    Question(BROKER, "1", (("no.such", APPEND, "x"),)),
    Question(BROKER, "", (("listener.name.plaintext.no.such", SUBTRACT, "x"),)),
    *values(
        BROKER,
        "1",
        ("cordoned.log.dirs", "/none"),
        ("cordoned.log.dirs", "*,/none"),
        ("cordoned.log.dirs", "*"),
        ("listeners", ""),
        ("sasl.enabled.mechanisms", "A,A"),
        ("listener.name.plaintext.ssl.cipher.suites", "A,A"),
        ("log.cleanup.policy", "compact,compact"),
        ("log.remote.copy.lag.ms", "99999999999"),
        ("log.remote.copy.lag.bytes", "5"),
        ("remote.log.manager.follower.thread.pool.size", "100"),
        ("group.coordinator.cached.buffer.max.bytes", "1"),
        ("max.decompressed.message.bytes", "0"),
    ),
    *values(
        BROKER,
        "",
        ("group.consumer.assignment.interval.ms", "99999999"),
        ("group.share.assignment.interval.ms", "20000"),
        ("cordoned.log.dirs", "/none"),
        ("metric.reporters", "A,A"),
        ("config.providers", "a"),
    ),
    *values(
        GROUP,
        "g",
        ("consumer.session.timeout.ms", "1"),
        ("consumer.session.timeout.ms", "0"),
        ("consumer.session.timeout.ms", "99999999"),
        ("consumer.heartbeat.interval.ms", "1"),
        ("consumer.heartbeat.interval.ms", "abc"),
        ("share.auto.offset.reset", "x"),
        ("share.auto.offset.reset", "by_duration:PT1H"),
        ("share.auto.offset.reset", "by_duration:x"),
        ("share.isolation.level", "READ_COMMITTED"),
        ("share.record.lock.duration.ms", "1"),
        ("share.record.lock.duration.ms", "1000"),
        ("share.session.timeout.ms", "60001"),
        ("streams.num.standby.replicas", "9"),
        ("streams.heartbeat.interval.ms", "15001"),
        ("streams.session.timeout.ms", "1"),
        ("consumer.assignment.interval.ms", "20000"),
        ("share.delivery.count.limit", "99"),
        ("share.delivery.count.limit", "1"),
        ("share.partition.max.record.locks", "99999"),
        ("streams.num.warmup.replicas", "99"),
        ("streams.task.offset.interval.ms", "1"),
        ("streams.assignor.name", "x"),
        ("streams.assignor.name", "sticky"),
        ("streams.rack.aware.assignment.tags", "a,a"),
        ("streams.rack.aware.assignment.tags", "a,"),
        ("errors.deadletterqueue.topic.name", "__x"),
        ("zz", "1"),
    ),
    Question(
        GROUP, "g", (("errors.deadletterqueue.topic.name", SET, "__x"), ("consumer.session.timeout.ms", SET, "5"))
    ),
    *(
        Question(GROUP, "g", tuple((name, SET, value) for name, value in pairs))
        for pairs in (
            (("streams.session.timeout.ms", "x"), ("share.isolation.level", "x")),
            (("consumer.assignor.offload.enable", "x"), ("consumer.assignment.interval.ms", "x")),
            (("streams.rack.aware.assignment.tags", "a,"), ("share.auto.offset.reset", "x")),
        )
    ),
    *(
        Question(BROKER, name, tuple((key, SET, value) for key, value in pairs))
        for name in ("1", "")
        for pairs in (
            (("errors.deadletterqueue.auto.create.topics.enable", "x"), ("message.max.bytes", "-2")),
            (("log.cleanup.policy", "x"), ("group.consumer.assignment.interval.ms", "x")),
            (("log.segment.bytes", "x"), ("num.network.threads", "x"), ("leader.replication.throttled.rate", "x")),
        )
    ),
    Question(METRICS, "s", (("match", SET, "client_id="), ("interval.ms", SET, "x"))),
    not_a_list(GROUP, "g", "consumer.session.timeout.ms"),
    not_a_list(GROUP, "g", "streams.rack.aware.assignment.tags"),
    Question(GROUP, "g", (("zzz", DELETE, None),)),
    Question(GROUP, "", ()),
    *values(
        METRICS,
        "s",
        ("match", "abc"),
        ("match", "x=y"),
        ("match", "client_id=["),
        ("match", "client_id=a=b"),
        ("match", "client_id=a,"),
        ("match", ""),
        ("match", "client_id=a,client_id=a"),
        ("metrics", "a,"),
        ("metrics", " a. , b. "),
        ("interval.ms", " 500 "),
        ("interval.ms", "99"),
        ("zz", "1"),
    ),
    not_a_list(METRICS, "s", "metrics"),
    *values(LOGGER, "1", ("root", "LOUD"), ("root", "warn"), ("root", " INFO"), ("no.such", "INFO")),
    Question(LOGGER, "1", (("root", DELETE, None),)),
    Question(LOGGER, "1", (("root", SUBTRACT, "x"),)),
    Question(LOGGER, "1", (("root", 9, "x"),)),
    Question(LOGGER, "7", (("root", SET, "INFO"),)),
]


class Asker:
    """One connection to one broker, through the conformance kit's codec."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self.runner = load_runner()
        self.connection = self.runner.Connection(host, int(port), 30.0)
        self.connection.call(
            "CreateTopics",
            5,
            {
                "topics": [{"name": NAME, "partitions": 1, "replication": 1, "assignments": [], "configs": []}],
                "timeout": 15000,
                "validate_only": False,
            },
        )

    def alter(self, question: Question) -> tuple[str, str | None]:
        configs = [{"name": name, "op": kind, "value": value} for name, kind, value in question.operations]
        resource = {"type": question.resource_type, "name": question.resource_name, "configs": configs}
        body = {"resources": [resource], "validate_only": True}
        (answer,) = self.connection.call("IncrementalAlterConfigs", 1, body)["responses"]
        return self.runner.kit.error_name(answer["error"]), answer["message"]

    def describe(self, resource_type: int, resource_name: str) -> dict[str, dict[str, Any]]:
        resource = {"type": resource_type, "name": resource_name, "keys": None}
        body = {"resources": [resource], "synonyms": True, "documentation": True}
        (result,) = self.connection.call("DescribeConfigs", 4, body)["results"]
        assert result["error"] == 0
        return {config["name"]: config for config in result["configs"]}


@pytest.fixture(scope="module")
def kafka(real_kafka: KafkaCluster) -> Iterator[Asker]:
    """Real Kafka."""
    asker = Asker(real_kafka.bootstrap_servers)
    yield asker
    asker.connection.close()


@pytest.fixture(scope="module")
def ours() -> Iterator[Asker]:
    """klamm, whatever the other tests do."""
    with klamm.Broker() as broker:
        asker = Asker(broker.bootstrap_servers)
        yield asker
        asker.connection.close()


def question_id(question: Question) -> str:
    operations = "-".join(f"{'SDAB'[k] if k < 4 else k}.{n}={v}" for n, k, v in question.operations)
    return f"{question.resource_type}.{question.resource_name[:10]}-{operations}".encode("ascii", "replace").decode()


@pytest.mark.parametrize("question", QUESTIONS, ids=question_id)
def test_config_change_returns_the_same_code_and_message_as_kafka(
    question: Question, kafka: Asker, ours: Asker
) -> None:
    """K339-07, K339-16, K339-33, K339-34, K339-35: what a value, a name or an operation is worth."""
    expected = kafka.alter(question)
    if question.decided is not None:
        assert expected != question.decided, "no need for a decision"
        expected = question.decided
    assert ours.alter(question) == expected


@pytest.mark.parametrize(
    ("resource_type", "name"),
    [(TOPIC, NAME), (BROKER, "1"), (GROUP, "g"), (METRICS, "s")],
    ids=("topic", "broker", "group", "client-metrics"),
)
def test_defaults_are_described_as_kafka_describes_them(
    resource_type: int, name: str, kafka: Asker, ours: Asker, real_kafka: KafkaCluster
) -> None:
    """K339-08, K339-24: names, values, types, sources, synonyms, read-only, sensitive; and everything is documented."""
    with KeptUp(real_kafka.bootstrap_servers) as broker:
        broker.wait()
    theirs, mine = kafka.describe(resource_type, name), ours.describe(resource_type, name)
    if resource_type == BROKER:
        mine = {name: config for name, config in mine.items() if name not in own_broker_configs()}
    assert set(mine) == set(theirs)
    assert [n for n, config in mine.items() if not config["documentation"]] == []
    default = 5
    for config in (*theirs.values(), *mine.values()):
        del config["documentation"]
    compared = [n for n in mine if theirs[n]["source"] == mine[n]["source"] == default or resource_type != BROKER]
    assert len(compared) > len(theirs) * 0.9
    assert {n: mine[n] for n in compared} == {n: theirs[n] for n in compared}


def test_list_config_is_bounded_like_kafka(kafka: Asker, ours: Asker) -> None:
    # given: what comes to more than 32,767 bytes in the third request
    def append(asker: Asker, replica: int) -> tuple[int, str | None]:
        value = ",".join(f"{partition}:{replica}" for partition in range(2_000))
        configs = [{"name": "follower.replication.throttled.replicas", "op": APPEND, "value": value}]
        resource = {"type": TOPIC, "name": NAME, "configs": configs}
        body = {"resources": [resource], "validate_only": False}
        (answer,) = asker.connection.call("IncrementalAlterConfigs", 1, body)["responses"]
        return answer["error"], answer["message"]

    # when
    of_kafka, of_klamm = ([append(asker, replica) for replica in range(3)] for asker in (kafka, ours))
    # then
    assert of_klamm == of_kafka
    assert [code for code, _ in of_klamm] == [0, 0, 40]
