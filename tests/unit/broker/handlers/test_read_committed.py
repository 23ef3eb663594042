"""Fetch and ListOffsets for readers of committed records, from bytes to bytes."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from klamm.broker.handlers import api_001_fetch, api_002_list_offsets
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tests.support.data_path import opened
from tests.support.logs import NOON_MS, batch, records_in
from tests.support.transactions import ABORT, COMMIT, end, write

if TYPE_CHECKING:
    from tests.support.data_path import DataPath

broker = pytest.fixture(opened)


def request(*, committed: bool = True, offset: int = 0, max_wait_ms: int = 0) -> FetchRequest:
    wanted = FetchRequest.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=-1
    )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=int(committed),
        topics=[FetchRequest.FetchTopic(topic="t", topic_id=UUID(int=100), partitions=[wanted])],
    )


def only_partition(response: FetchResponse) -> FetchResponse.PartitionData:
    ((answer,),) = (topic.partitions for topic in response.responses)
    return answer


def values(answer: FetchResponse.PartitionData) -> list[bytes | None]:
    return [record.value for record in records_in(bytes(answer.records or b"")) if record.key == b"k"]


@pytest.mark.parametrize("version", range(4, 19))
def test_read_committed_returns_aborted_transactions(broker: DataPath, version: int) -> None:
    log = broker.log()
    write(log, 7, "no", sequence=0)
    end(log, 7, ABORT)
    write(log, 8, "yes", sequence=0)
    end(log, 8, COMMIT)
    write(log, 7, "open", sequence=1)

    committed = only_partition(broker.ask(api_001_fetch.ROUTE, request(), FetchResponse, version))
    everything = only_partition(broker.ask(api_001_fetch.ROUTE, request(committed=False), FetchResponse, version))

    assert (committed.high_watermark, committed.last_stable_offset) == (5, 4)
    assert values(committed) == [b"no", b"yes"]
    aborted = committed.aborted_transactions or []
    assert [(item.producer_id, item.first_offset) for item in aborted] == [(7, 0)]
    assert values(everything) == [b"no", b"yes", b"open"]
    assert (everything.last_stable_offset, everything.aborted_transactions) == (4, [])


async def test_open_transaction_does_not_wake_read_committed_fetch(broker: DataPath) -> None:
    log = broker.log()

    waiting = asyncio.create_task(broker.call(api_001_fetch.ROUTE, request(max_wait_ms=60_000), FetchResponse, 12))
    for sequence in range(3):
        write(log, 7, "x", sequence=sequence)
        await asyncio.sleep(0.01)
    assert not waiting.done()
    ended = time.monotonic()
    end(log, 7, COMMIT)
    response, waited_s = await waiting, time.monotonic() - ended

    assert response is not None
    assert values(only_partition(response)) == [b"x", b"x", b"x"]
    assert waited_s < 30


def test_read_committed_fetch_without_new_records_ends_after_max_wait(broker: DataPath) -> None:
    write(broker.log(), 7, "x", sequence=0)

    answer = only_partition(broker.ask(api_001_fetch.ROUTE, request(max_wait_ms=50), FetchResponse, 12))

    assert (values(answer), answer.high_watermark, answer.last_stable_offset) == ([], 1, 0)


@pytest.mark.parametrize(
    ("timestamp", "offsets"),
    [(-1, (1, 3)), (-2, (0, 0)), (NOON_MS, (0, 0)), (NOON_MS + 1, (-1, 2)), (-3, (-1, 2))],
)
def test_latest_offset_is_the_last_stable_offset(broker: DataPath, timestamp: int, offsets: tuple[int, int]) -> None:
    log = broker.log()
    log.append(batch("a"))
    write(log, 7, "b", "c", sequence=0)
    ends = []
    for isolation_level in (1, 0):
        wanted = ListOffsetsRequest.ListOffsetsPartition(
            partition_index=0, current_leader_epoch=-1, timestamp=timestamp
        )
        listing = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[wanted])],
        )
        ((answer,),) = (
            topic.partitions for topic in broker.ask(api_002_list_offsets.ROUTE, listing, ListOffsetsResponse, 7).topics
        )
        ends.append(answer.offset)

    assert tuple(ends) == offsets
