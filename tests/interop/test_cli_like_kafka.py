"""klamm topics and klamm configs beside Kafka 4.3's own tools: flags, stdout, exit codes, messages.

One play of commands is recorded: what Kafka's tools print against Apache Kafka. Ours have to print the same against
klamm, but for ids, which are nobody's choice. ``make test-long`` runs Kafka's tools, too, and all against both brokers.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from kafka import KafkaProducer

from klamm import cli
from klamm.admin import AdminClient, NewTopic, OffsetSpec, TopicPartition
from klamm.cli.acls.options import parser as acls_parser
from klamm.cli.configs.options import parser as configs_parser
from klamm.cli.offsets import parser as offsets_parser
from klamm.cli.topics.options import parser as topics_parser
from klamm.configs.definitions import own_broker_configs
from tests.support.kafka_tools import KafkasTools, Outcome, shared_tools
from tests.support.kept_up import KeptUp
from tests.support.klamm import KlammBroker
from tests.support.klamm_tools import run_ours
from tests.support.long_tests import long_only
from tests.support.processes import wait_until

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from tests.support.kafka import KafkaCluster
    from tests.support.lent_kafka import LentKafka
    from tests.support.probe import Cluster

TOOLS: Final = {
    "configs": "kafka.admin.ConfigCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "acls": "org.apache.kafka.tools.AclCommand",
    "offsets": "org.apache.kafka.tools.GetOffsetShell",
}
PARSERS: Final[dict[str, Callable[[], argparse.ArgumentParser]]] = {
    "configs": configs_parser,
    "topics": topics_parser,
    "acls": acls_parser,
    "offsets": offsets_parser,
}
AUTHORIZER: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
RECORD: Final = Path(__file__).parent.with_name("support") / "kafka_cli_outcomes.json"
LISTED_IF_SET: Final = ("listener.name.", "log.initial.task.delay.ms")
"""Starts of the names of broker configs that Kafka lists only if they are set."""
REJECTED: Final = {
    "--bootstrap-controller": ("127.0.0.1:1", "controller"),
}
"""Flags of Kafka's that are rejected: a value to try, and a word of the reason."""

CHANGES: Final = frozenset({"--create", "--alter", "--delete", "--add", "--remove"})
"""Flags of commands that change the cluster. The next command runs when the broker knows of the change."""

