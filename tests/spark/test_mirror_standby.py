"""Two processes run the same flows. The active one is killed under load or loses its network, and the other one takes
over.

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

from klamm.admin import AdminClient
from klamm.protocol.messages.produce import ProduceRequest
from tests.support.frame_proxy import FrameProxy
from tests.support.kafka import KafkaCluster
from tests.support.klamm import KlammBroker
from tests.support.mirror import MirrorProcess, create_topic
from tests.support.processes import wait_until

if TYPE_CHECKING:
    import socket
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

SOAK: Final = "KLAMM_SOAK" in os.environ
"""Whether to try all ways to lose a process, on Apache Kafka too: a minute more for each target."""
EXACT, LEAST, EQUAL = "standby-exact", "standby-least", "standby-equal"
"""Topics that are mirrored exactly once, at least once, and with equal offsets."""
TOPICS: Final = (EXACT, LEAST, EQUAL)
REMOTE: Final = tuple(f"A.{topic}" for topic in TOPICS)
FLOWS: Final = ("A->B", "A->C", "A->D")
WRITES: Final = (0, 22, 24, 26, 27)
"""API keys of Produce, InitProducerId, AddPartitionsToTxn, EndTxn and WriteTxnMarkers."""


class Numbers:
    """Producer of consecutive numbers to all topics until the context ends."""

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
            for topic in TOPICS:
                self._producer.produce(topic, value=b"%d" % self.count)
            self._producer.poll(0)
            self.count += 1


class Reader:
    """Consumer of the committed numbers in all remote topics until the context ends."""

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
        """Wait until all topics contain a number."""

        def arrived() -> bool:
            return all(numbers and max(numbers) >= number for numbers in list(self.numbers.values()))

        wait_until(arrived, timeout_s=300, what=f"number {number}", interval_s=0.05)


class Rig:
    """Mirrors of the same flows, with the numbers that they copy."""

    def __init__(self, source: str, target: str, directory: Path, numbers: Numbers, reader: Reader) -> None:
        self.source, self.target = source, target
        self._properties = f"""
