"""Choice of the connection for each partition; the target only records the requests."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, cast
from unittest.mock import Mock

import pytest

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.data.batches import ProducerStamp
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.copy.partition import PartitionCopy, PartitionId
from klamm.mirror.copy.producer import CopyProducer, InFlightLimit
from klamm.mirror.progress.partition_progress import CopyState
from klamm.protocol.errors import DecompressedTooLargeError, ErrorCode
from klamm.protocol.messages.produce import ProduceResponse
from klamm.protocol.primitives import ZERO_UUID
from klamm.protocol.records import Record, encode_batch
from tests.support.copiers import copy_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from klamm.kafka_client.data.cluster import Cluster
    from klamm.mirror.copy.transactions import ShardTransactions

LEADER = 3
KIB = 1024
POOL = BufferPool(max_free_bytes=0)


class Connection:
    """Connection that records requests and answers them when the test says so."""

    closed = False
    silence_s = 0.0

    def __init__(self) -> None:
        self.answers: list[Callable[[ProduceResponse, object], None]] = []

    def version_of(self, _: object, **__: int) -> int:
        return 9

    def submit(self, _: object, __: int, ___: object, ____: object, on_response: Any) -> None:
        self.answers.append(on_response)

    def write(self) -> None:
        pass

    def silent_s(self, _: float) -> float:
        return self.silence_s

    def close(self) -> None:
        self.closed = True


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

    def answer_first(self, *partitions: int) -> None:
        """Say of the partitions of the oldest request that their batches were taken."""
        for connection in self.lanes.values():
            if connection.answers:
                connection.answers.pop(0)(_taken(partitions), None)

    def answer_all(self, *partitions: int) -> None:
        """Say of each of some partitions that its batch was taken."""
        for connection in self.lanes.values():
            waiting, connection.answers = connection.answers, []
            for on_response in waiting:
                on_response(_taken(partitions), None)

    def reject_all(self, error_code: ErrorCode, *partitions: int) -> None:
        """Reject the batches of some partitions in every request."""
        for connection in self.lanes.values():
            waiting, connection.answers = connection.answers, []
            for on_response in waiting:
                on_response(_taken(partitions, error_code), None)


def _taken(partitions: Iterable[int], error_code: ErrorCode = ErrorCode.NONE) -> ProduceResponse:
    answer = ProduceResponse.PartitionProduceResponse
    topic = ProduceResponse.TopicProduceResponse(
        name="A.t",
        partition_responses=[answer(index=at, error_code=int(error_code), base_offset=0) for at in partitions],
    )
    return ProduceResponse(responses=[topic])


class Transaction:
    """Stands for ``ShardTransactions``: one is open, and every partition was added to it."""

    transactional_id = "A-mm2-klamm-A-4-1"
    identity = ProducerStamp(7, 1, is_transactional=True)

    def __init__(self) -> None:
        self.begun: set[int] = set()

    def admits(self, _: PartitionCopy) -> bool:
        return True

    def has_begun(self, copy: PartitionCopy) -> bool:
        return copy.partition_id.partition in self.begun

    def acknowledged(self, copy: PartitionCopy, _: object, __: int) -> None:
        self.begun.add(copy.partition_id.partition)


class Sending:
    """A producer and two partitions."""

    def __init__(
        self,
        transaction: Transaction | None = None,
        *,
        request_timeout_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        limit: InFlightLimit | None = None,
    ) -> None:
        self.target = Target()
        self.copies = {
            ("t", at): PartitionCopy(PartitionId("t", at, "A.t"), start_offset=0, committed=True) for at in range(2)
        }
        active: dict[tuple[str, int], PartitionCopy] = {}
        self.active = active
        settings = copy_settings("h:1", "h:2", alias="A")
        self.producer = CopyProducer(
            replace(settings, target=replace(settings.target, request_timeout_s=request_timeout_s)),
            cast("Cluster", self.target),
            self.copies,
            active,
            clock,
            on_acknowledged=lambda *_: None,
            transactions=cast("ShardTransactions | None", transaction),
            limit=limit,
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


def test_large_batches_use_two_connections(sending: Sending) -> None:
    sending.queue(0, 1, size=128 * KIB)
    assert sending.send() == {0: 1, 1: 1}


def test_small_batches_share_one_connection(sending: Sending) -> None:
    sending.queue(0, 1, size=KIB)
    assert sending.send() == {0: 1}


def test_partition_changes_connection_without_requests_in_flight(sending: Sending) -> None:
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


@pytest.mark.parametrize(
    "error_code", [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INCONSISTENT_TOPIC_ID]
)
def test_batches_to_new_remote_topic_are_sent_one_by_one(sending: Sending, error_code: ErrorCode) -> None:
    """A new topic knows no producer and accepts any sequence: a later batch could be appended before the first one."""
    # given
    copy = sending.copies["t", 0]
    sending.queue(0, size=KIB)
    sending.send()
    sending.target.answer_all(0)
    sending.queue(0, 0, 0, size=KIB)
    assert sending.send() == {0: 3}
    # when
    sending.target.reject_all(error_code, 0)
    copy.retry_at = 0.0
    # then
    assert sending.send() == {0: 1}
    sending.target.answer_all(0)
    assert sending.send() == {0: 2}


def test_recent_batch_sizes_decide_connection(sending: Sending) -> None:
    """A small one among large ones, as at the end of what a fetch brought, stays where they are."""
    for _ in range(3):
        for size in (128 * KIB, 128 * KIB, KIB):
            sending.queue(1, size=size)
            assert sending.send() == {1: 1}
            sending.target.answer_all(1)


def test_first_batches_of_transaction_are_sent_one_by_one() -> None:
    """K894-39: a leader has one question to the coordinator on its way for a transactional id (KIP-890)."""
    # given
    transaction = Transaction()
    sending = Sending(transaction)
    for _ in range(2):
        for at in range(3):
            sending.queue(0, 1, size=128 * KIB)
            # when
            lanes = sending.send()
            # then
            assert lanes == ({0: 1} if at == 0 else {0: 1, 1: 1})
            sending.target.answer_all(0, 1)
        transaction.begun.clear()


def test_partition_changing_connection_sends_one_batch_at_a_time() -> None:
    """Else something would always be in flight, and both halves of the partitions went on one connection."""
    # given
    transaction = Transaction()
    sending = Sending(transaction)
    sending.queue(0, 1, size=128 * KIB)
    sending.send()
    sending.target.answer_all(0, 1)  # the target knows the producer now: several batches may be in flight
    transaction.begun.clear()
    for _ in range(3):
        sending.queue(0, 1, size=128 * KIB)
    # when
    assert sending.send() == {0: 3}
    # then
    assert [len(copy.in_flight) for copy in sending.copies.values()] == [3, 1]
    sending.target.answer_first(0, 1)
    sending.target.answer_first(0)
    sending.target.answer_first(0)
    assert sending.send() == {1: 2}


@pytest.mark.parametrize(
    ("error_code", "in_doubt"),
    [(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True), (ErrorCode.NOT_ENOUGH_REPLICAS, False)],
)
def test_stopped_partition_with_unknown_outcome_is_undecided(
    sending: Sending, error_code: ErrorCode, *, in_doubt: bool
) -> None:
    """K894-39: the transaction must not be committed, because the source offset of the batch is not in it."""
    # given
    copy = sending.copies["t", 0]
    sending.queue(0, size=KIB)
    sending.send()
    copy.stop("a later batch of the source is damaged")
    # when
    sending.target.reject_all(error_code, 0)
    # then
    assert copy.is_undecided is in_doubt


def test_unknown_outcome_remains_after_rejected_retry(sending: Sending) -> None:
    """The first attempt may have been appended before the topic allowed smaller batches only."""
    copy = sending.copies["t", 0]
    sending.queue(0, size=KIB)
    for error_code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.MESSAGE_TOO_LARGE):
        copy.retry_at = 0.0
        sending.send()
        sending.target.reject_all(error_code, 0)
    assert copy.state is CopyState.STOPPED
    assert copy.is_undecided


def test_too_large_batch_that_cannot_be_decoded_stops_its_partition(
    sending: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records may take more memory than a reader allows. The other partitions of the copier go on."""
    copy = sending.copies["t", 0]
    sending.queue(0, size=KIB)
    monkeypatch.setattr(PartitionCopy, "split_first", Mock(side_effect=DecompressedTooLargeError("300 MiB")))
    sending.send()
    sending.target.reject_all(ErrorCode.MESSAGE_TOO_LARGE, 0)
    assert copy.state is CopyState.STOPPED
    assert copy.reason.startswith("the batch that ends at offset 0 cannot be split (300 MiB), and is larger than the")


