"""A mirror between two clusters of Apache Kafka under random failures, in both delivery modes.

Two flows of one mirror copy the same records: one writes them exactly once, the other at least once. The short form
goes through fixed stages, each with several disturbances at the same time, and its clusters have one node each. In the
long one (``make soak``) each cluster has three nodes. It draws the disturbances one by one until 50 kills have hit each
mode, with outages of five minutes of each side and of both: KLAMM_SOAK_KILLS, KLAMM_SOAK_OUTAGE_S and KLAMM_SOAK_SEED
change that, and after KLAMM_SOAK_RIG_S seconds nothing more is disturbed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import psutil  # type: ignore[import-untyped]
import pytest
from confluent_kafka import Consumer, TopicPartition

from klamm.admin import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    AdminClient,
    ClientQuotaEntity,
    ClientQuotaOp,
    ElectionType,
    PatternType,
)
from klamm.admin import TopicPartition as Partition
from klamm.protocol.errors import KafkaApiError
from tests.support.kafka import started
from tests.support.mirror import MirrorProcess, delete_records, grow_topic
from tests.support.mirror_rig import GuardedCluster, Verdict, Writer, batches_of, judge, read_all
from tests.support.mirror_rig_topics import TOPIC_DISTURBANCES
from tests.support.processes import wait_until
from tests.support.security import PASSWORDS, PLAIN_MODULE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.support.mirror_rig_topics import TopicDisturbance

logger = logging.getLogger(__name__)

IS_SOAK: Final = bool(os.environ.get("KLAMM_SOAK"))
KILLS: Final = int(os.environ.get("KLAMM_SOAK_KILLS", "50"))
OUTAGE_S: Final = float(os.environ.get("KLAMM_SOAK_OUTAGE_S", "300")) if IS_SOAK else 3.0
MAX_S: Final = float(os.environ.get("KLAMM_SOAK_RIG_S", "inf"))
SEED: Final = int(os.environ.get("KLAMM_SOAK_SEED", "894"))
PER_SECOND: Final = 400
PARTITIONS: Final = 2
TOPIC: Final = "rig"
EXACT, LEAST = f"A-{TOPIC}", f"A.{TOPIC}"
FLOWS: Final = ("A->B", "A->C")
KILLED: Final = ("workers", "jvm", "driver", "source node", "target node")
COMPACTED: Final = "compacted below the position"
TOPICS_AGAIN: Final = ("record too large for the target", "source topic created again", "target topics created again")
ONCE: Final = ("outage of the target", "outage of the source", "outage of both")
"""Disturbances that come once in the long form, because they take minutes."""
OTHERS: Final = (
    *TOPICS_AGAIN, "leaders of the source", "leaders of the target", "partitions", "purged below the position",
    "quota", "rights",
)  # fmt: skip
"""Disturbances that come twice in the long form."""
SHORT: Final = (
    ("workers", COMPACTED, *TOPICS_AGAIN),
    ("jvm", "partitions", "quota", "rights"),
    ("target node", "purged below the position"),
    ("outage of the source",),
)
"""Stages of the short form: of each, the first disturbance begins in this thread, and the others meanwhile."""
NODES: Final = 3 if IS_SOAK else 1
"""Number of nodes of each cluster."""
WHOLE: Final = Verdict(lost=0, repeated=0, foreign=0, out_of_order=0, repeats=0)


class Rig:
    """Both clusters, the mirror between them, and the ways to disturb them."""

    def __init__(self, source: GuardedCluster, target: GuardedCluster, writer: Writer, directory: Path) -> None:
        self._source = source
        self._target = target
        self._writer = writer
        self._directory = directory
        self._random = random.Random(SEED)
        self._incarnations = 0
        self.disturbances: list[str] = []
        self.topics: list[TopicDisturbance] = []
        """Topics that were disturbed."""
        self._ways: Mapping[str, Callable[[], None]] = {
            "workers": self._kill_workers,
            "jvm": lambda: self._mirror.jvm().kill(),
            "driver": self._kill_driver,
            "source node": lambda: self._restart_node(source),
            "target node": lambda: self._restart_node(target),
            "leaders of the source": lambda: self._move_leaders(source, (TOPIC,)),
            "leaders of the target": lambda: self._move_leaders(target, (EXACT, LEAST)),
            "partitions": self._add_partition,
            "rights": self._take_rights_away,
            "quota": self._set_quota,
            "purged below the position": self._purge,
            "outage of the source": lambda: self._take_away(source),
            "outage of the target": lambda: self._take_away(target),
            "outage of both": lambda: self._take_away(target, source),
            **{how: functools.partial(self._disturb_topic, how) for how in TOPIC_DISTURBANCES},
        }
        self._lock = threading.Lock()
        self._mirror = self._start()

    def _start(self, *options: str, on_source_loss: str = "stop") -> MirrorProcess:
        self._incarnations += 1
        directory = self._directory / str(self._incarnations)
        directory.mkdir()
        text = f"{self._properties()}klamm.on.source.loss = {on_source_loss}\n"
        self._mirror = MirrorProcess(text, directory, *options, as_users_run_it=True)
        return self._mirror.__enter__()

    def _properties(self) -> str:
        return f"""
