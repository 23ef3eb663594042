"""How long one batch takes inside the broker: appended to a log, produced and fetched through the handlers.

Run with ``python -m benchmarks.log_append``. No network, one process: what is left of a core for the kernel and the
event loop. CPU time, not the clock's, so that other processes disturb little.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from klamm.broker.handlers import api_000_produce, api_001_fetch
from klamm.protocol.codec import decode, encode
from klamm.protocol.messages.fetch import FetchRequest
from klamm.protocol.messages.produce import ProduceRequest
from klamm.protocol.records import Record, encode_batch
from tests.support.data_path import DataPath

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_BATCH_BYTES: Final = (512, 16 * 1024, 128 * 1024, 1000 * 1000)
_TOTAL_BYTES: Final = 256 * 1000 * 1000
_MAX_BATCHES: Final = 40_000
_FETCH_BYTES: Final = 1024 * 1024
_VERSION: Final = 13


def measure() -> list[tuple[int, str, float, float]]:
    """Return size of the batch, step, microseconds per batch and MB/s, of CPU time."""
    rows = []
    for size in _BATCH_BYTES:
        batch = bytes(encode_batch([Record(None, b"x" * (size - 70), (), 1_600_000_000_000)]))
        count = min(_MAX_BATCHES, _TOTAL_BYTES // size)
        with tempfile.TemporaryDirectory() as directory:
            broker = DataPath(Path(directory))
            log = broker.log()
            rows.append(_row(size, "append", count, lambda: [log.append(memoryview(batch)) for _ in range(count)]))  # noqa: B023  # called at once
        with tempfile.TemporaryDirectory() as directory:
            broker = DataPath(Path(directory))
            rows.append(_row(size, "produce", count, lambda: asyncio.run(_produce(broker, batch, count))))  # noqa: B023  # called at once
            rows.append(_row(size, "fetch", count, lambda: asyncio.run(_fetch(broker, count))))  # noqa: B023  # called at once
    return rows


def _row(size: int, step: str, count: int, run: Callable[[], object]) -> tuple[int, str, float, float]:
    before = time.process_time()
    run()
    seconds = time.process_time() - before
    return size, step, seconds / count * 1e6, size * count / seconds / 1e6


async def _produce(broker: DataPath, batch: bytes, count: int) -> None:
    topic = broker.topics.known["t"]
    data = ProduceRequest.PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        acks=-1,
        topic_data=[ProduceRequest.TopicProduceData(topic_id=topic.topic_id, partition_data=[data])],
    )
    frame = memoryview(encode(request, _VERSION))
    context = broker.context(_VERSION)
    for _ in range(count):
        response = await api_000_produce.handle(decode(ProduceRequest, _VERSION, frame), context)
        assert response is not None
        encode(response, _VERSION)


async def _fetch(broker: DataPath, end_offset: int) -> None:
    topic = broker.topics.known["t"]
    context = broker.context(_VERSION)
    log = broker.log()
    offset = 0
    while offset < end_offset:
        wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES)
        request = FetchRequest(
            max_bytes=50 * _FETCH_BYTES,
            topics=[FetchRequest.FetchTopic(topic_id=topic.topic_id, partitions=[wanted])],
        )
        asked = decode(FetchRequest, _VERSION, encode(request, _VERSION))
        body = await cast("Coroutine[Any, Any, Any]", api_001_fetch.handle(asked, context))
        read = sum(map(len, body.buffers(_VERSION)))
        offset += max(1, read // (log.size // end_offset))


def main() -> None:
    """Print a table."""
    sys.stdout.write(f"{'batch bytes':>12} {'step':>8} {'us/batch':>10} {'MB/s':>8}\n")
    for size, step, microseconds, rate in measure():
        sys.stdout.write(f"{size:>12} {step:>8} {microseconds:>10.2f} {rate:>8.0f}\n")


if __name__ == "__main__":
    main()