def test_lost_transactions_halve_the_bytes_in_flight_and_commits_raise_them_again() -> None:
    """Else a slow link would lose every transaction for the same reason."""

    # given
    def in_flight() -> int:
        sending = Sending(Transaction(), limit=limit)
        for at in (0, 1):
            for _ in range(5):
                sending.queue(at, size=512 * KIB)
        while sending.send() == {0: 1}:  # the target has to know the producers before several batches are sent
            sending.target.answer_first(0, 1)
        sending.send()
        return sum(sending.target.requests.values())

    limit = InFlightLimit()
    most = in_flight()
    sent = [most]
    # when
    for _ in range(4):
        limit.shrink()
        sent.append(in_flight())
    # then
    assert most >= 4
    assert sent[0] > sent[1] >= sent[2] >= sent[3] >= sent[4] == 2, "one batch of each connection"
    # when
    for _ in range(200):
        limit.grow()
    # then
    assert in_flight() == most


def test_answered_and_lost_requests_leave_the_bytes_in_flight() -> None:
    # given
    limit = InFlightLimit()
    limit.max_bytes = 1
    sending = Sending(Transaction(), limit=limit)
    for _ in range(3):
        sending.queue(0, size=KIB)
    sending.send()
    sending.target.answer_all(0)
    # when
    assert sending.send() == {0: 1}
    assert sending.send() == {0: 1}, "no more than one batch"
    sending.target.lanes.pop(0).close()
    sending.producer.sweep(time.monotonic())
    limit.max_bytes = 3 * KIB
    sending.copies["t", 0].retry_at = 0.0
    # then
    assert sending.send() == {0: 2}


