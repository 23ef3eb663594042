"""klamm produce and klamm consume beside Kafka 4.3's console producer and consumer, on either broker."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer

from klamm.admin import AdminClient, NewTopic, TopicPartition
from klamm.cli.consume import parser as consume_parser
from klamm.cli.produce import parser as produce_parser
from tests.support.kafka_tools import KafkasTools, Outcome, shared_tools
from tests.support.klamm import KlammBroker
from tests.support.klamm_tools import run_ours
from tests.support.long_tests import long_only
from tests.support.processes import wait_until
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from tests.support.probe import Cluster

_PACKAGE: Final = "org.apache.kafka.tools"
PRODUCER: Final = f"{_PACKAGE}.ConsoleProducer"
CONSUMER: Final = f"{_PACKAGE}.consumer.ConsoleConsumer"
LINES: Final = "h1:v1,h2:\tk1\tcafé\nNULL\tNULL\tNULL\nh3:\tk2\t\n".encode()
EVERYTHING: Final = (
    "--property parse.key=true --property parse.headers=true --property null.marker=NULL"
    " --property headers.separator=, --reader-property ignore.error=true"
)


@pytest.fixture(scope="module")
def klamm_broker_process() -> Iterator[KlammBroker]:
    with KlammBroker({"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


@pytest.fixture(params=["klamm", *long_only("kafka")])
def address(request: pytest.FixtureRequest) -> str:
    cluster: Cluster = request.getfixturevalue({"klamm": "klamm_broker_process", "kafka": "real_kafka"}[request.param])
    return cluster.bootstrap_servers


@pytest.fixture(scope="module")
def tools(java: None) -> KafkasTools:
    return shared_tools()


@pytest.fixture
def topic(address: str) -> Iterator[str]:
    with new_topic(address) as name:
        yield name


class new_topic:  # noqa: N801 - a context manager
    """A topic with one partition for a while."""

    def __init__(self, address: str) -> None:
        self._admin = AdminClient(address)
        self._name = unique("console.")

    def __enter__(self) -> str:
        self._admin.create_topics([NewTopic(self._name, 1, 1)]).all().result()
        partition = TopicPartition(self._name, 0)
        wait_until(
            lambda: self._admin.list_offsets({partition: -1}).values()[partition].exception() is None,
            timeout_s=30,
            what="a leader",
        )
        return self._name

    def __exit__(self, *_: object) -> None:
        self._admin.delete_topics([self._name]).all().result()
        self._admin.close()


def kafkas(tools: KafkasTools, tool: str, address: str, words: Sequence[str], stdin: bytes = b"") -> Outcome:
    property_flag = "--formatter-property" if tool == CONSUMER else "--reader-property"
    words = [property_flag if word == "--property" else word for word in words]
    return tools.run(tool, "--bootstrap-server", address, *words, stdin=stdin)


def records_of(address: str, topic: str, count: int) -> list[tuple[Any, ...]]:
    consumer = KafkaConsumer(topic, bootstrap_servers=address, auto_offset_reset="earliest")
    try:
        return [(each.key, each.value, list(each.headers)) for each in itertools.islice(consumer, count)]
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("words", "stdin", "count"),
    [
        ("", b"one\ntwo\r\n\nwithout an end", 4),
        ("--property parse.key=true --property key.separator=:", b"a:1\nb:\n:3\n", 3),
        (EVERYTHING.replace("--reader-property", "--property"), LINES, 3),
        ("--property parse.key=true --property ignore.error=true", b"no separator\n", 1),
        ("--compression-codec zstd --request-required-acks 1", b"compressed\n", 1),
    ],
)
def test_produced_lines_become_the_same_records_as_in_kafka(
    words: str, stdin: bytes, count: int, *, address: str, topic: str, tools: KafkasTools,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with new_topic(address) as other:
        # when
        at_once = ["--timeout", "0", *words.split()]  # else each line waits a second for others
        theirs = kafkas(tools, PRODUCER, address, ["--sync", "--topic", topic, *at_once], stdin)
        ours = run_ours(address, ["produce", "--topic", other, *at_once], capsys, stdin)
        # then
        assert (theirs.exit_code, ours) == (0, Outcome(0, "", ""))
        assert records_of(address, other, count) == records_of(address, topic, count)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--property parse.key=true", "No key separator found on line number 2: 'wrong'"),
        ("--property parse.headers=true", "No headers delimiter found on line number 2: 'wrong'"),
        ("--property headers.separator=:", "headers.separator and headers.key.separator may not be equal"),
    ],
)
def test_unreadable_lines_are_reported_like_kafka(
    words: str, message: str, *, topic: str, klamm_broker_process: KlammBroker, tools: KafkasTools,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    address, stdin = klamm_broker_process.bootstrap_servers, b"h:v\tright\nwrong\n"
    theirs = kafkas(tools, PRODUCER, address, ["--topic", topic, *words.split()], stdin)
    ours = run_ours(address, ["produce", "--topic", topic, *words.split()], capsys, stdin)
    assert (theirs.exit_code, ours) == (1, Outcome(1, "", f"klamm produce: {message}\n"))
    assert message in theirs.stderr


PROPERTIES: Final = (
    "--property print.timestamp=true --property print.partition=true --property print.offset=true"
    " --property print.headers=true --property print.key=true"
)


@pytest.mark.parametrize(
    "words",
    [
        "--topic @ --from-beginning --max-messages 3",
        f"--topic @ --from-beginning --max-messages 3 {PROPERTIES}",
        "--topic @ --partition 0 --offset 1 --max-messages 2 --property print.key=true --property key.separator=|",
        "--topic @ --partition 0 --offset earliest --max-messages 1 --property print.value=false"
        " --property print.key=true --property print.epoch=true --property print.delivery=true",
        "--include @|other --from-beginning --max-messages 3 --property null.literal=nothing",
        "--topic @ --partition 0 --offset earliest --max-messages 1 --property print.key=true"
        " --key-deserializer org.apache.kafka.common.serialization.ShortDeserializer"
        " --property headers.separator=; --property print.headers=true --property line.separator=.",
        "--topic @ --partition 0 --offset 3 --timeout-ms 300",
    ],
)
def test_records_are_printed_like_kafka(
    words: str, address: str, topic: str, tools: KafkasTools, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    assert run_ours(address, ["produce", "--topic", topic, *EVERYTHING.split()], capsys, LINES).exit_code == 0
    split = words.replace("@", topic).split()
    # when
    theirs = kafkas(tools, CONSUMER, address, split)
    ours = run_ours(address, ["consume", *split], capsys)
    # then
    assert (ours.exit_code, ours.stdout) == (theirs.exit_code, theirs.stdout)
    assert ours.stderr.splitlines()[-1] == theirs.stderr.splitlines()[-1]


def test_consumer_group_resumes_after_the_printed_records(
    address: str, topic: str, tools: KafkasTools, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    run_ours(address, ["produce", "--topic", topic], capsys, b"1\n2\n3\n4\n5\n6\n")
    words = ["--topic", topic, "--group", f"{topic}.group", "--from-beginning", "--max-messages", "2"]
    # when
    printed = [
        run_ours(address, ["consume", *words], capsys).stdout,
        kafkas(tools, CONSUMER, address, words).stdout,
        run_ours(address, ["consume", *words], capsys).stdout,
    ]
    # then
    assert printed == ["1\n2\n", "3\n4\n", "5\n6\n"]


def test_read_committed_skips_aborted_records(address: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    # given
    producer = Producer({"bootstrap.servers": address, "transactional.id": topic, "compression.type": "lz4"})
    producer.init_transactions(30)
    for value, end in (("aborted", producer.abort_transaction), ("committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(30)
        end(30)
    words = ["consume", "--topic", topic, "--from-beginning", "--isolation-level"]
    # then
    committed = run_ours(address, [*words, "read_committed", "--max-messages", "1"], capsys)
    everything = run_ours(address, [*words, "read_uncommitted", "--max-messages", "2"], capsys)
    assert (committed.stdout, everything.stdout) == ("committed\n", "aborted\ncommitted\n")


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_produced_and_consumed(
    codec: str, klamm_broker_process: KlammBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    address = klamm_broker_process.bootstrap_servers
    with new_topic(address) as topic:
        lines = b"".join(b"line %d\n" % number for number in range(2_000))
        assert run_ours(address, ["produce", "--topic", topic, "--compression-codec", codec], capsys, lines)[0] == 0
        read = run_ours(address, ["consume", "--topic", topic, "--from-beginning", "--max-messages", "2000"], capsys)
        assert read.stdout.encode() == lines


def test_header_without_value_is_rejected(
    klamm_broker_process: KlammBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["produce", "--topic", "console", "--property", "parse.headers=true", "--property", "ignore.error=true"]
    outcome = run_ours(klamm_broker_process.bootstrap_servers, words, capsys, b"h\tvalue\n")
    assert outcome == Outcome(1, "", "klamm produce: Header 'h': this command cannot send a header without a value\n")


def test_json_output_prints_one_document_per_record(
    klamm_broker_process: KlammBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    address = klamm_broker_process.bootstrap_servers
    with new_topic(address) as topic:
        # when
        words = ["produce", "--topic", topic, "-o", "json", "--property", "parse.headers=true"]
        written = run_ours(address, words, capsys, b"h:v\tvalue\n\xff:v\t\xff\n")
        read = run_ours(
            address, ["consume", "--topic", topic, "--from-beginning", "--max-messages", "1", "-o", "json"], capsys
        )
    # then
    first, last = map(json.loads, written.stdout.splitlines())
    assert (first["topic"], first["partition"], first["offset"], last["offset"]) == (topic, 0, 0, 1)
    record = json.loads(read.stdout)
    assert (record["value"], record["key"], record["headers"]) == ("value", None, [{"key": "h", "value": "v"}])
    assert record["timestamp"] == first["timestamp"]


def test_sigint_and_sigterm_stop_commands_gracefully(klamm_broker_process: KlammBroker) -> None:
    address = klamm_broker_process.bootstrap_servers
    with new_topic(address) as topic, AdminClient(address) as admin:
        with started("produce", address, topic, "--timeout", "0", "-o", "json") as producer:
            # when
            assert producer.stdin is not None
            assert producer.stdout is not None
            producer.stdin.write(b"typed\n")
            producer.stdin.flush()
            assert json.loads(producer.stdout.readline())["offset"] == 0
            producer.send_signal(signal.SIGINT)
            # then
            # Before its standard input ends, which would end it, too.
            assert producer.wait(timeout=60) == 130
            assert producer.communicate(timeout=60) == (b"", b"")
        with started("consume", address, topic, "--group", topic, "--from-beginning") as consumer:
            # when
            assert consumer.stdout is not None
            assert consumer.stdout.readline() == b"typed\n"
            consumer.send_signal(signal.SIGTERM)
            # then
            _, output = consumer.communicate(timeout=60)
            assert (consumer.returncode, output) == (143, b"Processed a total of 1 messages\n")
        assert admin.describe_groups([topic]).all().result()[topic].state == "Empty"
        assert admin.list_group_offsets({topic: None}).all().result()[topic][TopicPartition(topic, 0)].offset == 1


def started(command: str, address: str, topic: str, *words: str) -> subprocess.Popen[bytes]:
    """Start a command with a buffered output.

    A record that is printed without a buffer is seen a moment before it counts as printed. A signal in that moment lets
    the next consumer print it again.
    """
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        [sys.executable, "-m", "klamm.cli", command, "--bootstrap-server", address, "--topic", topic, *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
    )  # fmt: skip


WRONG_USAGE: Final = """\
consume --topic a --include b
consume --partition 0
consume --include a --partition 0
consume --topic a --partition 0 --offset 1 --from-beginning
consume --topic a --offset 1
consume --topic a --partition 0 --offset -1
consume --topic a --partition 0 --offset x
consume --topic a --partition 0 --group b
consume --topic a --group b --consumer-property group.id=c
consume --topic a --from-beginning --consumer-property auto.offset.reset=latest
produce
"""


@pytest.mark.parametrize("line", WRONG_USAGE.splitlines())
def test_conflicting_flags_exit_with_2_and_kafkas_message(
    line: str, tools: KafkasTools, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    command, *words = line.split()
    # when
    theirs = kafkas(tools, CONSUMER if command == "consume" else PRODUCER, "127.0.0.1:1", words)
    ours = run_ours("127.0.0.1:1", [command, *words], capsys)
    # then
    assert (theirs.exit_code, ours.exit_code) == (1, 2)
    assert ours.stderr.removeprefix(f"klamm {command}: ").partition(f" (see klamm {command} --help")[0] in theirs.stderr


@pytest.mark.parametrize(("tool", "parser"), [(PRODUCER, produce_parser), (CONSUMER, consume_parser)])
def test_every_flag_of_kafkas_tool_is_recognized(
    tool: str, parser: Callable[[], argparse.ArgumentParser], tools: KafkasTools
) -> None:
    done = tools.run(tool, "--help")
    flags = re.findall(r"(?m)^--[a-z][a-z.-]*", done.stdout + done.stderr)
    assert len(flags) > 20
    assert [flag for flag in flags if flag not in parser()._option_string_actions] == []
