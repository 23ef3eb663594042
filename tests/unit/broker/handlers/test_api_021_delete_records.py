"""DeleteRecords from bytes to bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.broker.handlers.api_021_delete_records import ROUTE
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from tests.support.data_path import ELSEWHERE, HERE, DataPath, opened
from tests.support.logs import batch, read_all

if TYPE_CHECKING:
    from pathlib import Path

broker = pytest.fixture(opened)


def delete(
    broker: DataPath, offset: int, *, version: int = 2, topic: str = "t", partition: int = 0, node_id: int = HERE
) -> tuple[int, int]:
    """Error code and low watermark."""
    wanted = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[wanted])])
    response = broker.ask(ROUTE, request, DeleteRecordsResponse, version, node_id=node_id)
    item = response.topics[0].partitions[0]
    return item.error_code, item.low_watermark


@pytest.mark.parametrize("version", range(3))
def test_records_below_the_offset_are_deleted(broker: DataPath, version: int) -> None:
    for _ in range(4):
        broker.log().append(batch("x"))

    assert delete(broker, 2, version=version) == (0, 2)
    assert [record.offset for record in read_all(broker.log())] == [2, 3]


def test_log_start_offset_is_durable_before_the_response(broker: DataPath, tmp_path: Path) -> None:
    broker.log().append(batch("x", "y"))

    delete(broker, 1)

    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\nt 0 1\n"


def test_all_records_are_deleted_and_produce_continues(broker: DataPath) -> None:
    for _ in range(3):
        broker.log().append(batch("x"))

    assert delete(broker, -1) == (0, 3)
    assert read_all(broker.log()) == []
    assert broker.log().append(batch("y")).base_offset == 3


def test_offset_below_log_start_changes_nothing(broker: DataPath) -> None:
    broker.log().append(batch("x", "y"))
    delete(broker, 2)

    assert delete(broker, 1) == (0, 2)


def test_whole_segments_are_deleted_at_once(broker: DataPath, tmp_path: Path) -> None:
    broker.configs["segment.bytes"] = "300"
    for _ in range(12):
        broker.log().append(batch("x"))
    names = sorted(path.name for path in (tmp_path / "t-0").glob("*.log"))

    delete(broker, 10)

    kept = sorted(path.name for path in (tmp_path / "t-0").glob("*.log"))
    assert kept == [name for name in names if int(name[:20]) + 4 > 10]


@pytest.mark.parametrize("offset", [-2, 3])
def test_offset_above_high_watermark_is_rejected(broker: DataPath, offset: int) -> None:
    broker.log().append(batch("x", "y"))

    assert delete(broker, offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


def test_delete_records_without_right_or_leader_is_rejected(broker: DataPath) -> None:
    broker.add_topic("__internal", is_internal=True)

    assert delete(broker, 0, topic="other") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete(broker, 0, partition=7) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete(broker, 0, node_id=ELSEWHERE) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert delete(broker, 0, topic="__internal") == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


def test_records_of_topic_without_cleanup_policy_are_deleted(broker: DataPath) -> None:
    broker.configs["cleanup.policy"] = ""
    for _ in range(3):
        broker.log().append(batch("x"))

    assert delete(broker, 2) == (ErrorCode.NONE, 2)


def test_compacted_topic_keeps_its_records(broker: DataPath) -> None:
    broker.configs["cleanup.policy"] = "compact"

    assert delete(broker, 0) == (ErrorCode.POLICY_VIOLATION, -1)
