"""Broker ids that stop and start, and leaders and coordinators that move, from the view of clients."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient

from klamm.embedded.broker import Broker
from klamm.testing import (
    assert_assigned,
    assert_committed_offset,
    assert_requested,
    assert_topic_contains,
    in_thread,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(brokers=3, control=True) as broker:
        yield broker


def test_producer_writes_while_one_of_three_brokers_is_down(broker: Broker) -> None:
    broker.create_topic("t", partitions=3, replication_factor=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "topic.metadata.refresh.interval.ms": 100})

    def write(round_: int) -> None:
        for partition in range(3):
            producer.produce("t", f"{round_}-{partition}", partition=partition)
        assert producer.flush(20) == 0

    write(0)
    for node_id in (1, 2, 3):
        broker.stop_node(node_id)
        write(node_id)
        broker.start_node(node_id)
    write(4)

    expected = [f"{round_}-{partition}" for partition in range(3) for round_ in range(5)]
    assert_topic_contains(broker, "t", *expected, only=True)


def test_metadata_reports_stopped_broker_like_kafka(broker: Broker) -> None:
    broker.create_topic("t", partitions=3)
    broker.create_topic("u", partitions=3, replication_factor=3)
    broker.stop_node(2)

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers.split(","))
    try:
        topics = {topic["name"]: topic["partitions"] for topic in admin.describe_topics(["t", "u"])}
        nodes = [node["broker_id"] for node in admin.describe_cluster()["brokers"]]
    finally:
        admin.close()

    assert nodes == [1, 3]
    single = {each["partition_index"]: each for each in topics["t"]}
    assert [single[index]["leader_id"] for index in range(3)] == [1, -1, 3]
    assert [single[index]["error_code"] for index in range(3)] == [0, 5, 0]
    assert {tuple(each["isr_nodes"]) for each in topics["u"]} <= {(1, 3), (3, 1)}
    assert {tuple(each["offline_replicas"]) for each in topics["u"]} == {(2,)}
    broker.stop_node(1)
    with pytest.raises(ValueError, match="it is the last live one"):
        broker.stop_node(3)
    with pytest.raises(ValueError, match="node_id=4: broker ids are 1, 2, 3; brokers=N starts N of them"):
        broker.stop_node(4)


def test_producer_follows_moved_leader(broker: Broker) -> None:
    broker.create_topic("t", replication_factor=2)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers.split(","), retry_backoff_ms=10)
    for node_id in (3, 2, 1):
        broker.move_leader("t", 0, node_id)
        producer.send("t", b"to %d" % node_id).get(timeout=20)
        assert assert_requested(broker, "Produce")[-1].node_id == node_id
    producer.close()

    records = assert_topic_contains(broker, "t", "to 3", "to 2", "to 1", in_order=True, only=True)
    assert [record.offset for record in records] == [0, 1, 2]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_follows_its_coordinator(broker: Broker, protocol: str) -> None:
    broker.create_topic("t", partitions=2)
    broker.produce("t", "first", partition=0)
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "g",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.subscribe(["t"])
    for offset, node_id in enumerate((3, 1, 2), 1):
        broker.move_coordinator("g", node_id)
        broker.produce("t", f"to {node_id}", partition=0)
        message = consumer.poll(30)
        assert message is not None
        consumer.commit(message=message, asynchronous=False)
        assert_committed_offset(broker, "g", "t", offset)
        (member,) = assert_assigned(broker, "g", "t", members=1)
        assert member.partitions == (("t", 0), ("t", 1))
    consumer.close()


def slow_consumers_only(request: Mapping[str, Any]) -> bool:
    return bool(request["client_id"] == "slow")


def test_fault_applies_to_requests_selected_by_a_function() -> None:
    with Broker(control=True, topics={"t": 2}) as broker:
        broker.produce("t", "1", headers={"trace": "x"}, key="k", timestamp=1_000)
        fault = broker.inject("Fetch", throttle=0.01, when=slow_consumers_only, times=None)
        for client_id in ("fast", "slow"):
            consumer = KafkaConsumer(
                "t", bootstrap_servers=broker.bootstrap_servers, client_id=client_id, auto_offset_reset="earliest"
            )
            record = next(consumer)
            assert (record.key, record.value, record.timestamp) == (b"k", b"1", 1_000)
            assert list(record.headers) == [("trace", b"x")]
            consumer.close()
            assert bool(fault.count) is (client_id == "slow")
        assert all(request.fault == "throttle" for request in broker.requests("Fetch", client_id="slow"))
        with pytest.raises(ValueError, match="top level of an importable module"):
            broker.inject("Fetch", throttle=0.01, when=lambda _: True)


async def test_broker_runs_inside_a_running_event_loop() -> None:
    async with Broker(control=True, topics=["t"]) as broker:
        produced = asyncio.create_task(in_thread(broker.produce, "t", "1"))
        (record,) = await in_thread(assert_topic_contains, broker, "t", "1", only=True)
        assert record == await produced
    assert not broker.is_running
