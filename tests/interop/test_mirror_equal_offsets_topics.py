"""Flows that keep offsets by replay while topics are extended, deleted and created again, on Apache Kafka and klamm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.mirror.copy import copier as copiers
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.spark.worker import new_copier
from klamm.protocol.records import Record, encode_batch
from tests.support.copiers import is_done, run_until
from tests.support.equal_offsets import EqualFlow, contents
from tests.support.mirror import create_topic, delete_topic, grow_topic
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.mirror.copy.copier import Copier

KEPT = {"retention.ms": "-1"}
TIMESTAMP = 1_356_998_400_000


def produce(address: str, topic: str, *values: bytes, partition: int = 0) -> None:
    """Write one batch."""
    records = [Record(key=None, value=value, timestamp=TIMESTAMP, offset=at) for at, value in enumerate(values)]
    with WireClient(address) as client:
        client.produce(topic, partition, encode_batch(records))


def run_to(copier: Copier, next_offset: int) -> None:
    """Copy until the first partition has all records before an offset and does not wait, or stops."""

    def is_there() -> bool:
        (row,) = copier.progress()
        is_copied = row.state is CopyState.COPYING and row.next_offset == next_offset
        return is_copied or row.state is CopyState.STOPPED

    run_until(copier, is_there)


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copiers, "_LOOK_EVERY_S", 0.1)


@pytest.fixture
def flow(address: str) -> EqualFlow:
    return EqualFlow(address, address)


@pytest.fixture
def copier(flow: EqualFlow) -> Iterator[Copier]:
    """A copier that has copied three records, and continues."""
    produce(flow.source, flow.topic, b"0", b"1", b"2")
    running = new_copier(flow.settings(), [flow.partition])
    try:
        run_to(running, 3)
        yield running
    finally:
        running.close()


def test_partitions_that_are_added_on_the_source_keep_their_offsets(flow: EqualFlow, copier: Copier) -> None:
    for topic in (flow.topic, flow.remote_topic):
        grow_topic(flow.source, topic, 3)
    produce(flow.source, flow.topic, b"3")
    produce(flow.source, flow.topic, b"0", b"1", partition=2)
    added = new_copier(flow.settings(), [PartitionId(flow.topic, at, flow.remote_topic) for at in (1, 2)])
    try:
        run_until(added, lambda: all(map(is_done, added.progress())))
        run_to(copier, 4)
    finally:
        added.close()

    assert [len(flow.assert_equal(at)) for at in range(3)] == [4, 0, 2]


def test_deleted_source_topic_leaves_the_remote_topic_as_it_is(flow: EqualFlow, copier: Copier) -> None:
    before = flow.assert_equal()
    delete_topic(flow.source, flow.topic)

    run_until(copier, lambda: copier.progress()[0].state is CopyState.WAITING)

    assert "UNKNOWN_TOPIC" in copier.progress()[0].reason or "no leader" in copier.progress()[0].reason
    assert contents(flow.target, flow.remote_topic, "read_uncommitted") == before


@pytest.mark.parametrize("count", [0, 2, 3, 7])
def test_recreated_source_topic_stops_the_partition(flow: EqualFlow, copier: Copier, count: int) -> None:
    before = flow.assert_equal()
    delete_topic(flow.source, flow.topic)
    create_topic(flow.source, flow.topic, 1, KEPT)
    if count:
        produce(flow.source, flow.topic, *(b"new %d" % at for at in range(count)))

    run_until(copier, lambda: copier.progress()[0].state is CopyState.STOPPED)

    assert f"{flow.topic} was deleted and created again on the source" in copier.progress()[0].reason
    assert f"Delete {flow.remote_topic}" in copier.progress()[0].reason
    assert contents(flow.target, flow.remote_topic, "read_uncommitted") == before


def test_stopped_partition_starts_again_once_its_remote_topic_is_another_one(flow: EqualFlow, copier: Copier) -> None:
    delete_topic(flow.source, flow.topic)
    create_topic(flow.source, flow.topic, 1, KEPT)
    produce(flow.source, flow.topic, b"new 0", b"new 1")
    run_until(copier, lambda: copier.progress()[0].state is CopyState.STOPPED)
    delete_topic(flow.target, flow.remote_topic)
    create_topic(flow.target, flow.remote_topic, 1, KEPT)

    run_until(copier, lambda: copier.progress()[0].state is CopyState.COPYING and is_done(copier.progress()[0]))

    assert len(flow.assert_equal()) == 2


def test_both_topics_created_again_are_mirrored_from_the_beginning(flow: EqualFlow, copier: Copier) -> None:
    for topic in (flow.topic, flow.remote_topic):
        delete_topic(flow.source, topic)
        create_topic(flow.source, topic, 1, KEPT)
    produce(flow.source, flow.topic, b"new 0", b"new 1", b"new 2", b"new 3")

    run_to(copier, 4)

    assert copier.progress()[0].state is CopyState.COPYING, copier.progress()[0].reason
    assert len(flow.assert_equal()) == 4


def test_remote_topic_created_again_is_mirrored_from_the_beginning(flow: EqualFlow, copier: Copier) -> None:
    delete_topic(flow.target, flow.remote_topic)
    create_topic(flow.target, flow.remote_topic, 1, KEPT)
    produce(flow.source, flow.topic, b"3", b"4")

    run_to(copier, 5)

    assert copier.progress()[0].state is CopyState.COPYING, copier.progress()[0].reason
    assert len(flow.assert_equal()) == 5
