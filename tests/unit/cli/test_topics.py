"""klamm topics: reading its flags, and what Kafka's tool does not have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

import klamm
from klamm import cli
from klamm.admin import ConfigEntry, ConfigSource, PartitionDescription, TopicDescription
from klamm.cli.connection import RequestError
from klamm.cli.topics.description import TopicReport, lines
from klamm.cli.topics.names import format_topic_id, matching, parse_assignment, parse_configs, parse_topic_id

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with klamm.Broker(brokers=3) as broker:
        yield broker.bootstrap_servers


# --- values of flags ---


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        (None, ("__consumer_offsets", "a.b", "axb", "c")),
        ("a.b", ("a.b", "axb")),
        (r"a\.b", ("a.b",)),
        ("c,a\\.b", ("a.b", "c")),
        ('"a.*"', ("a.b", "axb")),
        ("a", ()),
    ],
)
def test_topic_flag_matches_whole_names(pattern: str | None, matches: tuple[str, ...]) -> None:
    assert matching(["c", "axb", "a.b", "__consumer_offsets"], pattern, exclude_internal=False) == matches


def test_exclude_internal_skips_internal_topics() -> None:
    assert matching(["a", "__consumer_offsets", "__mine"], None, exclude_internal=True) == ("__mine", "a")


def test_invalid_regular_expression_is_named() -> None:
    with pytest.raises(RequestError, match=r"\[ is an invalid regex\."):
        matching([], "[", exclude_internal=False)


def test_config_flag_is_name_and_value() -> None:
    assert parse_configs(["a = 1", "b=x,y"]) == {"a": "1", "b": "x,y"}


def test_durations_and_sizes_of_configs_may_have_units() -> None:
    configs = parse_configs(["retention.ms=7d", "segment.bytes = 64 MiB", "min.cleanable.dirty.ratio=0.5"])
    assert configs == {"retention.ms": "604800000", "segment.bytes": "67108864", "min.cleanable.dirty.ratio": "0.5"}


@pytest.mark.parametrize("text", ["a", "a=", "a=b=c", "=b=c"])
def test_invalid_config_flag_is_rejected(text: str) -> None:
    with pytest.raises(RequestError, match="must be in the format"):
        parse_configs([text])


def test_replica_assignment_lists_brokers_per_partition() -> None:
    assert parse_assignment("1:2,2: 3") == {0: (1, 2), 1: (2, 3)}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("1:1", "Partition replica lists may not contain duplicate entries: 1"),
        ("1:2,3", "Partition 1 has different replication factor: [3]"),
        ("1,x", "--replica-assignment 1,x: expected ids like 1:2,2:1, not 'x'"),
    ],
)
def test_invalid_replica_assignment_is_rejected(text: str, complaint: str) -> None:
    with pytest.raises(RequestError) as rejected:
        parse_assignment(text)
    assert str(rejected.value) == complaint


def test_topic_id_round_trips() -> None:
    topic_id = UUID("f5025f1b-9a30-45b6-bbaf-22ab64679fec")
    assert format_topic_id(topic_id) == "9QJfG5owRba7ryKrZGef7A"
    assert parse_topic_id("9QJfG5owRba7ryKrZGef7A") == topic_id


@pytest.mark.parametrize("text", ["xyz", "9QJfG5owRba7ryKrZGef7A9QJfG5owRba7ryKrZGef7A", "!"])
def test_invalid_topic_id_is_rejected(text: str) -> None:
    with pytest.raises(RequestError, match="Input string"):
        parse_topic_id(text)


# --- descriptions ---


def partition(number: int, leader: int = 1, *, isr: tuple[int, ...] = (1, 2)) -> PartitionDescription:
    return PartitionDescription(partition=number, leader=leader, leader_epoch=0, replicas=(1, 2), isr=isr)


TOPIC = TopicDescription(
    name="t",
    topic_id=UUID(int=0),
    is_internal=False,
    partitions=(partition(0), partition(1, isr=(1,)), partition(2, -1, isr=()), partition(3, 9)),
)
CONFIGS = {
    "min.insync.replicas": ConfigEntry("min.insync.replicas", "2", source=ConfigSource.DYNAMIC_TOPIC_CONFIG),
    "retention.ms": ConfigEntry("retention.ms", "1", source=ConfigSource.DEFAULT_CONFIG),
}


def shown(report: TopicReport) -> list[str]:
    return [
        line.split("\t")[2].removeprefix("Partition: ") for line in lines(TOPIC, CONFIGS, report) if line[0] == "\t"
    ]


@pytest.mark.parametrize(
    ("report", "partitions"),
    [
        (TopicReport(live_brokers={1, 2}), ["0", "1", "2", "3"]),
        (TopicReport(live_brokers={1, 2}, under_replicated=True), ["1", "2"]),
        (TopicReport(live_brokers={1, 2}, unavailable=True), ["2", "3"]),
        (TopicReport(live_brokers={1, 2}, under_min_isr=True), ["1", "2"]),
        (TopicReport(live_brokers={1, 2}, at_min_isr=True), ["0", "3"]),
        (TopicReport(live_brokers={1, 2}, with_overrides=True), []),
    ],
)
def test_partition_reports_filter_partitions(report: TopicReport, partitions: list[str]) -> None:
    assert shown(report) == partitions


def test_old_broker_is_described_without_ids_and_elr() -> None:
    assert list(lines(TOPIC, CONFIGS, TopicReport(live_brokers={1})))[:2] == [
        "Topic: t\tPartitionCount: 4\tReplicationFactor: 2\tConfigs: min.insync.replicas=2",
        "\tTopic: t\tPartition: 0\tLeader: 1\tReplicas: 1,2\tIsr: 1,2\tElr: N/A\tLastKnownElr: N/A",
    ]


# --- against a broker ---


def run(address: str, *words: str) -> int:
    try:
        return cli.main(["topics", "--bootstrap-server", address, *words])
    except SystemExit as error:
        return int(error.code or 0)


@pytest.mark.process
def test_validate_only_sends_request_and_changes_nothing(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    # given
    assert run(address, "--create", "--topic", "here") == 0
    capsys.readouterr()
    # when
    assert run(address, "--create", "--topic", "new", "--partitions", "2", "--validate-only") == 0
    assert run(address, "--create", "--topic", "here", "--validate-only") == 1
    assert run(address, "--alter", "--topic", "here", "--partitions", "3", "--validate-only") == 0
    assert run(address, "--delete", "--topic", "here", "--validate-only") == 0
    # then
    assert capsys.readouterr().out.splitlines() == [
        "Valid: topic new would be created.",
        "Error while executing topic command : Topic 'here' already exists.",
        "Valid: topic here would grow to 3 partitions.",
        "Topic here would be deleted, unless a policy or an ACL denies it.",
    ]
    assert run(address, "--list", "--topic", "new,here") == 0
    assert capsys.readouterr().out == "here\n"


@pytest.mark.process
def test_topic_is_created_with_replica_assignment(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    # when
    assert run(address, "--create", "--topic", "placed", "--replica-assignment", "3:1,2:3") == 0
    assert run(address, "--alter", "--topic", "placed", "--partitions", "3", "--replica-assignment", "3:1,2:3,1:2") == 0
    capsys.readouterr()
    assert run(address, "--describe", "--topic", "placed", "-o", "json") == 0
    # then
    (described,) = json.loads(capsys.readouterr().out)
    assert [partition["replicas"] for partition in described["partitions"]] == [[3, 1], [2, 3], [1, 2]]
    assert (described["partition_count"], described["replication_factor"]) == (3, 2)


@pytest.mark.process
def test_topic_is_described_by_id_in_pages(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    # given
    run(address, "--create", "--topic", "paged", "--partitions", "5", "-o", "json")
    topic_id = json.loads(capsys.readouterr().out)["topic_id"]
    # when
    assert run(address, "--describe", "--topic-id", topic_id, "--partition-size-limit-per-response", "2") == 0
    # then
    assert len(capsys.readouterr().out.splitlines()) == 6


@pytest.mark.process
def test_document_output_prints_failures_to_stderr(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    # when
    assert run(address, "--describe", "--topic", "nothing", "-o", "yaml") == 1
    # then
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "klamm topics: Topic 'nothing' does not exist as expected\n"


@pytest.mark.process
def test_delete_config_flag_is_reported_as_ignored(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    # when
    assert run(address, "--list", "--topic", "none", "--delete-config", "retention.ms") == 0
    # then
    assert "use klamm configs --alter --delete-config" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("--list", "stray"), ("--create", "--topic", "t", "--partitions", "abc"), ("--list",)]
)
def test_usage_error_is_one_line_with_exit_code_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["topics", *words])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("--partitions", "99999999999"), 2, "99999999999: expected a whole number up to 2147483647"),
        (("--replication-factor", "40000"), 2, "40000: expected a whole number up to 32767"),
        (("--replica-assignment", "99999999999"), 1, "expected ids like 1:2,2:1, not '99999999999'"),
    ],
)
def test_out_of_range_number_is_rejected_with_flag(
    address: str, words: tuple[str, str], code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["topics", "--bootstrap-server", address, "--create", "--topic", "huge", *words]
    try:
        exit_code = cli.main(arguments)
    except SystemExit as ended:
        exit_code = int(str(ended.code))
    assert exit_code == code
    output = "".join(capsys.readouterr())
    assert words[0] in output
    assert complaint in output
