"""Two processes run the same flows. The active one is killed under load, and the other one takes over.

In ``make soak`` processes are suspended, too. ``tests/interop/test_mirror_exactly_once.py`` has a shorter form of that:
a copier that continues after its successor has begun is fenced.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Final

import psutil  # type: ignore[import-untyped]
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.support.kafka import KafkaCluster
from tests.support.klamm import KlammBroker
from tests.support.mirror import MirrorProcess, create_topic
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)

SOAK: Final = "KLAMM_SOAK" in os.environ
"""Whether to try all ways to lose a process, on Apache Kafka too: a minute more for each target."""
MAX_TAKEOVER_S: Final = 20.0
"""Twice the time on a machine without other work."""
EXACT, LEAST = "standby-exact", "standby-least"
REMOTE: Final = (f"A.{EXACT}", f"A.{LEAST}")


class Numbers:
    """Producer of consecutive numbers to both topics until the context ends."""

    def __init__(self, address: str) -> None:
        self.count = 0
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 2, "enable.idempotence": True})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Numbers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        assert self._producer.flush(30) == 0

    def _run(self) -> None:
        while not self._ended.wait(0.005):
            for topic in (EXACT, LEAST):
                self._producer.produce(topic, value=b"%d" % self.count)
            self._producer.poll(0)
            self.count += 1


class Reader:
    """Consumer of the committed numbers in both remote topics until the context ends."""

    def __init__(self, address: str) -> None:
        self.numbers: dict[str, list[int]] = {topic: [] for topic in REMOTE}
        config = {"bootstrap.servers": address, "group.id": "reader", "enable.auto.commit": False}
        self._consumer = Consumer({**config, "isolation.level": "read_committed", "fetch.wait.max.ms": 50})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in REMOTE])
        while not self._ended.is_set():
            for message in self._consumer.consume(1000, 0.1):
                if message.error() is None:
                    self.numbers[message.topic() or ""].append(int(message.value() or b""))
        self._consumer.close()

    @property
    def doubled(self) -> int:
        """Number of records that were written more than once, at least once."""
        numbers = self.numbers[REMOTE[1]]
        return len(numbers) - len(set(numbers))

    def wait_for(self, number: int) -> None:
        """Wait until both topics contain a number."""

        def arrived() -> bool:
            return all(numbers and max(numbers) >= number for numbers in list(self.numbers.values()))

        wait_until(arrived, timeout_s=60, what=f"number {number}", interval_s=0.05)


class Rig:
    """Mirrors of the same flows, with the numbers that they copy."""

    def __init__(self, source: str, target: str, directory: Path, numbers: Numbers, reader: Reader) -> None:
        self._properties = f"""
clusters = A, B, C
A.bootstrap.servers = {source}
B.bootstrap.servers = {target}
C.bootstrap.servers = {target}
A->B.enabled = true
A->B.topics = {EXACT}
A->B.klamm.exactly.once = true
A->C.enabled = true
A->C.topics = {LEAST}
replication.factor = 1
offset.storage.replication.factor = 1
offset-syncs.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
checkpoints.topic.replication.factor = 1
klamm.metrics.listen = 127.0.0.1:0
spark.master = local[2,4]
"""
        self._directory = directory
        self._numbers = numbers
        self._reader = reader
        self._count = 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> MirrorProcess:
        """Start one more process of the flows."""
        self._count += 1
        directory = self._directory / str(self._count)
        directory.mkdir()
        return self._stack.enter_context(MirrorProcess(self._properties, directory))

    def start_standby(self) -> MirrorProcess:
        """Start a process, and wait until it stands by for both flows and its Spark has started."""
        mirror = self.start()
        for flow in ("A->B", "A->C"):
            mirror.wait_for(f"{flow} STANDBY")
        mirror.wait_for("Spark has started and waits for a flow to take over")
        self.wait_for_steady_copying()
        return mirror

    def wait_for_steady_copying(self) -> None:
        """Wait until what was not copied during a takeover is copied, and its source offsets are written."""
        self._reader.wait_for(self._numbers.count + 400)

    def measure_takeover(self, successor: MirrorProcess, since: float, *, how: str, times: int = 1) -> None:
        """Expect that a process takes over both flows in time, for the n-th time."""
        for flow in ("A->B", "A->C"):
            text = f"{flow}: this process mirrors it now"
            wait_until(
                lambda text=text: successor.text().count(text) == times,  # type: ignore[misc]
                timeout_s=60,
                what=text,
                interval_s=0.05,
            )
        claimed_s = time.monotonic() - since
        doubled = self._reader.doubled
        self._reader.wait_for(self._numbers.count)
        took_s = time.monotonic() - since
        logger.info(
            "%s: claimed after %.1f s, copied after %.1f s; at least once: %d twice",
            how, claimed_s, took_s, self._reader.doubled - doubled,
        )  # fmt: skip
        assert took_s < MAX_TAKEOVER_S


def family(mirror: MirrorProcess) -> list[psutil.Process]:
    """Return a mirror's process and all its descendants."""
    driver = psutil.Process(mirror.process.pid)
    return [driver, *driver.children(recursive=True)]


