"""``klamm mirror`` as a broker of a real cluster under random failures: the replicas equal the source in every byte.

In the short form (``--long``) one cluster of three nodes is source and target, and each disturbance comes once. In the
long one (``make soak``) there are two clusters of three nodes, and 50 rounds with one or two disturbances at the same
time: KLAMM_SOAK_KILLS and KLAMM_SOAK_SEED change that, and after KLAMM_SOAK_RIG_S seconds nothing more is disturbed.

The checker shares nothing with the mirror: it compares the segments on the disks of all nodes, and librdkafka writes
and reads the records.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import re
import shutil
import threading
import time
from typing import TYPE_CHECKING, Final, Self

import psutil  # type: ignore[import-untyped]
import pytest
from confluent_kafka import KafkaException, Producer

from klamm.admin import AdminClient, ElectionType, NewPartitions, NewTopic, TopicPartition
from klamm.configs.names import CLUSTER_METADATA
from klamm.protocol.errors import KafkaApiError
from klamm.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from tests.support.equal_offsets import ISOLATION_LEVELS, contents
from tests.support.kafka import KafkaCluster, started
from tests.support.kafka_tools import run_tool
from tests.support.mirror import MirrorProcess, Seen, delete_topic, produce, properties, wait_for_partitions
from tests.support.mirror_rig import Verdict, Writer, judge
from tests.support.processes import free_port, wait_until
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.support.kafka import KafkaNode

logger = logging.getLogger(__name__)

IS_SOAK: Final = bool(os.environ.get("KLAMM_SOAK"))
ROUNDS: Final = int(os.environ.get("KLAMM_SOAK_KILLS", "50"))
MAX_S: Final = float(os.environ.get("KLAMM_SOAK_RIG_S", "inf"))
SEED: Final = int(os.environ.get("KLAMM_SOAK_SEED", "29"))
KLAMM: Final = 9
PLAIN, TRANSACTIONAL = "chaos-plain", "chaos-transactional"
PARTITIONS: Final = 2
NODES: Final = (1, 2, 3)
PER_TRANSACTION: Final = 20
OF_KLAMM: Final = ("worker", "jvm", "driver", "stopped worker", "stopped mirror")
OF_NODES: Final = (
    "target broker", "active controller", "source leader", "stopped target broker", "stopped source leader",
)  # fmt: skip
OF_TOPICS: Final = ("source topic created again", "remote topic deleted")
RARE: Final = ("partitions", "target", "replicas lost", "source", "reassignments cancelled", "leaders moved")
"""Disturbances that come once alone in the long form, as those of topics, and once together with one of klamm."""
SHORT: Final = (
    ("driver", "active controller"),
    ("partitions",),
    ("worker", "target broker"),
    ("stopped worker",),
    ("jvm",),
    ("source topic created again",),
    ("source leader",),
    ("stopped mirror",),
    ("stopped source leader",),
    ("remote topic deleted",),
    ("replicas lost",),
    ("reassignments cancelled",),
    ("leaders moved",),
    ("worker", "target"),
)
WHOLE: Final = Verdict(lost=0, repeated=0, foreign=0, out_of_order=0, repeats=0)
QUORUM: Final = DescribeQuorumRequest(
    topics=[
        DescribeQuorumRequest.TopicData(
            topic_name=CLUSTER_METADATA, partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)]
        )
    ]
)


def segments(node: KafkaNode, topic: str, partition: int) -> list[Path]:
    """Return the segments of a replica, the oldest first."""
    return sorted((node.directory / "data" / f"{topic}-{partition}").glob("*.log"))


def stored(node: KafkaNode, topic: str, partition: int) -> bytes:
    """Return the log of a replica. Empty while its directory is created or deleted."""
    try:
        return b"".join(path.read_bytes() for path in segments(node, topic, partition))
    except FileNotFoundError:
        return b""


def size(node: KafkaNode, topic: str, partition: int) -> int:
    """Return the size of the log of a replica."""
    try:
        return sum(path.stat().st_size for path in segments(node, topic, partition))
    except FileNotFoundError:
        return 0


def create(address: str, name: str, partitions: int = 1) -> None:
    """Create a topic with a replica on each real broker, that loses no acknowledged record."""
    configs = {"retention.ms": "-1", "min.insync.replicas": "2", "segment.bytes": str(1 << 20)}
    replicas = {number: (*NODES[number % 3 :], *NODES[: number % 3]) for number in range(partitions)}
    with AdminClient(address) as admin:
        new = NewTopic(name=name, replicas_assignments=replicas, configs=configs)
        created = admin.create_topics([new]).values()[name].result(300)
    wait_for_partitions(address, name, partitions, created.topic_id)


class Transactions:
    """Thread that writes transactions over all partitions of a topic, and aborts every third."""

    def __init__(self, address: str) -> None:
        self.committed: set[bytes] = set()
        """Values of committed records."""
        self.in_doubt: set[bytes] = set()
        """Values of transactions whose outcome the producer does not know."""
        self._address = address
        self._enough = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._producer = self._new_producer()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()

    def finish(self) -> None:
        """End the last transaction, and write no more."""
        self.__exit__()
        assert self._error is None, self._error

    def _new_producer(self) -> Producer:
        settings = {"transactional.id": TRANSACTIONAL, "transaction.timeout.ms": 600_000, "linger.ms": 5}
        producer = Producer({"bootstrap.servers": self._address, "log_level": 0, **settings})
        _repeat(producer.init_transactions)
        return producer

    def _run(self) -> None:
        try:
            for number in itertools.count():
                if self._enough.wait(0.1):
                    return
                self._write(number)
        except BaseException as error:  # noqa: BLE001 - raised by finish()
            self._error = error

    def _write(self, number: int) -> None:
        values = [b"%d" % at for at in range(number * PER_TRANSACTION, (number + 1) * PER_TRANSACTION)]
        is_committed = number % 3 != 1
        try:
            self._producer.begin_transaction()
            for at, value in enumerate(values):
                self._producer.produce(TRANSACTIONAL, value, partition=at % PARTITIONS)
            self._producer.flush(300)
            _repeat(self._producer.commit_transaction if is_committed else self._producer.abort_transaction)
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                _repeat(self._producer.abort_transaction)
                return
            self.in_doubt |= {*values}
            self._producer = self._new_producer()
            return
        if is_committed:
            self.committed |= {*values}


def _repeat(call: Callable[[float], object]) -> None:
    """Call until the outcome is known."""
    while True:
        try:
            call(60)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return


class Rig:
    """Clusters, the mirror between them, and the ways to disturb them.

    A way does the harm at once, and returns what repairs it.
    """

    rare: Sequence[str] = RARE

    def __init__(self, source: KafkaCluster, target: KafkaCluster, writer: Writer, directory: Path) -> None:
        self.source = source
        self.target = target
        self._writer = writer
        self._directory = directory
        self._random = random.Random(SEED)
        self._incarnations = 0
        self._topics = 0
        self.rounds: list[tuple[str, ...]] = []
        keys = f"""
{self.way_of_offsets()}
klamm.offsets = preserve
emit.heartbeats.enabled = false
heartbeats.replication.enabled = false
sync.topic.acls.enabled = false
klamm.lease.seconds = 20
spark.master = local[2,4]
"""
        self._properties = properties(
            source.bootstrap_servers, target.bootstrap_servers, keys, topics="chaos-.*", replication_factor=3
        )
        self._ways: Mapping[str, Callable[[], Callable[[], object]]] = {
            "worker": lambda: _kill(self._worker()),
            "jvm": lambda: _kill(self.mirror.jvm(), self._worker()),
            "driver": self._kill_driver,
            "stopped worker": lambda: self._stop([self._worker()]),
            "stopped mirror": lambda: self._stop(self._processes()),
            "target broker": lambda: self._kill_nodes(target, self._random.choice(NODES)),
            "active controller": lambda: self._kill_nodes(target, self._active_controller()),
            "source leader": lambda: self._kill_nodes(source, self.leader(PLAIN, 0)),
            "stopped target broker": lambda: self._stop_node(target, self._random.choice(NODES)),
            "stopped source leader": lambda: self._stop_node(source, self.leader(PLAIN, 0)),
            "target": lambda: self._kill_nodes(target, *NODES),
            "source": lambda: self._kill_nodes(source, *NODES),
            "replicas lost": self._lose_replicas,
            "reassignments cancelled": self._cancel_reassignments,
            "leaders moved": self._move_leaders,
            "partitions": self._add_partition,
            "source topic created again": self._create_source_topic_again,
            "remote topic deleted": self._delete_remote_topic,
        }
        self.mirror = self._start()

    def way_of_offsets(self) -> str:
        """Return the keys of the way in which offsets are kept."""
        return f"""
