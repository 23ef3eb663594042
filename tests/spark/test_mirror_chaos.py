"""Tasks, driver and target broker are killed (SIGKILL) while a source with aborted transactions is mirrored.

Three flows of one mirror share the fate: one writes exactly once, one at least once, one keeps offsets. ``make soak``
runs this; ``test_mirror_rig.py``, ``test_mirror_equal_offsets.py`` and ``interop/test_mirror_exactly_once.py`` are
the shorter forms.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import time
from typing import TYPE_CHECKING, Final

import psutil  # type: ignore[import-untyped]
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.support.equal_offsets import ISOLATION_LEVELS
from tests.support.exactly_once import assert_same
from tests.support.kafka import KafkaCluster
from tests.support.klamm import KlammBroker
from tests.support.mirror import MirrorProcess, create_topic
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)

RECORDS: Final = int(os.environ.get("KLAMM_SOAK_RECORDS", "5000000"))
"""Per flow at least, aborted ones included."""
SEED: Final = int(os.environ.get("KLAMM_SOAK_SEED", "618"))
PARTITIONS: Final = 4
PER_TRANSACTION: Final = 2_000
PAUSE_S: Final = 0.3
"""Between transactions, so that there is something to copy at every kill."""
FIRST_KILLS: Final = ("worker", "target")
"""At the end the driver is killed, too."""
MORE_KILLS: Final = int(os.environ.get("KLAMM_SOAK_KILLS", "50")) - len(FIRST_KILLS) - 1
TOPICS = EXACT, LEAST, EQUAL = "chaos-exact", "chaos-least", "chaos-equal"


class Source:
    """Thread that writes numbers to all topics in transactions, every third of which is aborted."""

    def __init__(self, address: str) -> None:
        self.committed: list[range] = []
        """Numbers that were committed, in order; number ``n`` stands in partition ``n % PARTITIONS``."""
        self.error: BaseException | None = None
        self._producer = Producer(
            {"bootstrap.servers": address, "transactional.id": "chaos", "linger.ms": 5, "compression.type": "lz4"}
        )
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Source:
        self._producer.init_transactions(60)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()

    def finish(self) -> None:
        """Write what is left, without pauses, then no more."""
        self._enough.set()
        self._thread.join()
        assert self.error is None, self.error

    def _run(self) -> None:
        try:
            for number, first in enumerate(range(0, 2**31, PER_TRANSACTION)):
                if self._enough.wait(0 if self._enough.is_set() else PAUSE_S) and first >= RECORDS:
                    return
                self._write(range(first, first + PER_TRANSACTION), abort=number % 3 == 1)
        except BaseException as error:  # noqa: BLE001 - told by finish()
            self.error = error

    def _write(self, numbers: range, *, abort: bool) -> None:
        self._producer.begin_transaction()
        for number in numbers:
            for topic in TOPICS:
                self._producer.produce(topic, value=b"%d" % number, partition=number % PARTITIONS)
            self._producer.poll(0)
        self._producer.flush(60)
        if abort:
            self._producer.abort_transaction(60)
        else:
            self._producer.commit_transaction(60)
            self.committed.append(numbers)

    def of(self, partition: int) -> Iterator[int]:
        """The numbers that a reader of committed records has to find in a partition."""
        for numbers in self.committed:
            yield from range(numbers.start + partition, numbers.stop, PARTITIONS)


def read_numbers(address: str, topic: str, partition: int) -> Iterator[int]:
    """What a reader of committed records finds in a partition, from its beginning to its end."""
    return (number for _, number in read(address, topic, partition))


def read(
    address: str, topic: str, partition: int, isolation_level: str = "read_committed"
) -> Iterator[tuple[int, int]]:
    """Offset and number of each record that a reader finds in a partition, from its beginning to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": isolation_level,
        }
    )
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), 20)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        deadline = time.monotonic() + 300
        while consumer.position([TopicPartition(topic, partition)])[0].offset < end:
            assert time.monotonic() < deadline, "an open transaction hides the end, or the broker is away"
            for message in consumer.consume(10_000, 0.5):
                assert message.error() is None, message.error()
                yield message.offset() or 0, int(message.value() or b"")
    finally:
        consumer.close()


