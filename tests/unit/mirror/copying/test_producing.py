"""On which connection to a leader each partition is written to; the target only notes what it is sent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.mirror.copying.partition_copy import PartitionCopy, PartitionId
from klamm.mirror.copying.producing import Producer
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.produce import ProduceResponse
from klamm.protocol.primitives import ZERO_UUID
from klamm.protocol.records import Record, encode_batch
from klamm.wire.buffers import BufferPool
from tests.support.copiers import copy_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from klamm.wire.cluster import Cluster

LEADER = 3
KIB = 1024
POOL = BufferPool(max_free_bytes=0)


class Connection:
    """Takes requests and answers them when it is told to."""

    closed = False

    def __init__(self) -> None:
        self.answers: list[Callable[[ProduceResponse, object], None]] = []

    def version_of(self, _: object, **__: int) -> int:
        return 9

    def submit(self, _: object, __: int, ___: object, ____: object, on_response: Any) -> None:
        self.answers.append(on_response)

    def write(self) -> None:
        pass

    def oldest_wait_s(self, _: float) -> float:
        return 0.0


class Target:
    """Stands for ``Cluster``: one node leads everything."""

    def __init__(self) -> None:
        self.lanes: dict[int, Connection] = {}

    def leader(self, _: str, __: int) -> int:
        return LEADER

    def topic_id(self, _: str) -> UUID:
        return ZERO_UUID

    def init_producer_id(self) -> tuple[int, int]:
        return 7, 0

    def refresh(self, _: Iterable[str]) -> None:
        pass

    def connection(self, node_id: int, lane: int) -> Connection:
        assert node_id == LEADER
        return self.lanes.setdefault(lane, Connection())

    @property
    def requests(self) -> dict[int, int]:
        """How many requests wait for an answer, by lane."""
        return {lane: len(connection.answers) for lane, connection in self.lanes.items() if connection.answers}

    def answer_all(self, *partitions: int) -> None:
        """Say of each of some partitions that its batch was taken."""
        answer = ProduceResponse.PartitionProduceResponse
        topic = ProduceResponse.TopicProduceResponse(
            name="A.t",
            partition_responses=[answer(index=at, error_code=int(ErrorCode.NONE), base_offset=0) for at in partitions],
        )
        for connection in self.lanes.values():
            waiting, connection.answers = connection.answers, []
            for on_response in waiting:
                on_response(ProduceResponse(responses=[topic]), None)


class Sending:
    """A producer and two partitions."""

    def __init__(self) -> None:
        self.target = Target()
        self.copies = {
            ("t", at): PartitionCopy(PartitionId("t", at, "A.t"), start_offset=0, committed=True) for at in range(2)
        }
        active: dict[tuple[str, int], PartitionCopy] = {}
        self.active = active
        self.producer = Producer(
            copy_settings("h:1", "h:2", alias="A"),
            cast("Cluster", self.target),
            self.copies,
            active,
            time.monotonic,
            on_acknowledged=lambda *_: None,
        )

    def queue(self, *partitions: int, size: int) -> None:
        for at in partitions:
            copy = self.copies["t", at]
            data = encode_batch([Record(None, bytes(size), timestamp=1, offset=copy.fetch_offset)])
            memory = POOL.take(len(data))
            memory.data[: len(data)] = data
            copy.take(memoryview(memory.data)[: len(data)], memory, None)
            self.active["t", at] = copy

    def send(self) -> dict[int, int]:
        self.producer.send(time.monotonic())
        return self.target.requests


@pytest.fixture
def sending() -> Sending:
    return Sending()


def test_large_batches_of_two_partitions_go_on_two_connections(sending: Sending) -> None:
    sending.queue(0, 1, size=128 * KIB)
    assert sending.send() == {0: 1, 1: 1}


def test_small_batches_go_on_one_together(sending: Sending) -> None:
    sending.queue(0, 1, size=KIB)
    assert sending.send() == {0: 1}


def test_a_partition_changes_its_connection_only_when_nothing_is_in_flight(sending: Sending) -> None:
    """Else a batch could overtake the one before it."""
    # given
    sending.queue(1, size=128 * KIB)
    assert sending.send() == {1: 1}
    sending.target.answer_all(1)  # the target knows the producer now: several batches may be in flight
    sending.queue(1, size=128 * KIB)
    assert sending.send() == {1: 1}
    # when
    sending.copies["t", 1].batch_bytes = KIB
    sending.queue(1, size=KIB)
    # then
    assert sending.send() == {1: 2}
    sending.target.answer_all(1)
    sending.queue(1, size=KIB)
    assert sending.send() == {0: 1}


def test_what_the_last_batches_were_like_decides(sending: Sending) -> None:
    """A small one among large ones, as at the end of what a fetch brought, stays where they are."""
    for _ in range(3):
        for size in (128 * KIB, 128 * KIB, KIB):
            sending.queue(1, size=size)
            assert sending.send() == {1: 1}
            sending.target.answer_all(1)