clusters = A, B, C, D
A->D.enabled = true
A->D.topics = {EQUAL}
A->D.klamm.offsets = preserve
A->D.heartbeats.replication.enabled = false
A->B.enabled = true
A->B.topics = {EXACT}
A->B.klamm.exactly.once = true
A->B.klamm.exactly.once.shards = 4
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

    def start(self, network: Network | None = None) -> MirrorProcess:
        """Start one more process of the flows, which reaches the clusters through its own network or directly."""
        self._count += 1
        directory = self._directory / str(self._count)
        directory.mkdir()
        source, target = (self.source, self.target) if network is None else network.addresses
        addresses = {"A": source, "B": target, "C": target, "D": target}
        lines = [f"{alias}.bootstrap.servers = {address}\n" for alias, address in addresses.items()]
        return self._stack.enter_context(MirrorProcess(self._properties + "".join(lines), directory))

    def network(self) -> Network:
        """Return a network for one process. It lasts as long as this object."""
        return self._stack.enter_context(Network(self.source, self.target))

    def start_standby(self, network: Network | None = None) -> MirrorProcess:
        """Start a process, and wait until it stands by for all flows and its Spark has started."""
        mirror = self.start(network)
        for flow in FLOWS:
            mirror.wait_for(f"{flow} STANDBY")
        mirror.wait_for("Spark has started and waits for a flow to take over")
        self.wait_for_steady_copying()
        return mirror

    def wait_for_steady_copying(self) -> None:
        """Wait until what was not copied during a takeover is copied, and its source offsets are written."""
        self._reader.wait_for(self._numbers.count + 400)

    def measure_takeover(self, successor: MirrorProcess, since: float, *, how: str, times: int = 1) -> None:
        """Wait until a process takes over all flows, for the n-th time, and log how long that takes."""
        for flow in FLOWS:
            text = f"{flow}: this process mirrors it now"
            wait_until(
                lambda text=text: successor.text().count(text) == times,  # type: ignore[misc]
                timeout_s=300,
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


class Cable(FrameProxy):
    """Proxy to a broker that can keep requests and responses back. No connection ends by that."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._passing = threading.Lock()
        self._kept: list[tuple[socket.socket, bytes]] | None = None

    def _send(self, receiver: socket.socket, data: bytes) -> None:
        with self._passing:
            if self._kept is None:
                super()._send(receiver, data)
            else:
                self._kept.append((receiver, data))

    def cut(self) -> None:
        """Keep back everything from now on."""
        with self._passing:
            self._kept = []

    def restore(self) -> None:
        """Deliver what was kept back, and keep nothing back from now on."""
        with self._passing:
            for receiver, data in self._kept or ():
                with contextlib.suppress(OSError):  # its connection has ended
                    super()._send(receiver, data)
            self._kept = None


class Network:
    """Network of one process: a cable to each cluster. A context manager."""

    def __init__(self, source: str, target: str) -> None:
        self._target = Cable(target)
        self._cables = (Cable(source), self._target)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Network:
        for cable in self._cables:
            self._stack.enter_context(cable)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def addresses(self) -> Sequence[str]:
        """Addresses of the source and of the target."""
        return [cable.bootstrap_servers for cable in self._cables]

    def cut(self) -> None:
        """Pass no bytes any more."""
        for cable in self._cables:
            cable.cut()

    def restore(self) -> None:
        """Pass bytes again, those that were sent in the meantime too."""
        for cable in self._cables:
            cable.restore()

    def written_at(self, ids: Collection[bytes]) -> list[float]:
        """Return the times at which the process sent writes of records, by the monotonic clock.

        Args:
            ids: Names and topic ids of the remote topics. Produce requests to other topics, such as heartbeats, do not
                count.
        """
        return sorted(
            request.at_s
            for key in WRITES
            for request in self._target.requests(key)
            if key != ProduceRequest.API_KEY or any(each in request.frame for each in ids)
        )


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


def wait_for_standby(mirror: MirrorProcess) -> None:
    """Wait until a process that was active stands by for all flows."""
    wait_until(lambda: health(mirror).count("STANDBY") == len(FLOWS), timeout_s=300, what="the process to stand by")


@pytest.fixture(params=["klamm", "kafka"] if SOAK else ["klamm"])
def target(request: pytest.FixtureRequest) -> Iterator[KafkaCluster | KlammBroker]:
    with KafkaCluster() if request.param == "kafka" else KlammBroker() as cluster:
        yield cluster


@pytest.fixture
def rig(target: KafkaCluster | KlammBroker, tmp_path: Path) -> Iterator[Rig]:
    with KlammBroker() as source:
        addresses = source.bootstrap_servers, target.bootstrap_servers
        for topic in TOPICS:
            create_topic(source.bootstrap_servers, topic)
        with (
            Reader(target.bootstrap_servers) as reader,
            Numbers(source.bootstrap_servers) as numbers,
            Rig(*addresses, tmp_path, numbers, reader) as made,
        ):
            yield made
            count = numbers.count
            reader.wait_for(count - 1)
        exact, least, equal = (reader.numbers[topic] for topic in REMOTE)
        wanted = list(range(numbers.count))
        for once in (exact, equal):
            assert once == wanted[: len(once)], "0 lost, 0 twice, in order"
            assert len(once) >= count
        assert list(dict.fromkeys(least)) == wanted[: len(set(least))], "0 lost"
        logger.info("%d records; at least once: %d twice", len(exact), reader.doubled)


@pytest.mark.long
def test_standby_takes_over_from_killed_and_suspended_processes(rig: Rig) -> None:
    # given
    first = rig.start()
    first.wait_for("A->B RUNNING")
    second = rig.start_standby()
    assert health(first) == "OK\n"
    assert re.match(r"OK, but A->B STANDBY: \S+, process \d+ mirrors this flow; A->C STANDBY: ", health(second))
    assert health(second).count("STANDBY") == len(FLOWS)

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
    wait_until(
        lambda: health(second).count("STANDBY") == len(FLOWS), timeout_s=300, what="the resumed process to stand by"
    )
    rig.wait_for_steady_copying()

    # when: all processes of the active mirror are suspended, then resumed
    processes = family(third)
    since = time.monotonic()
    for process in processes:
        process.suspend()
    rig.measure_takeover(second, since, how="SIGSTOP of all processes", times=2)
    for process in processes:
        process.resume()
    wait_until(
        lambda: health(third).count("STANDBY") == len(FLOWS), timeout_s=300, what="the resumed process to stand by"
    )
    rig.wait_for_steady_copying()

    # when: the active process ends in order
    since = time.monotonic()
    assert second.stop() == 0
    rig.measure_takeover(third, since, how="SIGTERM", times=2)


@pytest.mark.long
def test_process_that_loses_its_network_stops_before_the_other_one_begins(rig: Rig) -> None:
    # given
    network, other = rig.network(), rig.network()
    first = rig.start(network)
    for flow in FLOWS:
        first.wait_for(f"{flow} RUNNING")
    second = rig.start_standby(other)
    with AdminClient(rig.target) as admin:
        topics = admin.describe_topics(REMOTE).all().result(300).values()
    ids = [topic.topic_id.bytes for topic in topics] + [name.encode() for name in REMOTE]
    assert other.written_at(ids) == []
    # when
    since = time.monotonic()
    network.cut()
    rig.measure_takeover(second, since, how="lost network")
    # then
    stopped_at, begun_at = network.written_at(ids)[-1], other.written_at(ids)[0]
    logger.info("last write %.1f s after the loss, first one %.1f s", stopped_at - since, begun_at - since)
    assert stopped_at < begun_at
    # when: what the network kept back arrives late
    network.restore()
    wait_for_standby(first)
    rig.wait_for_steady_copying()
    assert network.written_at(ids)[-1] == stopped_at
