"""OffsetForLeaderEpoch from bytes to bytes."""

from __future__ import annotations

import pytest

from klamm.broker.handlers.api_023_offset_for_leader_epoch import ROUTE
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from tests.support.data_path import ELSEWHERE, HERE, DataPath, opened
from tests.support.logs import batch

broker = pytest.fixture(opened)


def ask(
    broker: DataPath,
    epoch: int,
    *,
    version: int = 4,
    topic: str = "t",
    partition: int = 0,
    current: int = -1,
    node_id: int = HERE,
) -> tuple[int, int, int]:
    """Error code, epoch and end offset."""
    wanted = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
        partition=partition, current_leader_epoch=current, leader_epoch=epoch
    )
    request = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[wanted])]
    )
    response = broker.ask(ROUTE, request, OffsetForLeaderEpochResponse, version, node_id=node_id)
    item = response.topics[0].partitions[0]
    return item.error_code, item.leader_epoch, item.end_offset


@pytest.mark.parametrize("version", range(2, 5))
def test_current_epoch_ends_at_log_end(broker: DataPath, version: int) -> None:
    assert ask(broker, 0, version=version) == (0, 0, 0)
    broker.log().append(batch("a", "b"))
    assert ask(broker, 0, version=version) == (0, 0, 2)


def test_earlier_epoch_ends_where_the_next_starts(broker: DataPath) -> None:
    log = broker.log()
    for epoch in (0, 3, 5):
        log.leader_epoch = epoch
        log.append(batch("a", "b"))

    assert [ask(broker, epoch) for epoch in (0, 1, 2, 3, 4, 5)] == [
        (0, 0, 2),
        (0, 0, 2),
        (0, 0, 2),
        (0, 3, 4),
        (0, 3, 4),
        (0, 5, 6),
    ]


def test_epoch_without_records_ends_at_the_log_end(broker: DataPath) -> None:
    """A consumer may know it from ListOffsets or Metadata. An undefined answer would make it reset its offset."""
    broker.start_epoch(3)
    assert ask(broker, 1) == (0, 1, 0)
    broker.log().append(batch("a", "b"))
    broker.start_epoch(6)

    assert [ask(broker, epoch) for epoch in (3, 4, 5, 6)] == [(0, 3, 2), (0, 3, 2), (0, 3, 2), (0, 6, 2)]


@pytest.mark.parametrize("epoch", [-1, 7])
def test_unknown_epoch_has_no_end_offset(broker: DataPath, epoch: int) -> None:
    broker.log().append(batch("a"))

    assert ask(broker, epoch) == (0, -1, -1)


def test_invalid_epoch_requests_are_rejected(broker: DataPath) -> None:
    broker.log().leader_epoch = 2

    assert ask(broker, 0, topic="other") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert ask(broker, 0, partition=9) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert ask(broker, 0, node_id=ELSEWHERE) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
    assert ask(broker, 0, current=1) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)
    assert ask(broker, 0, current=3) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
