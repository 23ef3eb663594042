"""Mirror in its own process, records to mirror, and readers of either cluster."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import psutil  # type: ignore[import-untyped]
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient as ConfluentAdmin

from klamm.admin import (
    AdminClient,
    AlterConfigOp,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    OpType,
    ResourceType,
)
from klamm.admin import TopicPartition as AdminPartition
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.records.internal_topic import ControlConnection, TopicGoneError
from klamm.protocol.errors import KafkaApiError, UnknownTopicOrPartitionError
from tests.support import spark_processes
from tests.support.class_archives import let_spark_start_quickly
from tests.support.processes import start_process, wait_until
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from types import TracebackType
    from uuid import UUID

    from klamm.admin import TopicDescription
    from klamm.protocol.records import Record


class Seen(NamedTuple):
    """A record as a consumer sees it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


_TALKATIVE: Final = """
import sys, logging
from pathlib import Path
from klamm.mirror.run import run
from klamm.mirror.progress.flow_progress import describe
logging.basicConfig(level=logging.INFO, format='%(levelname)s %(name)s %(message)s')
logging.getLogger('py4j').setLevel(logging.CRITICAL)
written = {}
def write(flows):
    for flow in flows:
        if (line := describe(flow)) != written.get(flow.flow):
            sys.stderr.write(line + '\\n')
            written[flow.flow] = line
sys.exit(run(Path(sys.argv[1]), plan='--plan' in sys.argv, until_caught_up='--until-caught-up' in sys.argv,
             on_progress=write))
"""
"""Mirror that writes a line for every change of its progress, for tests that wait for them."""


