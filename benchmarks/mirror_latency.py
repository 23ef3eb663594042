"""How long a record takes from its producer to a consumer of the target, at 1,000 records a second, Kafka to Kafka."""

from __future__ import annotations

import functools
import statistics
import threading
import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.measure import Measurement, Plan, alternate, cpu_seconds, percentile, wait_for
from benchmarks.mirror_sides import (
    EXACTLY_ONCE,
    PARTITIONS,
    REMOTE,
    TOPIC,
    MirrorSide,
    holds_records,
    start_klamm,
    start_mirrormaker,
)
from benchmarks.sides import apache_kafka
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PER_SECOND: Final = 1_000
_RECORD_BYTES: Final = 512
_STAMP_BYTES: Final = 8
_WARM_UP_S: Final = 15.0
_START_TIMEOUT_S: Final = 120.0
_LAST_RECORDS_S: Final = 30.0
_SIDES: Final = {
    "klamm": MirrorSide(start=start_klamm),
    "MirrorMaker 2": MirrorSide(start=start_mirrormaker),
    "klamm, exactly once": MirrorSide(start=start_klamm, more=EXACTLY_ONCE),
    "MirrorMaker 2, exactly once": MirrorSide(start=start_mirrormaker, more=EXACTLY_ONCE),
}


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure both as shipped, at least once and exactly once; each round has fresh clusters."""
    seconds = 15.0 if plan.quick else 60.0
    sides = {name: functools.partial(_follow, side, seconds) for name, side in _SIDES.items()}
    yield from alternate(sides, benchmark="mirror, 1,000 records/s", plan=plan, rounds=plan.rounds(3))


def _follow(side: MirrorSide, seconds: float) -> Mapping[str, float]:
    with apache_kafka() as source, apache_kafka() as target:
        with WireClient(source.bootstrap_servers) as client:
            client.create_topic(TOPIC, partitions=PARTITIONS)
        with side.running(source, target) as mirror, _Load(source.bootstrap_servers) as load:
            with WireClient(target.bootstrap_servers) as client:
                wait_for(lambda: holds_records(client), timeout_s=_START_TIMEOUT_S, what="the first record")
            with _Arrivals(target.bootstrap_servers) as arrivals:
                time.sleep(_WARM_UP_S)
                since_ns, spent = time.monotonic_ns(), cpu_seconds([mirror.pid])
                time.sleep(seconds)
                until_ns, spent = time.monotonic_ns(), cpu_seconds([mirror.pid]) - spent
                wait_for(
                    lambda: arrivals.count_from(since_ns, until_ns) >= load.count_from(since_ns, until_ns),
                    timeout_s=_LAST_RECORDS_S, what="what was produced last", interval_s=0.1,
                )  # fmt: skip
    found = arrivals.milliseconds(since_ns, until_ns)
    return {
        "p50 ms": statistics.median(found),
        "p99 ms": percentile(found, 0.99),
        "p99.9 ms": percentile(found, 0.999),
        "most ms": max(found),
        "CPU % of a core": 100 * spent / seconds,
    }


class _Load:
    """Produces records that hold the time at which they are due, so that a producer that is late counts too."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._due: list[int] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="load", daemon=True)

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._address, "linger.ms": 0, "acks": "all"})
        padding, due_ns = bytes(_RECORD_BYTES - _STAMP_BYTES), time.monotonic_ns()
        while not self._done.is_set():
            producer.poll(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            while due_ns > time.monotonic_ns():
                time.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            value = due_ns.to_bytes(_STAMP_BYTES, "big") + padding
            producer.produce(TOPIC, value=value, partition=len(self._due) % PARTITIONS)
            self._due.append(due_ns)
            due_ns += 1_000_000_000 // _PER_SECOND
        producer.flush(10)

    def count_from(self, since_ns: int, until_ns: int) -> int:
        """Return how many records were due in a span of time."""
        return sum(since_ns <= due_ns < until_ns for due_ns in self._due)

    def __enter__(self) -> _Load:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._done.set()
        self._thread.join()


class _Arrivals:
    """Reads the remote topic as records come and notes when each of them did."""

    def __init__(self, address: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "arrivals",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
                "auto.offset.reset": "earliest",
            }
        )
        self._seen: dict[int, int] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read, name="arrivals", daemon=True)

    def _read(self) -> None:
        self._consumer.assign([TopicPartition(REMOTE, partition, 0) for partition in range(PARTITIONS)])
        while not self._done.is_set():
            for message in self._consumer.consume(num_messages=500, timeout=0.001):
                value = message.value()
                if message.error() is None and value is not None:
                    self._seen.setdefault(int.from_bytes(value[:_STAMP_BYTES], "big"), time.monotonic_ns())
        self._consumer.close()

    def count_from(self, since_ns: int, until_ns: int) -> int:
        """Return how many records that were due in a span of time have come."""
        return sum(since_ns <= due_ns < until_ns for due_ns in list(self._seen))

    def milliseconds(self, since_ns: int, until_ns: int) -> list[float]:
        """Return how long the records took that were due in a span of time."""
        return [(at - due_ns) / 1e6 for due_ns, at in self._seen.items() if since_ns <= due_ns < until_ns]

    def __enter__(self) -> _Arrivals:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._done.set()
        self._thread.join()