def test_partition_waits_from_the_end_of_an_attempt_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    now = [100.0]
    sending = Sending(clock=lambda: now[0])
    sending.queue(0, size=KIB)

    def block(*_: int) -> NoReturn:
        now[0] += 15.0
        raise ConnectionLostError("h:1: timed out")

    monkeypatch.setattr(sending.target, "connection", block)
    # when
    sending.producer.send(now[0])
    # then
    copy = sending.copies["t", 0]
    assert (now[0], copy.retry_at, copy.reason) == (115.0, 115.2, "target: h:1: timed out")


@pytest.mark.parametrize("request_timeout_s", [30.0, 120.0])
def test_request_without_progress_for_the_request_timeout_is_repeated_with_reason(request_timeout_s: float) -> None:
    # given
    sending = Sending(request_timeout_s=request_timeout_s)
    sending.queue(0, size=KIB)
    sending.send()
    connection, now = sending.target.lanes[0], time.monotonic()
    # when
    connection.silence_s = request_timeout_s + 9.0
    sending.producer.sweep(now)
    # then
    assert (connection.closed, sending.producer.busy) == (False, True)
    # when
    connection.silence_s = request_timeout_s + 11.0
    sending.producer.sweep(now)
    # then
    assert (connection.closed, sending.producer.busy) == (True, False)
    assert (sending.copies["t", 0].state, sending.copies["t", 0].reason) == (
        CopyState.WAITING,
        f"no byte to or from node 3 of the target for {request_timeout_s + 10:g} s",
    )