PLAY: Final = """\
topics --create --topic cli.t1 --partitions 2
topics --create --topic cli.t1 --partitions 2
topics --create --topic cli.t1 --partitions 2 --if-not-exists
topics --create --topic cli.t2 --config retention.ms=1000 --config cleanup.policy=compact,delete
topics --create --topic cli.bad --config retention.ms=abc
topics --create --topic cli.bad --config nonsense=1
topics --create --topic cli.bad --config nonsense
topics --create --topic cli.bad --replication-factor 3
topics --create --topic cli.bad --partitions 0
topics --create --topic cli.bad --replica-assignment 1:1
topics --create --topic cli.bad --replica-assignment 7
topics --create --topic cli,bad
topics --create --topic cli.t3 --replica-assignment 1,1,1
topics --list --topic cli\\..*
topics --list --topic cli.nothing
topics --list --topic [
topics --describe --topic cli\\.t[12]
topics --describe --topic cli\\..* --topics-with-overrides
topics --describe --topic cli.t3 --under-replicated-partitions
topics --describe --topic cli.t3 --at-min-isr-partitions
topics --describe --topic cli.nothing
topics --describe --topic cli.nothing --if-exists
topics --describe --topic-id AAAAAAAAAAAAAAAAAAAAAQ
topics --describe --topic-id xyz
topics --alter --topic cli.t1 --partitions 4
topics --alter --topic cli.t1 --partitions 3
topics --alter --topic cli.nothing --partitions 3
topics --alter --topic cli.nothing --partitions 3 --if-exists
topics --delete --topic cli.nothing
topics --delete --topic cli.t3
configs --describe --topic cli.t1
configs --alter --topic cli.t1 --add-config retention.ms=5000,cleanup.policy=[compact,delete]
configs --describe --topic cli.t1
configs --describe --entity-type topics --entity-name cli.t1 --all
configs --alter --topic cli.t1 --delete-config nonsense
configs --alter --topic cli.t1 --delete-config retention.ms,cleanup.policy --add-config segment.ms=100000
configs --alter --topic cli.t1 --add-config nonsense=1
configs --alter --topic cli.t1 --add-config retention.ms=abc
configs --alter --topic cli.t1 --add-config nonsense
configs --alter --topic cli.t1 --add-config a$b=c
configs --alter --topic cli.t1
configs --alter --topic cli.nothing --add-config retention.ms=1
configs --describe --topic cli.nothing
configs --alter --broker 1 --add-config log.cleaner.threads=2
configs --alter --broker-defaults --add-config log.cleaner.threads=2,log.retention.ms=100000
configs --describe --broker 1
configs --describe --broker-defaults
configs --describe --entity-type brokers
configs --describe --broker 9
configs --describe --broker one
configs --alter --broker 1 --add-config broker.rack=x
configs --alter --broker 1 --delete-config log.cleaner.threads
configs --alter --entity-type brokers --entity-default --delete-config log.cleaner.threads,log.retention.ms
configs --alter --broker-defaults --delete-config log.retention.ms
configs --describe --entity-type broker-loggers
configs --alter --broker-logger 1 --add-config root=DEBUG
configs --alter --broker-logger 1 --delete-config root
configs --alter --broker-logger 1 --add-config no.such.logger=DEBUG
configs --alter --group cli-group --add-config consumer.session.timeout.ms=50000
configs --describe --group cli-group
configs --alter --group cli-group --delete-config consumer.session.timeout.ms
configs --describe --group cli-nothing
configs --alter --client-metrics cli-m1 --add-config interval.ms=1000,metrics=[a.b,c.d],match=[client_id=x]
configs --describe --client-metrics cli-m1
configs --alter --client-metrics cli-m1 --delete-config interval.ms,metrics,match
configs --describe --client-metrics cli-nothing
configs --alter --user cli-u --add-config producer_byte_rate=10000000,request_percentage=12.5
configs --alter --user cli-u --client-defaults --add-config consumer_byte_rate=5
configs --describe --user cli-u
configs --describe --entity-type users --entity-type clients
configs --alter --user cli-u --client-defaults --delete-config consumer_byte_rate
configs --alter --user cli-u --delete-config producer_byte_rate,consumer_byte_rate
configs --alter --user cli-u --add-config producer_byte_rate=-1
configs --alter --user cli-u --add-config SCRAM-SHA-256=[iterations=8192,password=s3cret]
configs --describe --entity-type users
configs --alter --user cli-u --add-config SCRAM-SHA-256=[password=s3cret],producer_byte_rate=1
configs --alter --user-defaults --add-config SCRAM-SHA-256=[password=s3cret]
configs --alter --user cli-u --delete-config SCRAM-SHA-256
configs --alter --user cli-u --delete-config producer_byte_rate,request_percentage
configs --alter --ip 127.0.0.1 --add-config connection_creation_rate=5
configs --describe --entity-type ips
configs --alter --ip 127.0.0.1 --add-config producer_byte_rate=5
configs --alter --ip 127.0.0.1 --delete-config connection_creation_rate
configs --alter --entity-type users --add-config acks=all
configs --describe --topic cli.t1 --user alice
configs --describe --entity-type nonsense
configs --describe
offsets --topic cli\\..* --time -2
offsets --topic-partitions cli.t1:1-3,cli.t2,:9
offsets --topic cli.t1 --partitions 0,x
offsets --topic cli.t1 --time x
offsets --topic [
topics --delete --topic cli\\..*
acls --add --topic cli.t --allow-principal User:a --operation Read --operation Write --allow-host 10.0.0.1
acls --add --topic cli.t --allow-principal User:a --operation Read --operation All --allow-host 10.0.0.1
acls --add --topic cli.t --allow-principal User:a --operation Read --allow-host 10.0.0.1
acls --add --topic cli. --resource-pattern-type Prefixed --deny-principal User:b --deny-host 10.0.0.2
acls --add --producer --idempotent --topic cli.t --transactional-id cli-x --allow-principal User:c
acls --add --consumer --topic cli.t --group cli-g --allow-principal User:e --allow-principal User:*
acls --add --cluster --allow-principal User:c --operation Alter --operation ClusterAction
acls --add --user-principal User:d --allow-principal User:c --operation CreateTokens
acls --add --delegation-token cli-d --allow-principal User:c --operation Describe
acls --add --topic cli.t --allow-principal a
acls --list
acls --list --topic cli.t
acls --list --topic cli.t --resource-pattern-type match
acls --list --principal User:c --principal User:b --topic cli.t --resource-pattern-type match
acls --list --principal
acls --list --topic cli.nothing
acls --remove --topic cli.t --allow-principal User:a --operation Read --allow-host 10.0.0.1 --force
acls --remove --consumer --topic cli.t --group cli-g --allow-principal User:e --force
acls --list
acls --remove --topic cli. --resource-pattern-type any --force
acls --remove --topic cli.t --cluster --force
acls --remove --group cli-g --transactional-id cli-x --delegation-token cli-d --user-principal User:d --force
acls --list
"""

