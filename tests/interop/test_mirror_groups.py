"""Offsets of groups between klamm's brokers, with the mirror's own copier and loops, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import klamm
from klamm.cli import main as cli
from klamm.mirror.groups.both_sides import both_sides
from klamm.mirror.groups.control import group_control
from klamm.mirror.groups.cutover import cut_over
from klamm.mirror.progress.flow_progress import GroupStatus
from klamm.mirror.records.formats import Checkpoint
from klamm.mirror.settings.mirror import parse_settings
from klamm.properties import parse_properties
from tests.support.mirror import Seen, create_topic, produce, properties, wait_for_records
from tests.support.mirror_groups import Copying, commit, committed, rounds
from tests.support.processes import wait_until
from tests.support.record_times import RECENT_MS
from tests.support.transactional_clients import Aio

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from klamm.mirror.settings.flow import FlowSettings

SYNCED = "sync.group.offsets.enabled = true\n"
PRESERVED = "klamm.offsets = preserve\n"
COMMITTED = "A.consumer.isolation.level = read_committed\n"


@pytest.fixture
def source() -> Iterator[klamm.Broker]:
    with klamm.Broker() as broker:
        yield broker


@pytest.fixture
def target() -> Iterator[klamm.Broker]:
    with klamm.Broker() as broker:
        yield broker


def flow_of(source: klamm.Broker, target: klamm.Broker, more: str = "", *, topics: str) -> FlowSettings:
    text = properties(source.bootstrap_servers, target.bootstrap_servers, more, topics=topics)
    return parse_settings(parse_properties(text)).flows[0]


def numbered(count: int, first: int = 0) -> list[tuple[int, Seen]]:
    return [(0, Seen(b"k", b"%d" % number, (), RECENT_MS + number)) for number in range(first, first + count)]


def checkpoints(target: klamm.Broker, count: int) -> list[Checkpoint]:
    records = wait_for_records(target.bootstrap_servers, "A.checkpoints.internal", count)
    return [Checkpoint.parse(record.key or b"", record.value or b"") for record in records]


def test_group_continues_at_translated_offset(source: klamm.Broker, target: klamm.Broker) -> None:
    """K894-41, K894-43, K894-45: the offset is exact, though no offset sync is of that record."""
    # given
    create_topic(source.bootstrap_servers, "orders")
    produce(source.bootstrap_servers, "orders", numbered(700))
    flow = flow_of(source, target, SYNCED, topics="orders")
    commit(source.bootstrap_servers, "billing", "orders", 345)
    commit(source.bootstrap_servers, "console-consumer-1", "orders", 5)
    create_topic(source.bootstrap_servers, "elsewhere")
    commit(source.bootstrap_servers, "elsewhere", "elsewhere", 1)
    with Copying(flow) as copying:
        copying.wait_for(700)
    # when
    groups = rounds(flow)
    # then
    (checkpoint,) = checkpoints(target, 1)
    assert checkpoint == Checkpoint(
        group="billing", topic="A.orders", partition=0, upstream_offset=345, downstream_offset=345
    )
    assert committed(target.bootstrap_servers, "billing") == {"A.orders": 345}
    (row,) = groups.offsets
    assert (row.group, row.topic, row.source_offset, row.target_offset, row.committed) == (
        "billing",
        "orders",
        345,
        345,
        345,
    )
    assert (row.again_at_most, row.reason, row.sync_reason) == (0, "", "")
    assert row.checkpoint_latency_ms is not None
    assert dict(groups.skipped).keys() >= {"console-consumer-1", "elsewhere"}


@pytest.mark.long
def test_group_offset_of_unequal_partition_is_not_synced(source: klamm.Broker, target: klamm.Broker) -> None:
    """Before ``klamm.offsets=preserve`` was set, the markers of transactions were left out."""
    # given
    here, there = source.bootstrap_servers, target.bootstrap_servers
    create_topic(here, "orders")
    with Aio(here, "orders") as producer:
        for number in range(20):
            producer.begin()
            producer.send("orders", f"{number}")
            producer.commit()
    with Copying(flow_of(source, target, topics="orders")) as copying:
        copying.wait_for(39)
    commit(here, "billing", "orders", 10)
    flow = flow_of(source, target, SYNCED + PRESERVED, topics="orders")
    # when
    (row,) = rounds(flow).offsets
    # then
    assert row.reason == "offset 0 of A.orders-0 was written by another producer: offsets are not equal"
    assert committed(there, "billing") == {}
    with both_sides(flow) as sides:
        assert not cut_over(flow, "billing", sides, dry_run=False).is_done


@pytest.mark.long
def test_offsets_are_taken_over_until_another_producer_writes(source: klamm.Broker, target: klamm.Broker) -> None:
    # given
    here, there = source.bootstrap_servers, target.bootstrap_servers
    create_topic(here, "orders")
    produce(here, "orders", numbered(20))
    commit(here, "billing", "orders", 20)
    flow = flow_of(source, target, SYNCED + PRESERVED, topics="orders")
    with Copying(flow) as copying:
        copying.wait_for(20)
    with group_control(flow, status := GroupStatus()) as control:
        control.sync()
        assert committed(there, "billing") == {"A.orders": 20}
        # when
        produce(there, "A.orders", numbered(5, first=100))
        produce(here, "orders", numbered(20, first=20))
        commit(here, "billing", "orders", 23)
        control.sync()
    # then
    (row,) = status.snapshot()[flow.name].offsets
    assert row.reason == "offset 20 of A.orders-0 was written by another producer: offsets are not equal"
    assert committed(there, "billing") == {"A.orders": 20}


@pytest.mark.long
def test_cutover_moves_group_without_members(
    source: klamm.Broker, target: klamm.Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``klamm mirror cutover``: with members or with anything that can not be translated nothing is set."""
    # given
    here, there = source.bootstrap_servers, target.bootstrap_servers
    create_topic(here, "moved")
    produce(here, "moved", numbered(50))
    file = tmp_path / "mm2.properties"
    file.write_text(properties(here, there, topics="moved"))
    commit(here, "mover", "moved", 20)
    command = ["mirror", "cutover", "mover", str(file)]
    # when nothing is mirrored yet
    assert cli([*command, "--dry-run"]) == 1
    assert "nothing was mirrored yet" in capsys.readouterr().out
    with Copying(flow_of(source, target, topics="moved")) as copying:
        copying.wait_for(50)
    # when a consumer is in the group
    consumer = Consumer({"bootstrap.servers": here, "group.id": "mover", "enable.auto.commit": False})
    consumer.subscribe(["moved"])
    wait_until(lambda: consumer.poll(0.2) is not None, timeout_s=60, what="a consumer in the group")
    assert cli(command) == 1
    assert "group mover: it has 1 member on cluster A: stop its consumers first" in capsys.readouterr().err
    consumer.close()
    # when it has left
    assert cli([*command, "--dry-run"]) == 0
    assert committed(there, "mover") == {}
    assert cli([*command, "--wait", "30"]) == 0
    # then
    assert committed(there, "mover") == {"A.moved": 20}
    heading, row, end = capsys.readouterr().out.splitlines()[-3:]
    assert heading.split() == [
        "GROUP",
        "TOPIC",
        "PARTITION",
        "SOURCE",
        "OFFSET",
        "TARGET",
        "OFFSET",
        "LAG",
        "AGAIN",
        "REASON",
    ]
    assert " ".join(row.split()) == "mover A.moved 0 20 20 30 0 -"
    assert end == "A->B: group mover was moved to cluster B; start its consumers there"
    # when it is moved again from further back
    commit(here, "mover", "moved", 10)
    assert cli(command) == 0
    assert "stays at 20, where it is already" in capsys.readouterr().out
    assert committed(there, "mover") == {"A.moved": 20}


