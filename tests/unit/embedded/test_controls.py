"""Control of a running broker: faults, pauses, the clock and its contents."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

import klamm
from klamm.admin import AdminClient, ConfigResource, ResourceType
from klamm.broker.groups.consumer.consumer_protocol import write_assignment
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from klamm.protocol.records import Record, encode_batch
from klamm.testing import assert_assigned
from tests.support.long_tests import long_only
from tests.support.processes import wait_until
from tests.support.wire import RejectedError, WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

ORDERS = ConfigResource(ResourceType.TOPIC, "orders")


@pytest.fixture(scope="module")
def shared() -> Iterator[klamm.Broker]:
    with klamm.Broker(control=True) as broker:
        yield broker


@pytest.fixture
def broker(shared: klamm.Broker) -> Iterator[klamm.Broker]:
    yield shared
    shared.clear_faults()
    shared.clear_requests()


def batch(value: bytes) -> bytes:
    return bytes(encode_batch([Record(key=b"k", value=value, timestamp=int(time.time() * 1000))]))


def client(broker: klamm.Broker, client_id: str = "tests") -> WireClient:
    return WireClient(broker.bootstrap_servers, client_id=client_id)


def test_topics_of_the_broker_have_replicas_and_configs() -> None:
    topics = {"orders": {"partitions": 2, "replication_factor": 3, "configs": {"retention.ms": 1000}}, "payments": 4}
    with (
        klamm.Broker(control=True, brokers=3, topics=topics) as broker,
        AdminClient(broker.bootstrap_servers) as admin,
    ):
        described = admin.describe_topics(["orders", "payments"]).all().result()
        configs = admin.describe_configs([ORDERS]).all().result()[ORDERS]
    numbers = {name: [len(partition.replicas) for partition in topic.partitions] for name, topic in described.items()}
    assert numbers == {"orders": [3, 3], "payments": [1, 1, 1, 1]}
    assert configs["retention.ms"].value == "1000"


def test_unknown_argument_of_a_topic_is_rejected() -> None:
    with pytest.raises(ValueError, match="orders has the unknown argument 'replicas', expected some of partitions, "):
        klamm.Broker(control=True, topics={"orders": {"replicas": 2}})


def test_error_is_injected_the_given_number_of_times(broker: klamm.Broker) -> None:
    broker.create_topic("often")
    fault = broker.inject("Produce", error="NOT_LEADER_OR_FOLLOWER", times=2)
    with client(broker) as wire:
        for _ in range(2):
            with pytest.raises(RejectedError, match="error code 6"):
                wire.produce("often", 0, batch(b"1"))
        assert wire.produce("often", 0, batch(b"1")) == 0
    assert fault.count == 2
    assert [(request.partitions, request.fault) for request in broker.requests("Produce")] == [
        ((("often", 0),), "NOT_LEADER_OR_FOLLOWER"),
        ((("often", 0),), "NOT_LEADER_OR_FOLLOWER"),
        ((("often", 0),), None),
    ]


def test_fault_in_a_with_statement_ends_with_it(broker: klamm.Broker) -> None:
    broker.create_topic("with")
    with client(broker) as wire:
        with broker.inject(error="NOT_LEADER_OR_FOLLOWER", times=None, topic="with", partition=0) as fault:
            for _ in range(3):
                with pytest.raises(RejectedError):
                    wire.produce("with", 0, batch(b"1"))
        assert wire.produce("with", 0, batch(b"1")) == 0
    assert fault.count == 3


def test_count_is_kept_when_all_faults_are_cleared(broker: klamm.Broker) -> None:
    # given
    broker.create_topic("cleared")
    fault = broker.inject("Produce", error="NOT_LEADER_OR_FOLLOWER", topic="cleared")
    with client(broker) as wire, pytest.raises(RejectedError):
        wire.produce("cleared", 0, batch(b"1"))
    # when
    broker.clear_faults()
    # then
    assert fault.count == 1


@pytest.mark.parametrize("is_paused", [False, *long_only(True)])
def test_count_is_kept_when_the_broker_has_been_killed(is_paused: bool) -> None:
    with klamm.Broker(control=True, topics=["orders"]) as broker:
        # given
        with broker.inject("Produce", error="NOT_LEADER_OR_FOLLOWER") as fault:
            with client(broker) as wire, pytest.raises(RejectedError):
                wire.produce("orders", 0, batch(b"1"))
            assert fault.count == 1
            if is_paused:
                broker.pause()
            # when
            assert broker._child is not None
            broker._child.process.kill()
            broker._child.process.wait()
        # then
        assert fault.count == 1


def test_dropped_connection_after_serving_keeps_the_records(broker: klamm.Broker) -> None:
    broker.create_topic("lost")
    broker.inject("Produce", drop_connection=True, after_serving=True)
    with client(broker) as wire, pytest.raises(ConnectionError):
        wire.produce("lost", 0, batch(b"1"))
    assert [record.value for record in broker.records("lost")] == [b"1"]


def test_connection_without_a_response_stays_open(broker: klamm.Broker) -> None:
    broker.create_topic("silent")
    broker.inject("Produce", no_answer=True, client_id="silent")
    with client(broker, "silent") as silent, client(broker, "other") as other:
        silent.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            silent.produce("silent", 0, batch(b"1"))
        assert other.produce("silent", 0, batch(b"2")) == 0
    assert [record.value for record in broker.records("silent")] == [b"2"]


def test_invalid_fault_raises_value_error(broker: klamm.Broker) -> None:
    with pytest.raises(ValueError, match=r"no such API; did you mean Produce\?"):
        broker.inject("Prodce", error="NOT_LEADER_OR_FOLLOWER")
    with pytest.raises(ValueError, match="node_id=9: broker ids are 1; "):
        broker.inject("Produce", error="NOT_LEADER_OR_FOLLOWER", node_id=9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda broker: broker.inject("Produce", delay="5"), "delay='5': expected seconds as a number, or a timedelta"),
        (lambda broker: broker.advance_clock("1h"), "by='1h': expected seconds as a number, or a timedelta"),
        (lambda broker: broker.produce("orders", 5), "value=5: expected bytes, str or None, got int"),
        (lambda broker: broker.produce("orders", "1", headers={"h": 5}), "headers: h=5: expected bytes, str or None"),
        (lambda broker: broker.produce("orders", "1", headers=["h"]), "expected values by name, or pairs"),
        (lambda broker: broker.produce("orders", "1", headers=5), "headers=5: expected values by name, or pairs"),
        (lambda broker: broker.produce("orders", "1", headers=[5]), "expected values by name, or pairs"),
        (lambda broker: broker.produce("orders", "1", headers=None), "headers=None: expected values by name, or pairs"),
        (lambda broker: broker.produce("orders", "1", headers={5: "x"}), "expected values by name, .* a name is a str"),
        (lambda broker: broker.produce("orders", "1", headers=["ab"]), "expected values by name, or pairs"),
        (lambda broker: broker.produce(5, "1"), "topic=5: expected the name of a topic, got int"),
        (lambda broker: broker.produce("orders", "1", partition="0"), "partition='0': expected a number or None"),
        (lambda broker: broker.has_topic(b"orders"), "bytes is not JSON serializable"),
        (lambda broker: broker.inject("Produce", error=1, topic=b"orders"), "bytes is not JSON serializable"),
        (lambda broker: broker.produce("orders", "1", timestamp=True), "timestamp=True: expected milliseconds, or"),
        (lambda broker: broker.produce("orders", "1", timestamp="now"), "timestamp='now': expected milliseconds, or"),
        (lambda broker: broker.create_topic("orders", configs=["a"]), "expected values by name, got list"),
        (
            lambda broker: broker.create_topic("orders", configs={"flush.ms": None}),
            "for flush.ms: expected a string",
        ),
    ],
)
def test_argument_of_wrong_type_is_named(
    broker: klamm.Broker, call: Callable[[klamm.Broker], object], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        call(broker)
    assert broker.faults() == []  # the broker still answers


def test_timestamp_beyond_64_bits_is_rejected(broker: klamm.Broker) -> None:
    with pytest.raises(ValueError, match=f"timestamp={2**80}: must be milliseconds in 64 bits"):
        broker.produce("orders", "1", timestamp=2**80)


def test_clock_and_configs_take_any_real_number(broker: klamm.Broker) -> None:
    broker.advance_clock(Decimal("0.5"))  # type: ignore[arg-type]  # as programs without type checks do
    broker.create_topic("decimals", configs={"flush.ms": Decimal(5)})
    with pytest.raises(TypeError, match="by=1j: expected seconds as a number"):
        broker.advance_clock(1j)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"for flush\.ms: expected a string, a number"):
        broker.create_topic("decimals", configs={"flush.ms": 1j})


def test_records_are_read_by_partition_and_transaction(broker: klamm.Broker) -> None:
    broker.create_topic("read", partitions=2)
    with client(broker) as wire:
        wire.produce("read", 1, batch(b"1"))
        wire.produce("read", 1, batch(b"2"))
        wire.produce("read", 0, batch(b"3"))
    records = [(record.partition, record.offset, record.key, record.value) for record in broker.records("read")]
    assert records == [(0, 0, b"k", b"3"), (1, 0, b"k", b"1"), (1, 1, b"k", b"2")]
    assert broker.records("read", partition=1, isolation_level="read_committed") == broker.records("read", partition=1)
    with pytest.raises(LookupError, match=r"Topic 'reed' does not exist; did you mean read\?"):
        broker.records("reed")
    with pytest.raises(LookupError, match="Topic 'read' has no partition 2, it has 2"):
        broker.records("read", partition=2)
    with pytest.raises(ValueError, match="expected read_uncommitted or read_committed"):
        broker.records("read", isolation_level="committed")  # type: ignore[arg-type]


def test_large_topic_is_read_in_several_fetches(broker: klamm.Broker) -> None:
    broker.create_topic("large")
    with client(broker) as wire:
        for _ in range(4):
            wire.produce("large", 0, batch(bytes(700_000)))
    assert [record.offset for record in broker.records("large")] == [0, 1, 2, 3]


def test_topics_are_created_with_configs_and_deleted(broker: klamm.Broker) -> None:
    made = {"retention.ms": 1000, "preallocate": True, "cleanup.policy": ["compact", "delete"]}
    broker.create_topic("made", partitions=3, configs=made)
    with client(broker) as wire:
        configs = wire.topic_configs("made")
    assert [configs[name] for name in made] == ["1000", "true", "compact,delete"]
    broker.delete_topic("made")
    with pytest.raises(LookupError, match="Topic 'made' does not exist"):
        broker.delete_topic("made")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "a b"}, "INVALID_TOPIC_EXCEPTION: Topic name is invalid"),
        ({"topic": "__consumer_offsets"}, "INVALID_TOPIC_EXCEPTION: Topic '__consumer_offsets' is reserved"),
        ({"topic": "dotted_or_not"}, "Topic 'dotted_or_not' collides with existing topic: dotted.or_not"),
        ({"topic": "a", "partitions": 0}, "partitions=0: must be a number from 1"),
        ({"topic": "a", "partitions": "2"}, "partitions='2': must be a number from 1"),
        ({"topic": "a", "partitions": 10**12}, "Excessively large number of partitions"),
        ({"topic": "a", "configs": {"retention.ms": "x"}}, "INVALID_CONFIG: "),
    ],
)
def test_invalid_topic_raises_value_error(broker: klamm.Broker, options: dict[str, object], message: str) -> None:
    if not broker.has_topic("dotted.or_not"):
        broker.create_topic("dotted.or_not")
    with pytest.raises(ValueError, match=message):
        broker.create_topic(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [7, 8])
def test_fault_for_a_group_affects_offset_fetch_of_all_versions(broker: klamm.Broker, version: int) -> None:
    fault = broker.inject("OffsetFetch", error="COORDINATOR_LOAD_IN_PROGRESS", group_id="g")
    groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)]
    request = OffsetFetchRequest(groups=groups) if version > 7 else OffsetFetchRequest(group_id="g", topics=None)
    with client(broker) as wire:
        wire.ask(request, OffsetFetchResponse, version)
    assert fault.count == 1
    assert broker.requests("OffsetFetch")[-1].group_id == "g"


def test_requests_are_filtered(broker: klamm.Broker) -> None:
    broker.create_topic("one")
    broker.create_topic("two", partitions=2)
    with client(broker, "first") as first, client(broker, "second") as second:
        first.produce("one", 0, batch(b"1"))
        second.produce("two", 1, batch(b"1"))
        second.end_offset("two", 1)
    assert [request.api for request in broker.requests(client_id="second")] == ["Produce", "ListOffsets"]
    assert [request.client_id for request in broker.requests("produce", topic="one")] == ["first"]
    assert [request.api for request in broker.requests(partition=1)] == ["Produce", "ListOffsets"]
    assert broker.requests("Produce", topic="two", partition=0) == []
    with pytest.raises(ValueError, match="no such API"):
        broker.requests("Prodce")


def test_paused_broker_does_not_respond_until_resumed(broker: klamm.Broker) -> None:
    broker.create_topic("paused")
    with client(broker) as wire:
        broker.pause()
        wire.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            wire.end_offset("paused", 0)
        with pytest.raises(RuntimeError, match=r"the broker is paused, call resume\(\) first"):
            broker.records("paused")
        broker.resume()
    with client(broker) as wire:
        assert wire.end_offset("paused", 0) == 0


@pytest.mark.parametrize("by", [timedelta(seconds=-1), float("nan"), float("inf"), timedelta(days=36_501)])
def test_clock_advances_by_a_limited_time_only(broker: klamm.Broker, by: float | timedelta) -> None:
    with pytest.raises(ValueError, match=f"by={by}: must be from 0 to 36500 days; the clock cannot be moved back"):
        broker.advance_clock(by)
    broker.produce("clock", "1")


def test_transactions_and_group_offsets_expire_with_the_advanced_clock(tmp_path: Path) -> None:
    with klamm.Broker(control=True, data_dir=tmp_path) as broker:
        # given
        broker.create_topic("orders")
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t", "transaction.timeout.ms": 60_000}
        )
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce("orders", b"left open")
        producer.flush(10)
        with client(broker) as wire:
            wire.produce("orders", 0, batch(b"behind it"))
            assert broker.records("orders", isolation_level="read_committed") == []
            committed = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
            topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="orders", partitions=[committed])
            wire.ask(OffsetCommitRequest(group_id="g", topics=[topic]), OffsetCommitResponse, 8)
            assert broker.committed_offsets("g") == {("orders", 0): 1}
        # when
        broker.advance_clock(timedelta(minutes=2))
        # then
        assert [record.value for record in broker.records("orders", isolation_level="read_committed")] == [b"behind it"]
        assert [record.value for record in broker.records("orders")] == [b"left open", b"behind it"]
        broker.advance_clock(timedelta(days=8))
        assert broker.committed_offsets("g") == {}


def test_offsets_of_a_group_whose_only_member_is_gone_expire_with_the_advanced_clock(broker: klamm.Broker) -> None:
    """The group is empty from the end of the session on, so the retention of its offsets begins then."""
    # given
    broker.create_topic("left")
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    with client(broker) as wire:
        join = JoinGroupRequest(
            group_id="left", session_timeout_ms=45_000, rebalance_timeout_ms=60_000, member_id="",
            protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip
        joined = wire.ask(join, JoinGroupResponse, 2)
        sync = SyncGroupRequest(group_id="left", generation_id=joined.generation_id, member_id=joined.member_id)
        wire.ask(sync, SyncGroupResponse, 2)
        partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="left", partitions=[partition])
        committed = OffsetCommitRequest(
            group_id="left",
            generation_id_or_member_epoch=joined.generation_id,
            member_id=joined.member_id,
            topics=[topic],
        )
        wire.ask(committed, OffsetCommitResponse, 8)
    assert broker.committed_offsets("left") == {("left", 0): 0}
    # when
    broker.advance_clock(timedelta(days=8))
    # then
    assert broker.assignments("left") == []
    assert broker.committed_offsets("left") == {}


def join_request(group_id: str, protocol_type: str = "consumer") -> JoinGroupRequest:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    return JoinGroupRequest(
        group_id=group_id, session_timeout_ms=45_000, rebalance_timeout_ms=60_000, member_id="",
        protocol_type=protocol_type, protocols=[protocol],
    )  # fmt: skip


def joined_alone(wire: WireClient, join: JoinGroupRequest, assignment: bytes) -> None:
    """Join a group as its only member, and assign this to it."""
    joined = wire.ask(join, JoinGroupResponse, 2)
    own = SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=assignment)
    sync = SyncGroupRequest(
        group_id=join.group_id, generation_id=joined.generation_id, member_id=joined.member_id, assignments=[own]
    )
    wire.ask(sync, SyncGroupResponse, 2)


def test_group_in_a_rebalance_is_not_assigned(broker: klamm.Broker) -> None:
    # given
    broker.create_topic("moving")
    join = join_request("moving")
    with client(broker) as first, client(broker) as second:
        joined_alone(first, join, write_assignment({"moving": (0,)}, 0))
        assert_assigned(broker, "moving", "moving", members=1)
        # when: the first member, which has to join again, still has its partition
        second.send(join, 2)
        wait_until(lambda: len(broker.assignments("moving")) == 2, timeout_s=20, what="the second member")
        # then
        with pytest.raises(AssertionError, match="Group moving is PreparingRebalance and has 2 members, expected Stab"):
            assert_assigned(broker, "moving", "moving", members=2, within_s=0)


def test_members_of_another_kind_of_group_have_no_partitions(broker: klamm.Broker) -> None:
    with client(broker) as worker:
        joined_alone(worker, join_request("workers", "connect"), b"\x00")
        assert [member.partitions for member in broker.assignments("workers")] == [()]


def test_compaction_runs_after_the_clock_advances() -> None:
    with klamm.Broker(control=True) as broker, client(broker) as wire:
        # given
        configs = {
            "cleanup.policy": "compact",
            "message.timestamp.type": "LogAppendTime",
            "min.cleanable.dirty.ratio": 0,
            "segment.ms": 60_000,
        }
        broker.create_topic("latest", configs=configs)
        for value in (b"1", b"2", b"3"):
            wire.produce("latest", 0, batch(value))
        # when
        broker.advance_clock(timedelta(minutes=2))
        wire.produce("latest", 0, batch(b"4"))  # in a new segment
        broker.advance_clock(timedelta(minutes=2))
        # then
        wait_until(
            lambda: [record.value for record in broker.records("latest")] == [b"3", b"4"],
            timeout_s=30,
            what="compaction",
        )


def test_controls_require_control_mode_and_a_started_broker() -> None:
    broker = klamm.Broker()
    with pytest.raises(RuntimeError, match=r"use klamm.Broker\(control=True\)"):
        broker.inject(error=6)
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        klamm.Broker(control=True).records("a")


def test_restart_keeps_the_advanced_clock_and_ends_faults(tmp_path: Path) -> None:
    """Neither a connection without a response nor a pause holds up the end."""
    with klamm.Broker(control=True, data_dir=tmp_path) as broker:
        broker.create_topic("kept", configs={"message.timestamp.type": "LogAppendTime"})
        with client(broker) as silent, broker.inject("Produce", no_answer=True, times=5) as fault:
            silent.socket.settimeout(0.05)
            with suppress(TimeoutError):
                silent.produce("kept", 0, batch(b"1"))
            wait_until(lambda: fault.count == 1, timeout_s=20, what="the request")
            broker.advance_clock(timedelta(hours=1))
            first = broker._child
            broker.restart(timeout_s=120)
        assert fault.count == 1, "it ended with the process"
        with client(broker) as wire:
            wire.produce("kept", 0, batch(b"1"))
        (record,) = broker.records("kept")
        assert record.timestamp_ms > (time.time() + 3500) * 1000
        broker.pause()
        second = broker._child
        broker.stop(timeout_s=120)
    assert first is not None
    assert "a test has injected this fault" in first.log_text(), "the connection was not aborted"
    assert second is not None
    assert (first.process.returncode, second.process.returncode) == (0, 0), "neither was killed"


def test_paused_broker_ends_with_its_parent() -> None:
    program = textwrap.dedent(
        """
        import klamm, time
        broker = klamm.Broker(control=True).start()
        broker.pause()
        print(broker.pid, flush=True)
        time.sleep(60)
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()

    def is_gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    try:
        wait_until(is_gone, timeout_s=20, what="the end of the paused broker")
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_topic_that_another_thread_has_just_created_is_written(
    broker: klamm.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("raced")
    answers = iter([False])
    has_topic = broker.has_topic
    monkeypatch.setattr(broker, "has_topic", lambda topic: next(answers, True) and has_topic(topic))
    assert broker.produce("raced", "1").offset == 0
    with pytest.raises(ValueError, match="INVALID_TOPIC_EXCEPTION"):
        broker.produce("a b", "1")


def test_controls_are_thread_safe(broker: klamm.Broker) -> None:
    broker.create_topic("threads")
    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(len(broker.records("threads")))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [0] * 8