B.bootstrap.controllers = {self.target.bootstrap_controllers}
klamm.offsets.by = replica
klamm.replica.experimental = true
klamm.replica.node.id = {KLAMM}
klamm.replica.listeners = 127.0.0.1:{free_port()}
"""

    def _start(self) -> MirrorProcess:
        self._incarnations += 1
        directory = self._directory / str(self._incarnations)
        directory.mkdir()
        self.mirror = MirrorProcess(self._properties, directory, as_users_run_it=True)
        return self.mirror.__enter__()

    def plan(self) -> Iterator[tuple[str, ...]]:
        """Yield the disturbances of each round."""
        if not IS_SOAK:
            yield from SHORT
            return
        until = time.monotonic() + MAX_S
        kills = [*OF_KLAMM, *OF_NODES]
        for number in range(ROUNDS):
            if time.monotonic() >= until:
                return
            if number % 6 == 4:
                yield ((*OF_TOPICS, *self.rare)[number // 6 % len((*OF_TOPICS, *self.rare))],)
            elif number % 8 == 2:
                yield self.rare[number // 8 % len(self.rare)], self._random.choice(("driver", "worker"))
            elif number % 2:
                yield self._random.choice(OF_KLAMM), self._random.choice(OF_NODES)
            else:
                yield (self._random.choice(kills),)

    def disturb(self, ways: tuple[str, ...]) -> None:
        """Disturb a mirror that makes progress, then wait until all replicas have what the source has now."""
        began = time.monotonic()
        repairs = []
        for how in ways:
            repairs.append(self._ways[how]())
            time.sleep(self._random.uniform(0, 2) if how in self.rare and ways[1:] else 0)
        for repair in reversed(repairs):
            repair()
        self.rounds.append(ways)
        repaired = time.monotonic()
        self.wait_for_replicas()
        self.check_replicas()
        logger.info(
            "%d. %s: repaired after %.0f s, caught up %.0f s later",
            *(len(self.rounds), " and ".join(ways), repaired - began, time.monotonic() - repaired),
        )

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """Partitions that are written all the time."""
        return [
            *((PLAIN, number) for number in range(self._writer.partitions[PLAIN])),
            *((TRANSACTIONAL, number) for number in range(PARTITIONS)),
        ]

    def wait_for_replicas(self) -> None:
        """Wait until all replicas have a record of each partition that the source gets from now on."""
        self._wait_for_sizes(self._next_sizes())

    def wait_for_ends(self) -> None:
        """Wait until all replicas have everything. The writers have finished."""
        self._wait_for_sizes(self.source_sizes())

    def _wait_for_sizes(self, sizes: Mapping[tuple[str, int], int]) -> None:
        def lacking() -> list[str]:
            return [
                f"{topic}-{number} on {place}: {has} of {wanted}"
                for (topic, number), wanted in sizes.items()
                for place, has in self.target_sizes(topic, number).items()
                if has < wanted
            ]

        try:
            wait_until(lambda: not lacking(), timeout_s=240, what="the replicas", interval_s=0.2)
        except TimeoutError:
            pytest.fail(f"after {self.rounds[-2:]}: {lacking()}; {self.mirror.text()[-3000:]}")

    def _next_sizes(self) -> dict[tuple[str, int], int]:
        """Wait for a record in all partitions, and return the sizes of the shortest logs of the source with it."""
        before = self.source_sizes()
        wait_until(
            lambda: all(now > before[each] for each, now in self.source_sizes().items()),
            timeout_s=180,
            what="records in all partitions of the source",
        )
        return self.source_sizes()

    def target_sizes(self, topic: str, number: int) -> dict[str, int]:
        """Return the sizes in bytes of the replicas of a partition, by place."""
        return {f"node {node.node_id}": size(node, f"A.{topic}", number) for node in self.target.nodes.values()}

    def source_sizes(self) -> dict[tuple[str, int], int]:
        """Return the sizes in bytes of the shortest replicas of each partition."""
        nodes = self.source.nodes.values()
        return {each: min(size(node, *each) for node in nodes) for each in self.partitions}

    def check_replicas(self, *, is_complete: bool = False) -> None:
        """Check that each replica holds the first bytes of the source's log, or all of them."""
        for topic, number in self.partitions:
            logs = {node.node_id: stored(node, f"A.{topic}", number) for node in self.target.nodes.values()}
            source = stored(self.source.nodes[self.leader(topic, number)], topic, number)
            for node_id, log in logs.items():
                assert source.startswith(log), f"{topic}-{number} differs on node {node_id} after {self.rounds[-2:]}"
                assert not is_complete or len(log) == len(source), f"{topic}-{number} on node {node_id}"

    # --- klamm --------------------------------------------------------------------------------------------------------

    def _worker(self) -> psutil.Process:
        ports = [node.port for node in self.target.nodes.values()]
        workers: list[psutil.Process] = []

        def starts() -> bool:
            workers.extend(worker for port in ports for worker in self.mirror.workers(port))
            return bool(workers)

        wait_until(starts, timeout_s=120, what="a task", interval_s=0.1)
        return workers[0]

    def _kill_driver(self) -> Callable[[], object]:
        self.mirror.kill()
        return self._start

    def _processes(self) -> list[psutil.Process]:
        driver = psutil.Process(self.mirror.process.pid)
        return [driver, *driver.children(recursive=True)]

    def _stop(self, processes: list[psutil.Process]) -> Callable[[], object]:
        """Suspend processes for up to twice the session timeout of brokers."""
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        ends_at = time.monotonic() + self._random.uniform(1, 8)

        def resume() -> None:
            time.sleep(max(0.0, ends_at - time.monotonic()))
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()

        return resume

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _kill_nodes(self, cluster: KafkaCluster, *node_ids: int) -> Callable[[], object]:
        nodes = [cluster.nodes[node_id] for node_id in node_ids]
        for node in nodes:
            node.kill()

        def start() -> None:
            for node in nodes:
                node.launch()
            for node in nodes:
                node.wait_ready(expected_nodes=len(NODES))

        return start

    def _stop_node(self, cluster: KafkaCluster, node_id: int) -> Callable[[], object]:
        """Suspend a broker. When it resumes, it believes for a moment that it still leads its partitions."""
        return self._stop([psutil.Process(cluster.nodes[node_id].pid)])

    def _lose_replicas(self) -> Callable[[], object]:
        """Remove the remote topics from the disk of a broker."""
        node = self.target.nodes[self._random.choice(NODES)]
        start = self._kill_nodes(self.target, node.node_id)
        for topic, number in self.partitions:
            shutil.rmtree(node.directory / "data" / f"A.{topic}-{number}")
        return start

    def _cancel_reassignments(self) -> Callable[[], object]:
        """Cancel the reassignments of the remote topics, so that the brokers delete their replicas."""
        remote = [TopicPartition(f"A.{topic}", number) for topic, number in self.partitions]
        with AdminClient(self.target.bootstrap_servers) as admin:
            admin.alter_partition_reassignments(dict.fromkeys(remote)).all().result(300)

        def wait_for_reassignments() -> None:
            with AdminClient(self.target.bootstrap_servers) as admin:
                wait_until(
                    lambda: admin.list_partition_reassignments().result(300).keys() >= {*remote},
                    timeout_s=60,
                    what="the reassignments of the mirror",
                )

        return wait_for_reassignments

    def _move_leaders(self) -> Callable[[], object]:
        """Let other brokers lead the source, without a failure."""
        with AdminClient(self.source.bootstrap_servers) as admin:
            described = admin.describe_topics([PLAIN, TRANSACTIONAL]).all().result(300)
            moved = {
                TopicPartition(name, partition.partition): (*partition.replicas[1:], partition.replicas[0])
                for name, topic in described.items()
                for partition in topic.partitions
            }
            admin.alter_partition_reassignments(moved).all().result(300)
            for partition in moved:
                with contextlib.suppress(KafkaApiError):  # it may lead already
                    admin.elect_leaders(ElectionType.PREFERRED, [partition]).all().result(300)
        return lambda: None

    def _active_controller(self) -> int:
        node = self.target.nodes[1]
        with WireClient(f"{node.host}:{node.port}") as client:
            return client.ask(QUORUM, DescribeQuorumResponse, 1).topics[0].partitions[0].leader_id

    def leader(self, topic: str, partition: int) -> int:
        with AdminClient(self.source.bootstrap_servers) as admin:
            described = admin.describe_topics([topic]).all().result(300)[topic]
        leader = described.partitions[partition].leader
        assert leader is not None
        return leader

    # --- topics -------------------------------------------------------------------------------------------------------

    def _add_partition(self) -> Callable[[], object]:
        count = self._writer.partitions[PLAIN] + 1
        with AdminClient(self.source.bootstrap_servers) as admin:
            admin.create_partitions({PLAIN: NewPartitions(count, (NODES,))}).all().result(300)
        wait_for_partitions(self.source.bootstrap_servers, PLAIN, count)
        self._writer.partitions[PLAIN] = count
        return lambda: None

    def _new_topic(self) -> str:
        """Create a topic with records, and wait until its replicas have them."""
        self._topics += 1
        name = f"chaos-{self._topics}"
        create(self.source.bootstrap_servers, name)
        self._fill(name, b"old")
        self.wait_for_copy(name)
        return name

    def _fill(self, topic: str, value: bytes) -> None:
        records = [(0, Seen(b"%d" % number, value, (), 1_700_000_000_000)) for number in range(100)]
        produce(self.source.bootstrap_servers, topic, records, {"enable.idempotence": True})

    def wait_for_copy(self, topic: str) -> None:
        """Wait until the remote topic equals a topic of one partition that nothing writes."""

        def is_equal() -> bool:
            log = stored(self.source.nodes[self.leader(topic, 0)], topic, 0)
            return self.copies(topic) == {log}

        wait_until(is_equal, timeout_s=120, what=f"the replicas of {topic}", interval_s=0.2)

    def copies(self, topic: str) -> object:
        """Return what the target has of a topic of one partition."""
        return {stored(node, f"A.{topic}", 0) for node in self.target.nodes.values()}

    def _create_source_topic_again(self) -> Callable[[], object]:
        name = self._new_topic()
        before = self.copies(name)
        delete_topic(self.source.bootstrap_servers, name)
        create(self.source.bootstrap_servers, name)
        self._fill(name, b"new")

        def repair() -> None:
            self.mirror.wait_for(f"{name} was deleted and created again on the source")
            assert self.copies(name) == before
            delete_topic(self.target.bootstrap_servers, f"A.{name}")
            self.wait_for_copy(name)

        return repair

    def _delete_remote_topic(self) -> Callable[[], object]:
        name = self._new_topic()
        ids = self._topic_ids(name)
        delete_topic(self.target.bootstrap_servers, f"A.{name}")
        self._fill(name, b"new")

        def repair() -> None:
            wait_until(
                lambda: len(self._topic_ids(name) - ids) == 1 and not self._topic_ids(name) & ids,
                timeout_s=120,
                what=f"A.{name} as another topic",
                interval_s=0.2,
            )
            self.wait_for_copy(name)

        return repair

    def _topic_ids(self, topic: str) -> set[str]:
        out = set()
        for node in self.target.nodes.values():
            with contextlib.suppress(FileNotFoundError):
                out.add((node.directory / "data" / f"A.{topic}-0" / "partition.metadata").read_text())
        return out

    def level_of_source(self, level: str) -> str:
        """Return the isolation level in which the source shows what the target shows in a level."""
        return level

    # --- the end ------------------------------------------------------------------------------------------------------

    def dumps(self, cluster: KafkaCluster, topic: str, partition: int) -> set[str]:
        """Return the batches and records of the replicas of a partition, as Kafka's tool prints them.

        A replica may begin another segment at another offset than the source, so positions in segments are left out.
        """
        options = ("--deep-iteration", "--print-data-log", "--files")
        out = set()
        for node in cluster.nodes.values():
            files = ",".join(map(str, segments(node, topic, partition)))
            lines = run_tool("org.apache.kafka.tools.DumpLogSegments", *options, files).splitlines()
            batches = [line for line in lines if not line.startswith(("Dumping ", "Log starting offset"))]
            out.add(re.sub(r" position: \d+", "", "\n".join(batches)))
        return out

    def close(self) -> None:
        """End the mirror."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in self._processes():
                process.resume()
        self.mirror.__exit__(None, None, None)

    def texts(self) -> str:
        """Return the logs of all incarnations."""
        logs = (self._directory / str(number + 1) / "mirror.log" for number in range(self._incarnations))
        return "".join(log.read_text(errors="replace") for log in logs)


def _kill(process: psutil.Process, *others: psutil.Process) -> Callable[[], object]:
    """Kill a process, and await its end and that of others, which follow it."""
    process.kill()
    return lambda: psutil.wait_procs([process, *others])


@pytest.fixture
def clusters(java: None) -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """Source and target."""
    target = KafkaCluster(len(NODES))
    source = KafkaCluster(len(NODES)) if IS_SOAK else target
    with started(*{source, target}):
        yield source, target


@pytest.mark.long
def test_replicas_equal_the_source_after_random_failures(
    clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path
) -> None:
    # given
    source, target = clusters
    address = source.bootstrap_servers
    for topic in (PLAIN, TRANSACTIONAL):
        create(address, topic, PARTITIONS)
    with Writer(address, {PLAIN: PARTITIONS}, per_second=200) as writer, Transactions(address) as transactions:
        rig = Rig(source, target, writer, tmp_path)
        try:
            rig.wait_for_replicas()
            # when
            for ways in rig.plan():
                rig.disturb(ways)
            writer.finish()
            transactions.finish()
            # then
            rig.wait_for_ends()
            rig.check_replicas(is_complete=True)
            for topic, partition in rig.partitions:
                (of_source,) = rig.dumps(source, topic, partition)
                assert rig.dumps(target, f"A.{topic}", partition) == {of_source}
                assert "isvalid: false" not in of_source
            assert_clients_read_the_same(rig, writer, transactions)
        except BaseException:
            for cluster in clusters:
                logger.warning("The logs of its nodes are in %s", cluster.keep_logs())
            raise
        finally:
            rig.close()
            (tmp_path / "all.log").write_text(rig.texts())
    assert "Traceback" not in rig.texts()


def assert_clients_read_the_same(rig: Rig, writer: Writer, transactions: Transactions) -> None:
    """Check that both clusters have all records once, at equal offsets, in both isolation levels."""
    committed = list[bytes]()
    for level, (topic, partition) in itertools.product(ISOLATION_LEVELS, rig.partitions):
        records = contents(rig.source.bootstrap_servers, topic, rig.level_of_source(level), partition)
        assert contents(rig.target.bootstrap_servers, f"A.{topic}", level, partition) == records
        if topic == PLAIN:
            seen = [Seen(each.key, each.value, each.headers, each.timestamp) for each in records.values()]
            assert judge(writer.wanted[topic, partition], seen) == WHOLE
        elif level == "read_committed":
            committed += [each.value or b"" for each in records.values()]
    assert len(committed) == len({*committed})
    assert transactions.committed <= {*committed} <= transactions.committed | transactions.in_doubt
    plain = sum(map(len, writer.wanted.values()))
    logger.info("%d rounds, %d plain and %d committed records", len(rig.rounds), plain, len(committed))
