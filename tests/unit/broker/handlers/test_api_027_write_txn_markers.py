"""WriteTxnMarkers: an administrator's marker is as durable as the topic's records."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

import pytest

from klamm.broker.handlers.api_027_write_txn_markers import ROUTE
from klamm.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from klamm.protocol.records import iter_batches
from tests.support.data_path import DataPath, opened
from tests.support.transactions import write

if TYPE_CHECKING:
    from pathlib import Path

broker = pytest.fixture(opened)

KAFKA_STORAGE_ERROR = 56


def abort(broker: DataPath, producer_id: int) -> int:
    request = WriteTxnMarkersRequest(
        markers=[
            WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=0,
                transaction_result=False,
                topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
                coordinator_epoch=0,
            )
        ]
    )
    answer = asyncio.run(broker.call(ROUTE, request, WriteTxnMarkersResponse, 1))
    assert answer is not None
    return answer.markers[0].topics[0].partitions[0].error_code


@pytest.mark.parametrize(("flush_messages", "is_durable"), [("1", True), (str(2**63 - 1), False)])
def test_flush_messages_of_one_makes_marker_durable(tmp_path: Path, flush_messages: str, is_durable: bool) -> None:
    broker = DataPath(tmp_path)
    broker.configs["flush.messages"] = flush_messages
    write(broker.log(), 7, "open", sequence=0)

    assert abort(broker, 7) == 0

    log = broker.log()
    assert (log.last_stable_offset, log.recovery_point) == (2, 2 if is_durable else 0)


def test_marker_that_cannot_be_synced_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    broker = DataPath(tmp_path)
    monkeypatch.setattr("klamm.storage.log.flusher.fsync_path", fail)
    broker.configs["flush.messages"] = "1"
    write(broker.log(), 7, "open", sequence=0)

    assert abort(broker, 7) == KAFKA_STORAGE_ERROR


def test_marker_has_the_timestamp_of_the_clock(tmp_path: Path) -> None:
    broker = DataPath(tmp_path)
    write(broker.log(), 7, "open", sequence=0)

    assert abort(broker, 7) == 0

    *_, marker = iter_batches(bytes(broker.log().read(0, 1 << 20)))
    assert marker.is_control
    assert marker.max_timestamp == broker.clock.now_ms