clusters = A, B, C
A.bootstrap.servers = {self._source.guarded_servers}
B.bootstrap.servers = {self._target.guarded_servers}
C.bootstrap.servers = {self._target.guarded_servers}
security.protocol = SASL_PLAINTEXT
sasl.mechanism = PLAIN
sasl.jaas.config = {PLAIN_MODULE} required username="alice" password="{PASSWORDS["alice"]}";
A->B.enabled = true
A->C.enabled = true
A->B.klamm.exactly.once = true
A->B.klamm.exactly.once.shards = 4
A->B.replication.policy.separator = -
B.offset.storage.topic = positions-exact
C.offset.storage.topic = positions-least
A.consumer.isolation.level = read_committed
topics = {TOPIC}.*
replication.factor = {NODES}
offset.storage.replication.factor = {NODES}
emit.offset-syncs.enabled = false
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
sync.topic.acls.enabled = false
config.properties.exclude = cleanup.policy, max.message.bytes, segment.ms
refresh.topics.interval.seconds = 1
klamm.lease.seconds = 20
spark.master = local[2,4]
"""

    def disturb(self, first: str, *others: str) -> None:
        """Wait until both flows make progress, disturb them in some ways at the same time, and note it.

        Args:
            first: Disturbance that may start processes: they end with the thread that started them.
            others: Disturbances that run in threads of their own.
        """
        began = time.monotonic()
        self.wait_for_progress()
        self.disturbances += [first, *others]
        with ThreadPoolExecutor() as pool:
            running = [pool.submit(self._ways[how]) for how in others]
            self._ways[first]()
            for each in running:
                each.result()
        logger.info("%d. %s, %.0f s", len(self.disturbances), ", ".join((first, *others)), time.monotonic() - began)

    def wait_for_progress(self) -> None:
        """Wait until both flows have written more than now."""
        before = self._ends()
        wait_until(
            lambda: all(now > then for now, then in zip(self._ends(), before, strict=True)),
            timeout_s=180,
            what=f"progress after {self.disturbances[-1:]}: {before}; {self._mirror.text()[-1500:]}",
            interval_s=0.5,
        )

    def _ends(self) -> list[int]:
        # A new client each time: an old one may take minutes to know a new topic.
        asker = Consumer({"bootstrap.servers": self._target.bootstrap_servers, "group.id": "ends", "log_level": 0})
        try:
            return [
                sum(self._end(asker, topic, partition) for partition in range(PARTITIONS)) for topic in (EXACT, LEAST)
            ]
        finally:
            asker.close()

    @staticmethod
    def _end(asker: Consumer, topic: str, partition: int) -> int:
        try:
            return int(asker.get_watermark_offsets(TopicPartition(topic, partition), 5)[1])
        except Exception:  # noqa: BLE001 - a node is on its way back, or the topic not there yet
            return 0

    def _kill_workers(self) -> None:
        """Kill every worker that copies, so that both flows lose one."""
        ports = self._target.guarded_ports.values()

        def workers() -> list[psutil.Process]:
            return [worker for port in ports for worker in self._mirror.workers(port)]

        wait_until(lambda: bool(workers()), timeout_s=60, what="a task", interval_s=0.1)
        for worker in workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()

    def _kill_driver(self) -> None:
        self._mirror.kill()
        self._start()

    def _restart_node(self, cluster: GuardedCluster) -> None:
        cluster.restart(self._random.choice(list(cluster.nodes)), kill=True)

    @staticmethod
    def _take_away(*clusters: GuardedCluster) -> None:
        """Kill all nodes of clusters, one cluster after the other, and start them again after the outage."""
        for cluster in clusters:
            for node in cluster.nodes.values():
                node.kill()
            time.sleep(OUTAGE_S / len(clusters))
        for node in itertools.chain.from_iterable(cluster.nodes.values() for cluster in clusters):
            node.launch()
        for cluster in clusters:
            for node in cluster.nodes.values():
                node.wait_ready(expected_nodes=len(cluster.nodes), timeout_s=180)

    def _move_leaders(self, cluster: GuardedCluster, topics: Sequence[str]) -> None:
        with AdminClient(cluster.bootstrap_servers) as admin:
            described = admin.describe_topics(list(topics)).all().result(300)
            moved = {
                Partition(name, partition.partition): (*partition.replicas[1:], partition.replicas[0])
                for name, topic in described.items()
                for partition in topic.partitions
            }
            admin.alter_partition_reassignments(moved).all().result(300)
            wait_until(lambda: not admin.list_partition_reassignments().result(300), timeout_s=60, what="reassignments")
            for partition in moved:
                with contextlib.suppress(KafkaApiError):  # it may lead already, or not be in sync yet
                    admin.elect_leaders(ElectionType.PREFERRED, [partition]).all().result(300)

    def _add_partition(self) -> None:
        count = self._writer.partitions[TOPIC] + 1
        grow_topic(self._source.bootstrap_servers, TOPIC, count)
        self._writer.partitions[TOPIC] = count

    def _take_rights_away(self) -> None:
        """Forbid to read the source's topic, then to write to those of the target; give each right back."""
        places = ((self._source, AclOperation.READ, (TOPIC,)), (self._target, AclOperation.WRITE, (EXACT, LEAST)))
        for cluster, operation, topics in places:
            with AdminClient(cluster.bootstrap_servers) as admin:
                denied = [self._denial(topic, operation) for topic in topics]
                admin.create_acls(denied).all().result(300)
                time.sleep(1.5)
                wanted = [
                    AclFilter(resource_type=AclResourceType.TOPIC, resource_name=t, pattern_type=PatternType.LITERAL)
                    for t in topics
                ]
                admin.delete_acls(wanted).all().result(300)
            self.wait_for_progress()

    @staticmethod
    def _denial(topic: str, operation: AclOperation) -> Acl:
        return Acl(
            resource_type=AclResourceType.TOPIC,
            resource_name=topic,
            pattern_type=PatternType.LITERAL,
            principal="User:alice",
            host="*",
            operation=operation,
            permission=AclPermission.DENY,
        )

    def _set_quota(self) -> None:
        """Throttle the target's writes and the source's reads to a tenth of the load for a while."""
        entity = ClientQuotaEntity.of({"user": "alice"})
        keys = ("producer_byte_rate", "consumer_byte_rate")
        clusters = (self._source, self._target)
        for seconds, value in ((3.0, 20_000.0), (0.0, None)):
            for cluster, key in zip(clusters, reversed(keys), strict=True):
                with AdminClient(cluster.bootstrap_servers) as admin:
                    admin.alter_client_quotas({entity: [ClientQuotaOp(key, value)]}).all().result(300)
            time.sleep(seconds)

    def _purge(self) -> None:
        """Delete from the source what both flows have copied already."""
        copied = min(len(read_all(self._target.bootstrap_servers, topic, 0)) for topic in (EXACT, LEAST))
        delete_records(self._source.bootstrap_servers, TOPIC, 0, before=copied // 2)

    def _disturb_topic(self, how: str) -> None:
        with self._lock:
            name = f"{TOPIC}_{len(self.topics)}"
            topic = TOPIC_DISTURBANCES[how](name, self._source, self._target, self._writer)
            self.topics.append(topic)
        topic.apply()

    def finish(self) -> None:
        """Repair what the mirror has stopped for, kill the driver and let its successor copy what is left."""
        stops = [
            f"{flow}: {topic.name}-0 stopped: {topic.stop_reason.format(topic=topic.name)}"
            for topic, flow in itertools.product(self.topics, FLOWS)
            if topic.stop_reason
        ]
        wait_until(
            lambda: all(line in self.texts() for line in stops), timeout_s=120, what=f"all of {stops}", interval_s=0.5
        )
        for topic in self.topics:
            topic.repair()
        self._mirror.kill()
        code = self._start("--until-caught-up", on_source_loss="continue").wait(900 if IS_SOAK else 300)
        assert code == 0, self._mirror.text()[-4000:]

    def close(self) -> None:
        """End the mirror."""
        self._mirror.__exit__(None, None, None)

    def texts(self) -> str:
        """The logs of all incarnations."""
        logs = (self._directory / str(number + 1) / "mirror.log" for number in range(self._incarnations))
        return "".join(log.read_text(errors="replace") for log in logs)

    def judge(self, mode: int) -> dict[str, Verdict]:
        """Return a verdict for each remote partition of a flow: 0 is the flow that copies exactly once."""
        out = {f"{topic.remote_topics[mode]}-0": topic.verdict(topic.remote_topics[mode]) for topic in self.topics}
        remote = (EXACT, LEAST)[mode]
        for partition in range(self._writer.partitions[TOPIC]):
            wanted = self._writer.wanted[TOPIC, partition]
            out[f"{remote}-{partition}"] = judge(wanted, read_all(self._target.bootstrap_servers, remote, partition))
        return out

    def judge_source(self) -> dict[str, Verdict]:
        """Return a verdict for each source partition: what its producer has repeated is no repetition of the mirror."""
        address = self._source.bootstrap_servers
        return {
            f"{topic}-{partition}": judge(wanted, read_all(address, topic, partition))
            for (topic, partition), wanted in self._writer.wanted.items()
        }

    def dump(self, partitions: Iterable[str]) -> Path:
        """Write down the batches of remote partitions as each node of the target has them: how did they get there?"""
        path = self._directory / "batches.txt"
        with path.open("w") as file:
            for node, partition in itertools.product(self._target.nodes.values(), partitions):
                file.write(f"\n=== node {node.node_id}, {partition}\n")
                file.write(batches_of(node.directory / "data" / partition))
        return path

    @property
    def kills(self) -> int:
        """Number of kills that have hit both modes."""
        return sum(how in KILLED for how in self.disturbances)

    def plan(self) -> Iterator[Sequence[str]]:
        """What to do next: disturbances at the same time."""
        if not IS_SOAK:
            yield from SHORT
            return
        yield (COMPACTED,)
        drawn = [*ONCE, *(self._random.choice(KILLED) for _ in range(KILLS)), *(OTHERS * 2)]
        self._random.shuffle(drawn)
        until = time.monotonic() + MAX_S
        yield from ((how,) for how in itertools.takewhile(lambda _: time.monotonic() < until, drawn))


@pytest.fixture
def clusters(java: None) -> Iterator[tuple[GuardedCluster, GuardedCluster]]:
    source, target = GuardedCluster(NODES), GuardedCluster(NODES)
    with started(source, target):
        yield source, target


@pytest.mark.long
def test_random_failures_lose_no_records_and_exactly_once_repeats_none(
    clusters: tuple[GuardedCluster, GuardedCluster], tmp_path: Path
) -> None:
    """K894-38, K894-39: at least once repeats a batch only where something was killed or taken away."""
    # given
    source, target = clusters
    source.create_topic(TOPIC, PARTITIONS)
    with Writer(source.bootstrap_servers, {TOPIC: PARTITIONS}, per_second=PER_SECOND) as writer:
        rig = Rig(source, target, writer, tmp_path)
        try:
            # when
            for ways in rig.plan():
                rig.disturb(*ways)
            rig.wait_for_progress()
            writer.finish()
            rig.finish()
        except BaseException:
            for cluster in clusters:
                logger.warning("The logs of its nodes are in %s", cluster.keep_logs())
            raise
        finally:
            rig.close()
            (tmp_path / "all.log").write_text(rig.texts())
    written, exact, least = rig.judge_source(), rig.judge(0), rig.judge(1)
    # then
    count = sum(map(len, writer.wanted.values()))
    logger.info("%d records, %d disturbances, %d kills", count, len(rig.disturbances), rig.kills)
    for name, verdicts in (("source", written), ("exactly once", exact), ("at least once", least)):
        for partition, verdict in verdicts.items():
            logger.info("%s, %s: %s", name, partition, verdict)
    # One more: the driver is killed at the end, too.
    bound = len(rig.disturbances) + 1
    if wrong := {partition: verdict for partition, verdict in exact.items() if verdict != WHOLE}:
        pytest.fail(f"exactly once: {wrong}; source: {written}; batches: {rig.dump(wrong)}")
    if any((v.lost, v.foreign, v.out_of_order) != (0, 0, 0) or v.repeats > bound for v in least.values()):
        pytest.fail(f"at least once: {least}; source: {written}")
    assert len(exact) == len(least) == writer.partitions[TOPIC] + len(rig.topics) > PARTITIONS + len(rig.topics)
    assert "Traceback" not in rig.texts()
    if "jvm" in rig.disturbances:
        assert "was killed by SIGKILL; a new session is started" in rig.texts()