def test_cutover_moves_group_with_empty_partitions(
    source: klamm.Broker, target: klamm.Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    here, there = source.bootstrap_servers, target.bootstrap_servers
    for topic in ("aborted", "emptied", "full", "never-written"):
        create_topic(here, topic)
    producer = Producer({"bootstrap.servers": here, "transactional.id": "aborts"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("aborted", b"v")
    producer.flush()
    producer.abort_transaction()
    produce(here, "full", numbered(5))
    produce(here, "emptied", numbered(5))
    admin = AdminClient({"bootstrap.servers": here})
    (deleted,) = admin.delete_records([TopicPartition("emptied", 0, 5)]).values()
    assert deleted.result(300).low_watermark == 5
    for topic, offset in (("aborted", 2), ("emptied", 5), ("full", 2), ("never-written", 0)):
        commit(here, "mover", topic, offset)
    with Copying(flow_of(source, target, COMMITTED, topics=".*")) as copying:
        copying.wait_for(12)
    file = tmp_path / "mm2.properties"
    file.write_text(properties(here, there, COMMITTED, topics=".*"))
    # when
    assert cli(["mirror", "cutover", "mover", str(file)]) == 0, capsys.readouterr()
    # then
    assert committed(there, "mover") == {"A.aborted": 0, "A.emptied": 0, "A.full": 2, "A.never-written": 0}
    rows = [row.split() for row in capsys.readouterr().out.splitlines() if row.startswith("mover")]
    assert [row[5:7] for row in rows] == [["0", "0"], ["0", "0"], ["3", "0"], ["0", "0"]]
    groups = rounds(flow_of(source, target, SYNCED + COMMITTED, topics=".*"))
    assert [(row.target_offset, row.reason) for row in groups.offsets] == [(0, ""), (0, ""), (2, ""), (0, "")]


def test_impossible_cutover_names_command_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(properties("a:1", "b:1", "B->A.enabled = true\n", topics="t"))
    assert cli(["mirror", "cutover", "g", str(file)]) == 2
    assert "several flows are enabled; choose one with --flow: A->B, B->A" in capsys.readouterr().err
    assert cli(["mirror", "cutover", "g", str(file), "--flow", "A->C"]) == 2
    assert "--flow A->C: expected one of the enabled flows: A->B, B->A" in capsys.readouterr().err
    assert cli(["mirror", "cutover", "g", str(tmp_path / "missing")]) == 2
