"""What equal offsets cost besides plain copying: a purged beginning, a long gap, and the start of many partitions."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import Producer

from benchmarks.measure import Measurement, Plan, alternate, cpu_seconds, wait_for
from benchmarks.mirror_sides import EQUAL_OFFSETS, REMOTE, TOPIC, MirrorSide, start_klamm
from benchmarks.sides import apache_kafka
from klamm.mirror.replay.runs import FILLERS_PER_BATCH
from klamm.protocol.records import Codec, Record, encode_batch
from tests.support.mirror import create_topic, delete_records
from tests.support.wire import RejectedError, WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.support.kafka import KafkaCluster

_FOREVER: Final = {"retention.ms": "-1"}
_TIMEOUT_S: Final = 600.0
_TIMESTAMP: Final = 1_700_000_000_000
_SIDES: Final = {
    "klamm": MirrorSide(start=start_klamm, more=EQUAL_OFFSETS),
    "klamm, offset translation": MirrorSide(start=start_klamm),
}


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure each of them. Only the start of many partitions has a side without equal offsets."""
    purged = {10_000_000: 1} if plan.quick else {100_000_000: 3, 1_000_000_000: 1}
    gap = 100_000 if plan.quick else 1_000_000
    partitions = 500 if plan.quick else 2_000
    for count, rounds in purged.items():
        with apache_kafka() as source:
            write_purged(source.bootstrap_servers, count)
            side = functools.partial(_fill, source, _SIDES["klamm"], count)
            yield from alternate(
                {"klamm": side}, benchmark=f"mirror, purged beginning of {count:,}", plan=plan, rounds=rounds
            )
    with apache_kafka() as source:
        write_gap(source.bootstrap_servers, gap)
        side = functools.partial(_fill, source, _SIDES["klamm"], gap)
        yield from alternate({"klamm": side}, benchmark=f"mirror, gap of {gap:,}", plan=plan, rounds=plan.rounds(3))
    with apache_kafka() as source:
        write_partitions(source.bootstrap_servers, partitions)
        sides: dict[str, Callable[[], Mapping[str, float]]] = {
            name: functools.partial(_start, source, side, partitions) for name, side in _SIDES.items()
        }
        yield from alternate(
            sides, benchmark=f"mirror, start of {partitions:,} partitions", plan=plan, rounds=plan.rounds(3)
        )


def write_purged(address: str, count: int) -> None:
    """Write a topic whose first records are deleted, and one record behind them."""
    create_topic(address, TOPIC, 1, _FOREVER)
    with WireClient(address) as client:
        batch = encode_batch(
            [Record(key=None, value=None, timestamp=_TIMESTAMP, offset=at) for at in range(FILLERS_PER_BATCH)],
            codec=Codec.ZSTD,
        )
        for _ in range(count // FILLERS_PER_BATCH):
            client.produce(TOPIC, 0, batch)
        delete_records(address, TOPIC, 0, before=count)
        client.produce(TOPIC, 0, _one_record())


def write_gap(address: str, count: int) -> None:
    """Write a topic with a committed record, an aborted transaction of many records, and another committed record."""
    create_topic(address, TOPIC, 1, _FOREVER)
    with WireClient(address) as client:
        client.produce(TOPIC, 0, _one_record())
    producer = Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": "writer",
            "transaction.timeout.ms": 600_000,
            "compression.type": "zstd",
            "queue.buffering.max.messages": 2 * count,
            "batch.num.messages": 100_000,
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    for _ in range(count):
        producer.produce(TOPIC, b"", partition=0)
    producer.flush(120)
    producer.abort_transaction(60)
    with WireClient(address) as client:
        client.produce(TOPIC, 0, _one_record())


def write_partitions(address: str, partitions: int) -> None:
    """Write a record to each partition of a topic."""
    create_topic(address, TOPIC, partitions, _FOREVER)
    with WireClient(address) as client:
        for partition in range(partitions):
            client.produce(TOPIC, partition, _one_record())


def _one_record() -> bytearray:
    return encode_batch([Record(key=None, value=b"v", timestamp=_TIMESTAMP, offset=0)])


def _fill(source: KafkaCluster, side: MirrorSide, count: int) -> Mapping[str, float]:
    """Measure the time until the record behind the gap is on the target, from the first offset that was filled."""
    with (
        apache_kafka() as target,
        side.running(source, target) as mirror,
        WireClient(target.bootstrap_servers) as client,
    ):
        pids, own = target.pids, (mirror.pid,)
        wait_for(lambda: _end(client, 0) > 1, timeout_s=_TIMEOUT_S, what="the first filled offset")
        began, first = time.monotonic(), _end(client, 0)
        before = cpu_seconds(own), cpu_seconds(pids)
        wait_for(lambda: _end(client, 0) > count, timeout_s=_TIMEOUT_S, what="the record behind the gap")
        seconds = time.monotonic() - began
        filled = _end(client, 0) - first
        return {
            "offsets/s": filled / seconds,
            "CPU s": cpu_seconds(own) - before[0],
            "CPU s of the target": cpu_seconds(pids) - before[1],
            "s": seconds,
        }


def _start(source: KafkaCluster, side: MirrorSide, partitions: int) -> Mapping[str, float]:
    """Measure the time from the start of the mirror until each partition has its record."""
    with apache_kafka() as target:
        create_topic(target.bootstrap_servers, REMOTE, partitions, _FOREVER)
        began = time.monotonic()
        with side.running(source, target) as mirror, WireClient(target.bootstrap_servers) as client:
            wait_for(
                lambda: all(_end(client, partition) for partition in range(partitions)),
                timeout_s=_TIMEOUT_S,
                what="a record in each partition",
            )
            return {"s": time.monotonic() - began, "CPU s": cpu_seconds((mirror.pid,))}


def _end(client: WireClient, partition: int) -> int:
    try:
        return client.end_offset(REMOTE, partition)
    except RejectedError:
        return 0  # the remote topic is not there yet