def health(mirror: MirrorProcess) -> str:
    """Return the answer to a probe."""
    address = re.search(r"Status on (http://\S+/)", mirror.text())
    assert address is not None
    try:
        with urllib.request.urlopen(f"{address[1]}health", timeout=20) as answer:  # noqa: S310 - of this machine
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:  # 503, for example while a resumed process notices what it has missed
        return str(error.read().decode())


@pytest.fixture(params=["klamm", "kafka"] if SOAK else ["klamm"])
def target(request: pytest.FixtureRequest) -> Iterator[KafkaCluster | KlammBroker]:
    with KafkaCluster() if request.param == "kafka" else KlammBroker() as cluster:
        yield cluster


@pytest.fixture
def rig(target: KafkaCluster | KlammBroker, tmp_path: Path) -> Iterator[Rig]:
    with KlammBroker() as source:
        addresses = source.bootstrap_servers, target.bootstrap_servers
        for topic in (EXACT, LEAST):
            create_topic(source.bootstrap_servers, topic)
        with (
            Reader(target.bootstrap_servers) as reader,
            Numbers(source.bootstrap_servers) as numbers,
            Rig(*addresses, tmp_path, numbers, reader) as made,
        ):
            yield made
            count = numbers.count
            reader.wait_for(count - 1)
        exact, least = (reader.numbers[topic] for topic in REMOTE)
        wanted = list(range(numbers.count))
        assert exact == wanted[: len(exact)], "0 lost, 0 twice, in order"
        assert len(exact) >= count
        assert list(dict.fromkeys(least)) == wanted[: len(set(least))], "0 lost"
        logger.info("%d records; at least once: %d twice", len(exact), reader.doubled)


def test_standby_takes_over_from_killed_and_suspended_processes(rig: Rig) -> None:
    # given
    first = rig.start()
    first.wait_for("A->B RUNNING")
    second = rig.start_standby()
    assert health(first) == "OK\n"
    assert re.match(r"OK, but A->B STANDBY: \S+, process \d+ mirrors this flow; A->C STANDBY: ", health(second))

    # when: the active process is killed
    since = time.monotonic()
    first.kill()
    rig.measure_takeover(second, since, how="kill -9")
    if not SOAK:
        return

    # when: its driver is suspended, while its tasks run on; then it is resumed
    third = rig.start_standby()
    since = time.monotonic()
    second.process.send_signal(signal.SIGSTOP)
    rig.measure_takeover(third, since, how="SIGSTOP of the driver")
    second.process.send_signal(signal.SIGCONT)
    wait_until(lambda: health(second).count("STANDBY") == 2, timeout_s=60, what="the resumed process to stand by")
    rig.wait_for_steady_copying()

    # when: all processes of the active mirror are suspended, then resumed
    processes = family(third)
    since = time.monotonic()
    for process in processes:
        process.suspend()
    rig.measure_takeover(second, since, how="SIGSTOP of all processes", times=2)
    for process in processes:
        process.resume()
    wait_until(lambda: health(third).count("STANDBY") == 2, timeout_s=60, what="the resumed process to stand by")
    rig.wait_for_steady_copying()

    # when: the active process ends in order
    since = time.monotonic()
    assert second.stop() == 0
    rig.measure_takeover(third, since, how="SIGTERM", times=2)
