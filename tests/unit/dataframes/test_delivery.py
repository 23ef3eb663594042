"""Delivery of batches over connections in memory: batches in flight, and retries after a failure."""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.dataframes.delivery import BatchDelivery, SequencedBatch
from klamm.dataframes.errors import WritingError
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.produce import ProduceResponse
from klamm.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from klamm.dataframes.batches import RowBatch
    from klamm.kafka_client.data.cluster import Cluster

LOST = object()


@dataclass(frozen=True)
class Rows:
    """Stands for a ``RowBatch``."""

    topic: str
    partition: int


def batch(number: int, partition: int = 0) -> SequencedBatch:
    return SequencedBatch(number, cast("RowBatch", Rows("t", partition)), number, bytearray(b"%d" % number))


@dataclass(eq=False)
class Node:
    """A connection to one broker, which answers one request each time it is polled."""

    script: deque[dict[int, int] | object] = field(default_factory=deque)
    """Error codes by partition of each response, or LOST. All is well when it is empty."""
    sent: list[list[bytes]] = field(default_factory=list)
    most_in_flight: int = 0
    waited_s: float = 0.0
    closed: bool = False
    wants_write: bool = False

    def __post_init__(self) -> None:
        self._answers: deque[Any] = deque()
        self._readable, self._peer = socket.socketpair()
        self._peer.send(b"there is always something to read")

    def fileno(self) -> int:
        return self._readable.fileno()

    def version_of(self, _: object, **__: int) -> int:
        return 9

    def submit(self, _: object, __: int, body: list[Any], ___: object, on_response: Any) -> None:
        self.sent.append([bytes(part) for part in body[1::2]])
        self._answers.append(on_response)
        self.most_in_flight = max(self.most_in_flight, len(self._answers))

    def write(self) -> None:
        pass

    def oldest_wait_s(self, _: float) -> float:
        return self.waited_s

    def close(self) -> None:
        self.closed = True
        self._readable.close()
        self._peer.close()

    def drive(self, _: int) -> None:
        answer = self.script.popleft() if self.script else {}
        if answer is LOST:
            raise ConnectionLostError("lost")
        on_response = self._answers.popleft()
        on_response(response(cast("dict[int, int]", answer)), None)


def response(errors: dict[int, int]) -> ProduceResponse:
    topic = ProduceResponse.TopicProduceResponse(name="t")
    for partition in range(4):
        topic.partition_responses.append(
            ProduceResponse.PartitionProduceResponse(index=partition, error_code=errors.get(partition, 0))
        )
    return ProduceResponse(responses=[topic])


@dataclass
class Target:
    """Stands for ``Cluster``. Partition n is led by the node n, modulo their number."""

    nodes: list[Node]
    leaderless: set[int] = field(default_factory=set)

    def leader(self, _: str, partition: int) -> int | None:
        return None if partition in self.leaderless else partition % len(self.nodes)

    def connection(self, node: int) -> Node:
        return self.nodes[node]

    def topic_id(self, _: str) -> UUID:
        return ZERO_UUID


@dataclass
class Rig:
    target: Target
    resent: list[int] = field(default_factory=list)
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.delivery = BatchDelivery(
            cast("Cluster", self.target),
            transactional_id=None,
            timeout_s=30.0,
            resend=lambda failed: self.resent.extend(each.number for each in failed),
            clock=lambda: self.now,
        )

    @property
    def node(self) -> Node:
        return self.target.nodes[0]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig(Target([Node()]))
    yield made
    if not made.node.closed:
        made.node.close()


def test_first_batch_of_a_partition_is_sent_alone_then_five_are_in_flight(rig: Rig) -> None:
    rig.delivery.send([batch(0)])
    assert rig.node.sent == [[b"0"]]
    rig.delivery.send([batch(at) for at in range(1, 9)])
    rig.delivery.finish()
    assert [batch for (batch,) in rig.node.sent] == [b"%d" % at for at in range(9)]
    assert (rig.node.most_in_flight, rig.resent) == (5, [])


def test_request_holds_one_batch_per_partition(rig: Rig) -> None:
    rig.delivery.send([batch(0, 0), batch(1, 1), batch(2, 0), batch(3, 1)])
    rig.delivery.finish()
    assert rig.node.sent == [[b"0", b"1"], [b"2", b"3"]]


def test_failed_batches_are_resent_in_order_after_all_responses(rig: Rig) -> None:
    rig.delivery.send([batch(0)])
    rig.node.script = deque(
        [{}, {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}, {0: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}, {}, {}]
    )
    rig.delivery.send([batch(at) for at in range(1, 8)])
    rig.delivery.finish()
    assert rig.resent == [1, 2]
    assert len(rig.node.sent) == 8


def test_duplicate_sequence_number_is_acknowledged(rig: Rig) -> None:
    rig.node.script = deque([{0: ErrorCode.DUPLICATE_SEQUENCE_NUMBER}])
    rig.delivery.send([batch(0)])
    rig.delivery.finish()
    assert rig.resent == []


@pytest.mark.parametrize(("answers", "is_answered"), [([{}, {}], True), ([{}, LOST], False)])
def test_failed_task_awaits_responses_without_retries(
    rig: Rig, answers: list[dict[int, int] | object], is_answered: bool
) -> None:
    # given
    rig.node.script = deque(answers)
    rig.delivery.send([batch(0), batch(1, 1)])
    rig.delivery.send([batch(2)])
    # when
    result = rig.delivery.is_answered()
    # then
    assert result is is_answered
    assert rig.resent == []
    assert len(rig.node.sent) == 2


def test_lost_request_may_be_appended_until_its_batches_are_sent_again(rig: Rig) -> None:
    """A transaction must not be aborted before: the late request would be appended behind the abort."""
    # given
    errors = [WritingError("rejected")]

    def resend(_: object) -> None:
        if errors:
            raise errors.pop()

    rig.delivery._resend = resend
    # when: a rejection is definite
    rig.node.script = deque([{0: int(ErrorCode.MESSAGE_TOO_LARGE)}])
    rig.delivery.send([batch(0)])
    with pytest.raises(WritingError):
        rig.delivery.finish()
    # then
    assert rig.delivery.is_answered()
    # when
    errors.append(WritingError("no answer"))
    rig.node.script = deque([LOST])
    rig.delivery.send([batch(1)])
    with pytest.raises(WritingError):
        rig.delivery.finish()
    # then
    assert not rig.delivery.is_answered()


def test_all_batches_of_a_lost_connection_are_sent_again(rig: Rig) -> None:
    rig.delivery.send([batch(0), batch(1, 1)])
    rig.node.script = deque([{}, LOST])
    rig.delivery.send([batch(2), batch(3, 1), batch(4)])
    rig.delivery.finish()
    assert rig.resent == [2, 3, 4]


def test_unresponsive_connection_is_closed_and_its_batches_resent(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "drive", lambda *_: None)
    rig.delivery.send([batch(0)])
    rig.node.waited_s = 30.0
    rig.delivery.finish()
    assert (rig.node.closed, rig.resent) == (True, [0])


def test_delivery_retries_only_batch_without_leader() -> None:
    rig = Rig(Target([Node(), Node()], leaderless={1}))
    rig.delivery.send([batch(0, 0), batch(1, 1)])
    rig.delivery.finish()
    assert (rig.target.nodes[0].sent, rig.resent) == ([[b"0"]], [1])
    for node in rig.target.nodes:
        node.close()


def test_connection_closed_by_another_request_is_lost(rig: Rig) -> None:
    rig.delivery.send([batch(0)])
    rig.node.close()
    rig.delivery.finish()
    assert rig.resent == [0]