class MirrorProcess:
    """A mirror with a properties file, in its own process session.

    Args:
        properties: Content of the file.
        directory: Directory for the file and the log.
        options: Command line options.
        as_users_run_it: ``klamm mirror`` with the log that a user sees, instead of a line for every change of progress.
    """

    def __init__(self, properties: str, directory: Path, *options: str, as_users_run_it: bool = False) -> None:
        self.log = directory / "mirror.log"
        self._file = directory / "mm2.properties"
        self._file.write_text(properties)
        self._options = options
        self._as_users_run_it = as_users_run_it
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        program = ("-m", "klamm.cli", "mirror") if self._as_users_run_it else ("-c", _TALKATIVE)
        command: list[str | Path] = [sys.executable, *program, self._file, *self._options]
        with pytest.MonkeyPatch.context() as environment:
            let_spark_start_quickly(environment)
            self._process = start_process(command, log=self.log, new_session=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.kill()
        if kind is not None:
            sys.stderr.write(self.text()[-8000:])

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def text(self) -> str:
        """Return its complete output."""
        return self.log.read_text(errors="replace")

    def wait(self, timeout_s: float = 300) -> int:
        """Wait for its end and return the exit code."""
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """Kill the process (SIGKILL), and wait until its child processes have ended."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        _, alive = psutil.wait_procs(children, timeout=60)
        assert not alive, f"Left behind: {alive}"

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.terminate()
        return self.wait(60)

    def jvm(self) -> psutil.Process:
        """Wait for Spark's JVM and return it."""
        processes: list[psutil.Process] = []

        def starts() -> bool:
            processes.extend(spark_processes.jvms(self.process.pid))
            return bool(processes)

        wait_until(starts, timeout_s=300, what="a JVM", interval_s=0.1, alive=self._check_alive)
        return processes[0]

    def workers(self, port: int) -> list[psutil.Process]:
        """Return Spark's Python workers that are connected to a broker's port."""
        return spark_processes.workers(self.process.pid, port)

    def wait_for(self, text: str, timeout_s: float = 300) -> None:
        """Wait until its output contains a text."""
        wait_until(lambda: text in self.text(), timeout_s=timeout_s, what=repr(text), alive=self._check_alive)

    def _check_alive(self) -> None:
        if self.process.poll() is not None:
            raise RuntimeError(f"The mirror ended with {self.process.returncode}:\n{self.text()[-4000:]}")


def properties(
    source: str,
    target: str,
    more: str = "",
    *,
    topics: str,
    replication_factor: int = 1,
    alias: str = "A",
    target_alias: str = "B",
) -> str:
    """Return a file that mirrors a cluster to another, quickly."""
    return f"""
clusters = {alias}, {target_alias}
{alias}.bootstrap.servers = {source}
{target_alias}.bootstrap.servers = {target}
{alias}->{target_alias}.enabled = true
topics = {topics}
replication.factor = {replication_factor}
offset.storage.replication.factor = {replication_factor}
offset-syncs.topic.replication.factor = {replication_factor}
heartbeats.topic.replication.factor = {replication_factor}
checkpoints.topic.replication.factor = {replication_factor}
refresh.topics.interval.seconds = 1
sync.topic.configs.interval.seconds = 1
{more}
"""


def create_topic(
    address: str, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None, replication: int = 1
) -> None:
    """Create a topic and wait until the cluster reports all its leaders."""
    with AdminClient(address) as admin:
        new = NewTopic(
            name=name, num_partitions=partitions, replication_factor=replication, configs=dict(configs or {})
        )
        created = admin.create_topics([new]).values()[name].result(300)
    wait_for_partitions(address, name, partitions, created.topic_id)


def delete_topic(address: str, name: str) -> None:
    """Delete a topic if it exists."""
    with AdminClient(address) as admin, contextlib.suppress(UnknownTopicOrPartitionError):
        admin.delete_topics([name]).all().result(300)


def grow_topic(address: str, name: str, partitions: int) -> None:
    """Add partitions to a topic and wait until the cluster reports all leaders."""
    with AdminClient(address) as admin:
        admin.create_partitions({name: NewPartitions(total_count=partitions)}).all().result(300)
    wait_for_partitions(address, name, partitions)


def wait_for_partitions(address: str, name: str, partitions: int, topic_id: UUID | None = None) -> None:
    """Wait until every partition has a leader that serves it, of the topic with an id if one is given.

    Brokers of Kafka report a leader before it has opened the partition. Until then, it rejects records with
    NOT_LEADER_OR_FOLLOWER, which a client without retries would report. Nor have they forgotten a deleted topic of the
    same name at once, which would take the records with it: not in the metadata, and later than there in the logs.
    """
    ends = {AdminPartition(name, number): OffsetSpec.LATEST for number in range(partitions)}

    def there() -> bool:
        try:
            described = admin.describe_topics([name]).values()[name].result(300)
        except KafkaApiError:
            return False
        if topic_id is not None and described.topic_id != topic_id:
            return False
        if [partition.leader >= 0 for partition in described.partitions] != [True] * partitions:
            return False
        admin.list_offsets(ends).all().result(300)
        return topic_id is None or _serve(admin, topic_id, described)

    with AdminClient(address, timeout_ms=300_000) as admin:
        wait_until(there, timeout_s=300, what=f"{partitions} partitions of {name}", interval_s=0.1)


def _serve(admin: AdminClient, topic_id: UUID, topic: TopicDescription) -> bool:
    """Return whether the leaders of all partitions serve the topic with this id."""
    nodes = {node.id: node for node in admin.describe_cluster().result(300).nodes}
    leaders = {partition.leader for partition in topic.partitions}
    if not leaders <= nodes.keys():
        return False
    for leader in leaders:
        with WireClient(f"{nodes[leader].host}:{nodes[leader].port}") as client:
            if not client.serves(topic_id, [each.partition for each in topic.partitions if each.leader == leader]):
                return False
    return True


def set_config(address: str, topic: str, name: str, value: str | None) -> None:
    """Set one config of a topic incrementally; None deletes it."""
    operation = AlterConfigOp(ConfigEntry(name, value), OpType.DELETE if value is None else OpType.SET)
    with AdminClient(address) as admin:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        admin.incremental_alter_configs({resource: [operation]}).all().result(300)


def produce(
    address: str, topic: str, records: Iterable[tuple[int, Seen]], settings: Mapping[str, object] | None = None
) -> None:
    """Produce records to partitions, with their own timestamps, and wait until all are acknowledged.

    One request at a time, and no retry of one that a busy broker answers late: so no record is doubled or reordered,
    as long as the broker lives. A test that kills brokers meanwhile sets ``enable.idempotence``. It is not the default,
    because librdkafka then waits half a second for each producer id.
    """
    failed: list[KafkaError] = []
    always = {
        "bootstrap.servers": address,
        "linger.ms": 5,
        "max.in.flight.requests.per.connection": 1,
        "request.timeout.ms": 60_000,
        "socket.timeout.ms": 60_000,
    }
    producer = Producer({**always, **(settings or {})})
    for partition, record in records:
        producer.produce(
            topic,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
            partition=partition,
            timestamp=record.timestamp,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failed, failed[:3]


def read(
    address: str, topic: str, counts: Mapping[int, int], *, timeout_s: float = 120, read_committed: bool = True
) -> dict[int, list[Seen]]:
    """Read partitions from their beginning until each has that many records or more, and to their ends then."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if read_committed else "read_uncommitted",
            "fetch.wait.max.ms": 50,
            "topic.metadata.propagation.max.ms": int(timeout_s * 1000),  # the topic may not exist yet
        }
    )
    assign_from_beginning(consumer, topic, counts)
    out: dict[int, list[Seen]] = {partition: [] for partition in counts}
    at_end: set[int] = set()
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and any(at not in at_end or len(out[at]) < count for at, count in counts.items()):
        message = consumer.poll(0.2)
        if message is None:
            continue
        error, partition = message.error(), message.partition() or 0
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            at_end.add(partition)
            continue
        at_end.discard(partition)
        headers: Any = tuple(message.headers() or ())
        out[partition].append(Seen(message.key(), message.value(), headers, message.timestamp()[1]))
    consumer.close()
    return out


def assign_from_beginning(consumer: Consumer, topic: str, partitions: Iterable[int]) -> None:
    """Assign partitions to a consumer, which knows their leaders already: otherwise it waits half a second for them."""
    consumer.list_topics(topic, 30)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])


def wait_for_records(
    address: str, topic: str, count: int, *, timeout_s: float = 60, alive: Callable[[], None] = lambda: None
) -> list[Record]:
    """Wait until a topic of one partition has that many records; returns all that are there."""
    connection = ControlConnection(ConnectionSettings.of((address,), {}, "klamm-test"))
    records: list[Record] = []

    def enough() -> bool:
        with contextlib.suppress(TopicGoneError, ConnectionLostError):
            records[:], _ = connection.read(topic, 0)
        return len(records) >= count

    try:
        wait_until(enough, timeout_s=timeout_s, what=f"{count} records in {topic}", interval_s=0.1, alive=alive)
    finally:
        connection.close()
    return records


def topic_configs(address: str, topic: str) -> dict[str, str]:
    """Return the configs that are set on a topic itself."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    with AdminClient(address) as admin:
        entries = admin.describe_configs([resource]).values()[resource].result(300).values()
    return {entry.name: entry.value or "" for entry in entries if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG}


def replica_counts(address: str, topic: str) -> list[int]:
    """Return the number of replicas of each partition."""
    with AdminClient(address) as admin:
        described = admin.describe_topics([topic]).values()[topic].result(300)
    return [len(partition.replicas) for partition in described.partitions]


def delete_records(address: str, topic: str, partition: int, *, before: int) -> None:
    """Delete the records before an offset."""
    purger = ConfluentAdmin({"bootstrap.servers": address})
    for outcome in purger.delete_records([TopicPartition(topic, partition, before)]).values():
        outcome.result(300)
