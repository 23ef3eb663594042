"""Four client families, unchanged and with their usual settings, against the same broker."""

from __future__ import annotations

import contextlib
import gc
import os
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.support.families import AIOKAFKA, CONFLUENT_KAFKA, JAVA, KAFKA_PYTHON
from tests.support.long_tests import long_only
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.support.families import Delivery, Family
    from tests.support.families.model import RunningConsumer, RunningProducer
    from tests.support.probe import Cluster
    from tests.support.workers import Worker

_COUNT = 100_000 if os.environ.get("KLAMM_SOAK") else 4_000
_RECORDS_PER_S = _COUNT // 4
_PARTITIONS = 3
_PATIENCE_S = 90.0

# The libraries leave the sockets of a broker that died to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture(autouse=True)
def _sockets_collected() -> Iterator[None]:
    """Collect them while they are still this module's."""
    yield
    gc.collect()


@pytest.mark.parametrize(
    "family", [CONFLUENT_KAFKA, *long_only(KAFKA_PYTHON, AIOKAFKA, JAVA)], ids=lambda family: family.name, indirect=True
)
def test_every_record_arrives_despite_broker_kill_and_member_leave(cluster: Cluster, family: Family) -> None:
    # given: a topic, two members that share it, and a producer
    topic = _unique("stream")
    _create_topic(cluster, family, topic)
    with contextlib.ExitStack() as ending:
        members = [family.consumer(cluster.bootstrap_servers, topic, f"{topic}-readers") for _ in range(2)]
        for member in members:
            ending.callback(member.stop)
        staying, leaving = members
        _until("both members to have partitions", lambda: _share(members), members)
        producer = family.producer(cluster.bootstrap_servers, topic, count=_COUNT, records_per_s=_RECORDS_PER_S)
        ending.callback(producer.stop)

        # when: the broker is killed in the middle, and later one member leaves
        _until("two fifths", lambda: len(producer.acknowledged) >= 0.4 * _COUNT, [producer, *members])
        cluster.restart(kill=True)
        _until("seven tenths", lambda: _seen(members) >= 0.7 * _COUNT, [producer, *members])
        leaving.stop()

        # then
        producer.join(_PATIENCE_S)
        _until("every record", lambda: _is_complete(members), [staying], lambda: _progress(producer, members))
        # The last records may have come before the group has done without the one that left.
        everything = frozenset(range(_PARTITIONS))
        _until("the member that stayed to have every partition", lambda: staying.assignment == everything, [staying])
    assert producer.failures == []
    _assert_numbers_once_in_order(members)
    _assert_acknowledged_offsets(producer, members)


def test_topics_and_configs_are_administered(cluster: Cluster, family: Family) -> None:
    # given
    topic = _unique("admin")
    admin = family.admin(cluster.bootstrap_servers)
    with contextlib.closing(admin):
        # when a topic is created with a config, then it has that one and the defaults
        admin.create_topic(topic, partitions=2, configs={"retention.ms": "60000"})
        _until("the topic", lambda: admin.partition_count(topic) == 2)
        described = admin.describe_config(topic)
        assert (described["retention.ms"], described["cleanup.policy"]) == ("60000", "delete")

        # when it grows, then it has the partitions
        admin.create_partitions(topic, total=5)
        _until("five partitions", lambda: admin.partition_count(topic) == 5)

        # when another config is altered, then an incremental change leaves the first alone; the old request resets it
        admin.alter_config(topic, {"cleanup.policy": "compact,delete"})
        expected = {
            "cleanup.policy": "compact,delete",
            "retention.ms": "60000" if family.alters_incrementally else "604800000",
        }
        _until("the change", lambda: expected.items() <= admin.describe_config(topic).items())

        # when it is deleted, then it is gone
        admin.delete_topic(topic)
        _until("the end of the topic", lambda: _partition_count_or_none(admin.partition_count, topic) == 0)


def _unique(purpose: str) -> str:
    return f"families-{purpose}-{uuid.uuid4().hex[:8]}"


def _create_topic(cluster: Cluster, family: Family, topic: str) -> None:
    with contextlib.closing(family.admin(cluster.bootstrap_servers)) as admin:
        admin.create_topic(topic, partitions=_PARTITIONS, configs={})
        _until("the topic", lambda: admin.partition_count(topic) == _PARTITIONS)


def _partition_count_or_none(count: Callable[[str], int], topic: str) -> int:
    """Some libraries raise for a topic that is not there."""
    try:
        return count(topic)
    except Exception as error:
        if "UnknownTopicOrPartition" in repr(error):
            return 0
        raise


def _until(
    what: str,
    condition: Callable[[], bool],
    workers: Sequence[Worker] = (),
    progress: Callable[[], str] = str,
) -> None:
    def check() -> None:
        for worker in workers:
            worker.check()

    try:
        wait_until(condition, timeout_s=_PATIENCE_S, what=what, alive=check, interval_s=0.1)
    except TimeoutError as error:
        error.add_note(progress())
        raise


def _share(members: list[RunningConsumer]) -> bool:
    shares = [member.assignment for member in members]
    return all(shares) and sum(map(len, shares)) == _PARTITIONS and frozenset().union(*shares) == {0, 1, 2}


def _delivered(members: list[RunningConsumer]) -> list[Delivery]:
    return [delivery for member in members for delivery in tuple(member.delivered)]


def _seen(members: list[RunningConsumer]) -> int:
    return sum(len(member.delivered) for member in members)


def _is_complete(members: list[RunningConsumer]) -> bool:
    return _seen(members) >= _COUNT and len({delivery.value for delivery in _delivered(members)}) == _COUNT


def _progress(producer: RunningProducer, members: list[RunningConsumer]) -> str:
    missing = set(range(_COUNT)) - {delivery.value for delivery in _delivered(members)}
    return (
        f"acknowledged: {len(producer.acknowledged)}, failed: {producer.failures[:3]}, "
        f"delivered: {[len(member.delivered) for member in members]}, "
        f"assigned: {[sorted(member.assignment) for member in members]}, missing: {len(missing)} {sorted(missing)[:5]}"
    )


def _assert_numbers_once_in_order(members: list[RunningConsumer]) -> None:
    """Members may be given a record again (what they had not committed), but the log holds each number once."""
    places = {(delivery.partition, delivery.offset): delivery.value for delivery in _delivered(members)}
    assert len(places) == _COUNT, "A number is in the log twice, or an offset was given two values"
    assert set(places.values()) == set(range(_COUNT))
    for partition in range(_PARTITIONS):
        numbers = [value for (where, _), value in sorted(places.items()) if where == partition]
        assert numbers == sorted(numbers), f"Partition {partition} is out of order"


def _assert_acknowledged_offsets(producer: RunningProducer, members: list[RunningConsumer]) -> None:
    assert len(producer.acknowledged) == _COUNT
    delivered = set(_delivered(members))
    assert {delivery for delivery in producer.acknowledged if delivery.offset >= 0} <= delivered