WRONG_USAGE: Final = """\
topics --list --create
topics --list --config a=b
topics --create
topics --alter --topic t
topics --create --topic t --replica-assignment 1 --partitions 2
configs --describe --alter --topic t
configs --describe --topic t --add-config a=b
offsets --topic-partitions t --topic t
acls
acls --list --add
acls --add --topic t
acls --add --topic t --resource-pattern-type any --allow-principal User:a
acls --add --allow-principal User:a
acls --add --producer --allow-principal User:a
acls --add --producer --topic t --operation Read --allow-principal User:a
acls --add --consumer --topic t --allow-principal User:a
acls --add --idempotent --topic t --allow-principal User:a
acls --list --topic t --allow-principal User:a
acls --add --topic t --principal User:a --allow-principal User:a
"""


def commands(text: str) -> list[list[str]]:
    return [line.split(" ") for line in text.splitlines()]


def run_kafkas(tools: KafkasTools, cluster: str, words: Sequence[str]) -> Outcome:
    return tools.run(TOOLS[words[0]], "--bootstrap-server", cluster, *words[1:])


def shown(stdout: str) -> str:
    """Without what differs between any two clusters; several topics in the order of their names."""
    text = re.sub(r"TopicId: [\w-]{22}", "TopicId: (id)", stdout)
    if text.startswith("Error while executing ACL command"):
        return text.splitlines()[0]  # a stack trace follows
    if "ResourcePattern(" in text:
        return "\n".join(sorted(line.strip() for line in text.splitlines()))
    text = re.sub(r"(?m)^(Quota configs for .* are )(.*)$", lambda match: match[1] + sorted_list(match[2]), text)
    return "".join(sorted(re.findall(r"(?ms)^Topic: .*?(?=^Topic: |\Z)", text))) if text.startswith("Topic: ") else text


def sorted_list(text: str) -> str:
    """Several quotas of one entity come in the order of a Java hash table."""
    return ", ".join(sorted(text.split(", ")))


def blanks_aside(text: str) -> str:
    return " ".join(text.split())


def as_java_message(text: str) -> str:
    """An error without a message is put in words here, and shown as its exception's name there."""
    if re.fullmatch(r"Topic '.*' does not exist\s*", text):
        return "UnknownTopicOrPartition"
    code = re.fullmatch(r".* \(([A-Z]+(?:_[A-Z]+)*)\)\s*", text)
    return "".join(word.capitalize() for word in code[1].split("_")) if code else blanks_aside(text)


@pytest.fixture(scope="module")
def kafka(lent_kafka: LentKafka) -> Iterator[KafkaCluster]:
    with lent_kafka.lend() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def klamm_broker_process() -> Iterator[KlammBroker]:
    with KlammBroker(AUTHORIZER) as broker:
        yield broker


@pytest.fixture(scope="module")
def kafkas_tools(java: None) -> KafkasTools:
    return shared_tools()


@pytest.fixture(scope="module")
def kafkas_plays(
    kafka: KafkaCluster, klamm_broker_process: KlammBroker, kafkas_tools: KafkasTools
) -> tuple[list[Outcome], list[Outcome]]:
    """Kafka's tools against Apache Kafka and against klamm, one after the other: another Java process takes seconds."""

    def play(address: str) -> list[Outcome]:
        outcomes = []
        with KeptUp(address) as broker:
            for words in commands(PLAY):
                outcomes.append(run_kafkas(kafkas_tools, address, words))
                if not CHANGES.isdisjoint(words):
                    broker.wait()
        return outcomes

    return play(kafka.bootstrap_servers), play(klamm_broker_process.bootstrap_servers)


