"""Repetition of requests to a coordinator: one row per error code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.kafka_client.data.batches import ProducerStamp
from klamm.kafka_client.data.transactions import CommittedOffset, CoordinatorCalls, TransactionOffsets
from klamm.kafka_client.errors import ConnectionLostError, DeniedError, TransactionLostError
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.txn_offset_commit import TxnOffsetCommitResponse
from klamm.protocol.types import CoordinatorType

if TYPE_CHECKING:
    from klamm.kafka_client.data.cluster import Cluster

OK = ErrorCode.NONE


class Coordinators:
    """A cluster whose coordinator moves to the next node with each lookup, and answers with the given codes."""

    def __init__(self, *answers: list[int] | Exception) -> None:
        self.lookups = 0
        self.asked: list[int] = []
        self._answers = list(answers)

    def calls(self, patience_s: float = 5.0, kind: CoordinatorType = CoordinatorType.TRANSACTION) -> CoordinatorCalls:
        cluster = SimpleNamespace(coordinator=self._coordinator, connection=lambda node: node)
        return CoordinatorCalls(cast("Cluster", cluster), "key", kind, patience_s=patience_s)

    def _coordinator(self, key: str, kind: CoordinatorType) -> int:
        assert key == "key"
        self.lookups += 1
        return self.lookups

    def ask(self, node: Any) -> list[int]:
        self.asked.append(node)
        answer = self._answers.pop(0) if self._answers else [int(OK)]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("code", "nodes"),
    [
        (ErrorCode.NOT_COORDINATOR, [1, 2]),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, [1, 2]),
        (ErrorCode.CONCURRENT_TRANSACTIONS, [1, 1]),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [1, 1]),
        (ErrorCode.UNSTABLE_OFFSET_COMMIT, [1, 1]),
        (ErrorCode.REQUEST_TIMED_OUT, [1, 1]),
    ],
)
def test_retriable_codes_are_retried_on_the_same_or_next_coordinator(code: ErrorCode, nodes: list[int]) -> None:
    coordinators = Coordinators([code, OK])
    coordinators.calls().until_answered(coordinators.ask, "EndTxn")
    assert coordinators.asked == nodes


@pytest.mark.parametrize(
    ("codes", "error"),
    [
        ([ErrorCode.INVALID_PRODUCER_EPOCH], TransactionLostError),
        ([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION], TransactionLostError),
        ([ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.NOT_COORDINATOR], TransactionLostError),
        ([ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED], DeniedError),
        ([ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.INVALID_PRODUCER_EPOCH], DeniedError),
    ],
)
def test_fatal_codes_end_the_call(codes: list[int], error: type[Exception]) -> None:
    coordinators = Coordinators(codes)
    with pytest.raises(error, match=ErrorCode(codes[0]).name):
        coordinators.calls().until_answered(coordinators.ask, "EndTxn")
    assert coordinators.asked == [1]


def test_lost_connection_makes_the_next_call_look_up_the_coordinator() -> None:
    coordinators = Coordinators(ConnectionLostError("gone"))
    calls = coordinators.calls()
    with pytest.raises(ConnectionLostError, match="gone"):
        calls.until_answered(coordinators.ask, "EndTxn")
    calls.until_answered(coordinators.ask, "EndTxn")
    assert coordinators.asked == [1, 2]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (CoordinatorType.TRANSACTION, r"EndTxn for key: CONCURRENT_TRANSACTIONS \(the markers of the previous"),
        (CoordinatorType.GROUP, "EndTxn for group key: CONCURRENT_TRANSACTIONS"),
    ],
)
def test_retries_end_at_the_time_limit(kind: CoordinatorType, message: str) -> None:
    coordinators = Coordinators([ErrorCode.CONCURRENT_TRANSACTIONS])
    with pytest.raises(ConnectionLostError, match=message):
        coordinators.calls(patience_s=0, kind=kind).until_answered(coordinators.ask, "EndTxn")


def test_offset_of_a_topic_that_the_broker_does_not_know_yet_is_committed_again() -> None:
    """Kafka's ``TxnOffsetCommitHandler`` retries, too. In other responses the code ends the transaction."""
    codes = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, OK]

    def call(*_: object, **__: object) -> TxnOffsetCommitResponse:
        partition = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(error_code=codes.pop(0))
        topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(name="orders", partitions=[partition])
        return TxnOffsetCommitResponse(topics=[topic])

    connection = SimpleNamespace(version_of=lambda *_, **__: 3, call=call)
    cluster = SimpleNamespace(coordinator=lambda *_: 1, connection=lambda _: connection)
    offsets = TransactionOffsets(cast("Cluster", cluster), "id", "group")
    offsets.commit(ProducerStamp(1, 0, is_transactional=True), ("orders", 0), CommittedOffset(5, ""))
    assert not codes