class Chaos:
    """A mirror of three flows, its target, and how to kill either."""

    def __init__(self, source: str, target: KafkaCluster | KlammBroker, directory: Path) -> None:
        self._target = target
        self._port = int(target.bootstrap_servers.rpartition(":")[2])
        self._directory = directory
        self._random = random.Random(SEED)
        self._properties = f"""
clusters = A, B, C, D
A.bootstrap.servers = {source}
B.bootstrap.servers = {target.bootstrap_servers}
C.bootstrap.servers = {target.bootstrap_servers}
D.bootstrap.servers = {target.bootstrap_servers}
A->B.enabled = true
A->B.topics = {EXACT}
A->C.enabled = true
A->C.topics = {LEAST}
A->D.enabled = true
A->D.topics = {EQUAL}
A->D.klamm.offsets = preserve
A.consumer.isolation.level = read_committed
B.exactly.once.source.support = enabled
A->B.exactly.once.support = required
A->B.klamm.exactly.once.shards = 4
replication.factor = 1
offset.storage.replication.factor = 1
emit.offset-syncs.enabled = false
emit.heartbeats.enabled = false
sync.topic.configs.enabled = false
sync.topic.acls.enabled = false
klamm.lease.seconds = 15
spark.master = local[3,4]
"""
        self._incarnations = 0
        self.mirror = self._start()

    def _start(self, *options: str) -> MirrorProcess:
        self._incarnations += 1
        directory = self._directory / str(self._incarnations)
        directory.mkdir()
        self.mirror = MirrorProcess(self._properties, directory, *options)
        self.mirror.__enter__()
        return self.mirror

    def wait_for_progress(self) -> None:
        """Wait until all flows have written more than now."""
        before = self._ends()
        wait_until(
            lambda: all(now > then for now, then in zip(self._ends(), before, strict=True)),
            timeout_s=120,
            what=f"progress after {before}",
            interval_s=0.1,
        )

    def _ends(self) -> list[int]:
        asker = Consumer({"bootstrap.servers": self._target.bootstrap_servers, "group.id": "ends"})
        try:
            return [
                sum(self._end(asker, f"A.{topic}", partition) for partition in range(PARTITIONS)) for topic in TOPICS
            ]
        finally:
            asker.close()

    @staticmethod
    def _end(asker: Consumer, topic: str, partition: int) -> int:
        try:
            return int(asker.get_watermark_offsets(TopicPartition(topic, partition), 5)[1])
        except Exception:  # noqa: BLE001 - the broker is on its way back, or the topic not there yet
            return 0

    def kill(self, what: str) -> None:
        """Kill a task's process, the driver with all its children, or the target's broker."""
        time.sleep(self._random.uniform(0, 0.5))
        if what == "driver":
            self.mirror.kill()
            self._start()
        elif what == "target":
            self._target.restart(kill=True)
        else:
            wait_until(lambda: bool(self.mirror.workers(self._port)), timeout_s=60, what="a task", interval_s=0.1)
            with contextlib.suppress(psutil.NoSuchProcess, IndexError):
                self._random.choice(self.mirror.workers(self._port)).kill()

    def more_kills(self) -> Iterator[str]:
        """What to kill."""
        for _ in range(MORE_KILLS):
            yield self._random.choices(("worker", "target", "driver"), (5, 2, 2))[0]

    def finish(self) -> None:
        """Kill the driver and let its successor copy what is left."""
        self.mirror.kill()
        code = self._start("--until-caught-up").wait(1_800)
        assert code == 0, self.mirror.text()[-4000:]

    def close(self) -> None:
        """End the mirror."""
        self.mirror.__exit__(None, None, None)


@pytest.fixture(params=[KafkaCluster, KlammBroker])
def clusters(request: pytest.FixtureRequest) -> Iterator[tuple[str, KafkaCluster | KlammBroker]]:
    """The address of the source, and the target, which may be killed."""
    with request.param() as source, request.param() as target:
        yield source.bootstrap_servers, target


@pytest.mark.soak
def test_killed_processes_lose_and_repeat_no_committed_records(
    clusters: tuple[str, KafkaCluster | KlammBroker], tmp_path: Path
) -> None:
    """Exactly once, every record once; at least once, every record, and in order at first sight; equal offsets, every
    record at its own.
    """
    # given
    source, target = clusters
    for topic in TOPICS:
        create_topic(source, topic, PARTITIONS, {"retention.ms": "-1"})
    with Source(source) as written:
        chaos = Chaos(source, target, tmp_path)
        try:
            # when
            for process_kind in (*FIRST_KILLS, *chaos.more_kills()):
                chaos.wait_for_progress()
                chaos.kill(process_kind)
            chaos.wait_for_progress()
            written.finish()
            chaos.finish()
        finally:
            chaos.close()
        # then
        assert written.committed
        doubled = 0
        for partition in range(PARTITIONS):
            wanted = list(written.of(partition))
            arrived = list(read_numbers(target.bootstrap_servers, f"A.{EXACT}", partition))
            assert_same(f"A.{EXACT}", {partition: wanted}, {partition: arrived})
            least = list(read_numbers(target.bootstrap_servers, f"A.{LEAST}", partition))
            assert list(dict.fromkeys(least)) == wanted
            doubled += len(least) - len(wanted)
            equal = list(read(source, EQUAL, partition))
            assert [number for _, number in equal] == wanted
            for isolation_level in ISOLATION_LEVELS:
                assert list(read(target.bootstrap_servers, f"A.{EQUAL}", partition, isolation_level)) == equal
    count = sum(len(numbers) for numbers in written.committed)
    logger.info(
        "%d kills, %d committed records per flow: once each, at least once with %d twice, and at equal offsets",
        len(FIRST_KILLS) + MORE_KILLS + 1, count, doubled,
    )  # fmt: skip
