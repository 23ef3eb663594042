"""A fetch looks up each partition once and, while it waits, only the changed ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pytest

from klamm.broker.handlers.api_001_fetch import ROUTE
from klamm.broker.requests import fetch_lookup
from klamm.broker.requests.partitions import find_topic, leader_log
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.storage.log import PartitionLog
from tests.support.data_path import DataPath
from tests.support.logs import batch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PARTITIONS: Final = 1_000
HOT: Final = 700
CAN_READ_IT_ALL: Final = 1 << 20


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any, **named: Any) -> Any:
            counts[name] += 1
            return function(*arguments, **named)

        return count

    monkeypatch.setattr(fetch_lookup, "find_topic", counted("authorized", find_topic))
    monkeypatch.setattr(fetch_lookup, "leader_log", counted("looked at", leader_log))
    monkeypatch.setattr(PartitionLog, "find", counted("found", PartitionLog.find))
    return counts


@pytest.fixture
def broker(tmp_path: Path) -> DataPath:
    broker = DataPath(tmp_path)
    broker.add_topic("wide", partitions=PARTITIONS)
    return broker


async def fetched(broker: DataPath, *appended: int, min_bytes: int) -> dict[int, bytes]:
    """Start a fetch of all partitions, append to some while it waits; return the records by partition."""
    wanted = [
        FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=CAN_READ_IT_ALL)
        for index in range(PARTITIONS)
    ]
    topic_id = broker.topics.known["wide"].topic_id
    request = FetchRequest(
        max_wait_ms=60_000,
        min_bytes=min_bytes,
        max_bytes=CAN_READ_IT_ALL,
        topics=[FetchRequest.FetchTopic(topic="wide", topic_id=topic_id, partitions=wanted)],
    )
    waiting = asyncio.create_task(broker.call(ROUTE, request, FetchResponse, 18))
    hot = broker.log("wide", HOT)
    for _ in range(1_000):  # each pass is one turn of the event loop
        await asyncio.sleep(0)
        if hot.waiters or not appended:
            break
    for index in appended:
        broker.log("wide", index).append(batch("x"))
    response = await asyncio.wait_for(waiting, 20)
    await broker.logs.close()
    assert response is not None
    (topic,) = response.responses
    assert topic.topic_id == topic_id != UUID(int=0)
    return {entry.partition_index: bytes(entry.records) for entry in topic.partitions if entry.records}


def test_waiting_fetch_checks_only_the_changed_partition_again(broker: DataPath, counts: Counter[str]) -> None:
    assert list(asyncio.run(fetched(broker, HOT, min_bytes=1))) == [HOT]
    assert counts == {"authorized": 2, "looked at": PARTITIONS + 1, "found": 1}


def test_fetched_partitions_are_looked_up_again_after_the_wait(broker: DataPath, counts: Counter[str]) -> None:
    """Its range has grown, or compaction has replaced its file."""
    size = len(batch("x"))
    for index in (1, HOT):
        broker.log("wide", index).append(batch("x"))
    records = asyncio.run(fetched(broker, HOT, min_bytes=3 * size))
    assert {index: len(chunk) for index, chunk in records.items()} == {1: size, HOT: 2 * size}
    assert counts == {"authorized": 2, "looked at": PARTITIONS + 2, "found": 4}


def test_fetch_with_enough_data_checks_each_partition_once(broker: DataPath, counts: Counter[str]) -> None:
    broker.log("wide", HOT).append(batch("x"))
    assert list(asyncio.run(fetched(broker, min_bytes=1))) == [HOT]
    assert counts == {"authorized": 1, "looked at": PARTITIONS, "found": 1}