@pytest.fixture(scope="module")
def recorded() -> list[Outcome]:
    """What Kafka's tools printed against Apache Kafka 4.4, for each command. A test with the mark long runs them."""
    return [Outcome(**outcome) for outcome in json.loads(RECORD.read_text("utf-8"))]


def test_recorded_session_has_successes_failures_and_output(recorded: list[Outcome]) -> None:
    assert {outcome.exit_code for outcome in recorded} == {0, 1}
    assert sum(bool(outcome.stdout) for outcome in recorded) > len(recorded) // 2


@pytest.mark.long
def test_recorded_output_equals_kafkas_tools_on_klamm_and_kafka(
    recorded: list[Outcome], kafkas_plays: tuple[list[Outcome], list[Outcome]]
) -> None:
    differences = [
        (words, outcome, expected)
        for played in kafkas_plays
        for words, expected, outcome in zip(commands(PLAY), recorded, played, strict=True)
        if (outcome.exit_code, shown(outcome.stdout)) != (expected.exit_code, shown(expected.stdout))
    ]
    assert differences == []


@pytest.mark.parametrize("against", ["klamm", *long_only("kafka")])
def test_klamm_commands_print_the_same_as_kafkas_tools(
    recorded: list[Outcome], against: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """K649-85, K649-90, and no command ever prints a password."""
    cluster: Cluster = request.getfixturevalue({"klamm": "klamm_broker_process", "kafka": "kafka"}[against])
    differences = []
    with KeptUp(cluster.bootstrap_servers) as broker:
        for words, expected in zip(commands(PLAY), recorded, strict=True):
            outcome = run_ours(cluster.bootstrap_servers, words, capsys)
            if (outcome.exit_code, shown(outcome.stdout)) != (expected.exit_code, shown(expected.stdout)):
                differences.append((words, outcome, expected))
            assert "s3cret" not in outcome.stdout + outcome.stderr
            if outcome.stderr.count("\n") > 1 or as_java_message(outcome.stderr) not in blanks_aside(expected.stderr):
                differences.append((words, outcome, expected))
            if not CHANGES.isdisjoint(words):
                broker.wait()
    assert differences == []


@pytest.mark.parametrize("against", ["klamm", *long_only("kafka")])
def test_plan_and_apply_work_on_klamm_and_kafka(
    against: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # given
    cluster: Cluster = request.getfixturevalue({"klamm": "klamm_broker_process", "kafka": "kafka"}[against])
    file = tmp_path / "topics.yaml"
    file.write_text("topics:\n  declared: {partitions: 2, configs: {retention.ms: 1000, cleanup.policy: [compact]}}\n")
    address = ("--bootstrap-server", cluster.bootstrap_servers)
    # then
    assert cli.main(["configs", "plan", str(file), *address, "--check"]) == 3
    assert cli.main(["configs", "apply", str(file), *address]) == 0
    wait_until(
        lambda: cli.main(["configs", "plan", str(file), *address, "--check"]) == 0,
        timeout_s=60,
        what="the topic to be in line",
    )
    # when
    file.write_text("topics: {declared: {partitions: 3, configs: {retention.ms: 2000}}}\n")
    capsys.readouterr()
    assert cli.main(["configs", "apply", str(file), *address, "--prune-configs"]) == 0
    # then
    assert capsys.readouterr().out == (
        "~ topic declared\n"
        "    ~ partitions: 2 (cluster) -> 3 (file)\n"
        "    ~ retention.ms: 1000 (1 s, topic) -> 2000 (2 s, file)\n"
        "    - cleanup.policy: compact (topic) -> delete (default)\n"
        "Topics: 0 created, 1 changed, 0 in line, 0 failed.\n"
    )


@pytest.mark.parametrize("line", WRONG_USAGE.splitlines())
def test_conflicting_flags_exit_with_2_and_kafkas_message(
    line: str, kafkas_tools: KafkasTools, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    words = line.split(" ")
    # when
    kafkas, ours = run_kafkas(kafkas_tools, "127.0.0.1:1", words), run_ours("127.0.0.1:1", words, capsys)
    # then
    assert (kafkas.exit_code, ours.exit_code) == (1, 2)
    reason = ours.stderr.removeprefix(f"klamm {words[0]}: ").partition(f" (see klamm {words[0]} --help")[0]
    assert reason in kafkas.stderr


@pytest.mark.long
@pytest.mark.parametrize("tool", PARSERS)
def test_every_flag_of_kafkas_tool_is_supported_or_rejected_by_name(
    tool: str, kafkas_tools: KafkasTools, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    done = kafkas_tools.run(TOOLS[tool], "--help")
    flags = re.findall(r"(?m)^--[a-z][a-z-]*", done.stdout + done.stderr)
    assert len(flags) > 8
    # when
    ours = PARSERS[tool]()._option_string_actions
    # then
    assert [flag for flag in flags if flag not in ours] == []
    for flag in flags:
        if flag in REJECTED:
            value, reason = REJECTED[flag]
            words = [tool, "--list" if tool == "acls" else "--describe", flag, *([value] if value else [])]
            outcome = run_ours("127.0.0.1:1", [*words, *(["--topic", "t"] if "controller" in flag else [])], capsys)
            assert outcome.exit_code == (2 if tool == "acls" else 1)
            assert reason in outcome.stderr


@pytest.mark.long
def test_describe_all_of_a_broker_lists_the_same_configs_with_the_same_defaults(
    kafka: KafkaCluster,
    klamm_broker_process: KlammBroker,
    kafkas_tools: KafkasTools,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # given
    words = ["configs", "--describe", "--broker", "1", "--all"]
    # when
    on_kafka = run_kafkas(kafkas_tools, kafka.bootstrap_servers, words).stdout.splitlines()
    on_klamm = run_kafkas(kafkas_tools, klamm_broker_process.bootstrap_servers, words).stdout.splitlines()
    ours = run_ours(klamm_broker_process.bootstrap_servers, words, capsys).stdout.splitlines()
    # then: what stands in a properties file and klamm's own configs are all in which two brokers may differ
    assert ours == on_klamm
    on_kafka = [line for line in on_kafka if not line.strip().startswith(LISTED_IF_SET)]
    on_klamm = [line for line in on_klamm if line.partition("=")[0].strip() not in own_broker_configs()]
    its_own = {line.partition("=")[0] for line in on_kafka + on_klamm if "STATIC_BROKER_CONFIG" in line}
    assert len(on_kafka) - len(its_own) > 250
    assert [line for line in on_klamm if line.partition("=")[0] not in its_own] == [
        line for line in on_kafka if line.partition("=")[0] not in its_own
    ]
    assert [line.partition("=")[0] for line in on_klamm] == [line.partition("=")[0] for line in on_kafka]


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("--topic offsets.cli", ["offsets.cli:0:3", "offsets.cli:1:0"]),
        ("--topic offsets.cli --time earliest", ["offsets.cli:0:0", "offsets.cli:1:0"]),
        ("--topic offsets.cli --time max-timestamp", ["offsets.cli:0:1"]),
        ("--topic offsets.cli --time 1500", ["offsets.cli:0:1"]),
        ("--topic-partitions offsets.*:0 --time 9999", []),
        ("--topic cli.nothing", []),
    ],
)
@pytest.mark.parametrize("against", ["klamm", *long_only("kafka")])
def test_kafkas_offset_tool_and_ours_find_the_same_offsets(
    words: str,
    printed: list[str],
    *,
    against: str,
    kafkas_tools: KafkasTools,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # given
    cluster: Cluster = request.getfixturevalue({"klamm": "klamm_broker_process", "kafka": "kafka"}[against])
    with AdminClient(cluster.bootstrap_servers) as admin:
        made = admin.create_topics(
            [NewTopic(name="offsets.cli", num_partitions=2, replication_factor=1, configs={"retention.ms": "-1"})]
        )
        if made.values()["offsets.cli"].exception() is None:
            producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
            for timestamp_ms in (1000, 3000, 2000):
                producer.send("offsets.cli", b"value", partition=0, timestamp_ms=timestamp_ms).get(timeout=30)
            producer.close()
        # A broker of Apache Kafka may not know yet that it leads a partition that was just made, and the tool skips it.
        admin.list_offsets({TopicPartition("offsets.cli", number): OffsetSpec.LATEST for number in range(2)}).result(
            300
        )
    # when
    outcome = run_kafkas(kafkas_tools, cluster.bootstrap_servers, ["offsets", *words.split(" ")])
    # then
    assert outcome.stdout.splitlines() == printed, outcome.stderr
    ours = run_ours(cluster.bootstrap_servers, ["offsets", *words.split(" ")], capsys)
    assert ours == Outcome(outcome.exit_code, outcome.stdout, outcome.stderr)
