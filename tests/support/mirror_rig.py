"""Mirror between two clusters that are disturbed in many ways, the records written meanwhile, and a checker.

The checker shares nothing with the mirror: librdkafka writes and reads the records, and the acknowledgements of the
source determine which records must arrive.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.support.kafka import NO_PROPERTIES, KafkaCluster, KafkaNode
from tests.support.kafka_tools import run_tool
from tests.support.mirror import Seen, assign_from_beginning, create_topic
from tests.support.processes import free_port
from tests.support.security import sasl_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from confluent_kafka import Message

FIRST_TIMESTAMP_MS: Final = int(time.time() - 3_600) * 1_000
"""Timestamp of the first record.

Not far in the past: after a restart, Kafka forgets an idempotent producer whose last record is older than
``producer.id.expiration.ms`` by its timestamp, and appends a batch that is sent again a second time. The source itself
would then have repeated records.
"""
_AT_ONCE: Final = 100
"""Records for each topic that are written without a pause."""
_KEYS: Final = 97
_MISSING: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
_PATIENCE_S: Final = 900.0
"""Most seconds until a record reaches a source that may be unavailable for minutes."""


def record(number: int) -> Seen:
    """Return the record with a number. Two records differ in every part."""
    value = None if number % 13 == 0 else b"%d " % number + b"v" * (number % 300)
    headers = (("number", b"%d" % number), ("empty", None)) if number % 2 else (("number", b"%d" % number),)
    return Seen(b"k%d" % (number % _KEYS), value, headers, FIRST_TIMESTAMP_MS + number)


class GuardedCluster(KafkaCluster):
    """Nodes of Apache Kafka with one more listener, where the mirror logs in and ACLs and quotas count."""

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self.guarded_ports = {node_id: free_port() for node_id in self.nodes}

    @property
    def guarded_servers(self) -> str:
        """Addresses to which the mirror connects."""
        return ",".join(f"127.0.0.1:{port}" for port in self.guarded_ports.values())

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str] = NO_PROPERTIES) -> None:
        """Create a topic with a replica on every node, that loses no acknowledged record."""
        replicas = len(self.nodes)
        durable = {"retention.ms": "-1", "min.insync.replicas": str(min(2, replicas)), **configs}
        create_topic(self.bootstrap_servers, name, partitions, durable, replication=replicas)

    def _settings(self, node: KafkaNode, data: Path) -> dict[str, str]:
        settings = super()._settings(node, data)
        outside = f"OUTSIDE://127.0.0.1:{self.guarded_ports[node.node_id]}"
        return {
            **settings,
            **sasl_settings(listener="outside", authorizer=True),
            "listeners": f"{settings['listeners']},{outside}",
            "advertised.listeners": f"{settings['advertised.listeners']},{outside}",
            "listener.security.protocol.map": f"{settings['listener.security.protocol.map']},OUTSIDE:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",  # Kafka asks for a JAAS entry of each
            "inter.broker.listener.name": "PLAINTEXT",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "true",
            "quota.window.num": "3",
        }


class Writer:
    """Writes numbered records to every partition of some topics until it is closed, and keeps the order.

    Args:
        address: Of the source.
        partitions: How many each topic has; may be raised while it runs.
        per_second: Records for each topic.
    """

    def __init__(self, address: str, partitions: Mapping[str, int], *, per_second: int) -> None:
        self.partitions = dict(partitions)
        self.wanted: dict[tuple[str, int], list[Seen]] = {}
        """Written records by topic and partition."""
        self._per_second = per_second
        self._failed: list[KafkaError] = []
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": int(_PATIENCE_S * 1000),
                "compression.type": "lz4",
                "topic.metadata.refresh.interval.ms": 1_000,
                "log_level": 0,
            }
        )
        self._error: BaseException | None = None
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()

    def finish(self) -> None:
        """Stop writing, and wait until the source has acknowledged all records."""
        self._enough.set()
        self._thread.join()
        assert self._error is None, self._error
        assert self._producer.flush(_PATIENCE_S) == 0
        assert not self._failed, self._failed[:3]

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as error:  # noqa: BLE001 - raised by finish()
            self._error = error

    def _write(self) -> None:
        for number in itertools.count():
            if number % _AT_ONCE == 0 and self._enough.wait(_AT_ONCE / self._per_second):
                return
            for topic, count in list(self.partitions.items()):
                seen = record(number)
                self.wanted.setdefault((topic, number % count), []).append(seen)
                while not self._produce(topic, number % count, seen):
                    self._producer.poll(0.1)
            self._producer.poll(0)

    def _produce(self, topic: str, partition: int, seen: Seen) -> bool:
        try:
            self._producer.produce(
                topic,
                value=seen.value,
                key=seen.key,
                partition=partition,
                on_delivery=self._note,
                timestamp=seen.timestamp,
                headers=list(seen.headers),
            )
        except BufferError:
            return False
        except KafkaException as error:
            if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                raise
            return False  # it was just added
        return True

    def _note(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed.append(error)


def read_all(address: str, topic: str, partition: int, *, timeout_s: float = 120) -> list[Seen]:
    """Return the committed records of a partition, from its beginning to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "checker",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    out: list[Seen] = []
    try:
        deadline = time.monotonic() + timeout_s
        end = _end(consumer, TopicPartition(topic, partition), deadline)
        assign_from_beginning(consumer, topic, [partition])
        while end and consumer.position([TopicPartition(topic, partition)])[0].offset < end:
            assert time.monotonic() < deadline, f"an open transaction hides the end of {topic}-{partition}"
            for message in consumer.consume(10_000, 0.05):  # it waits so long, or for so many
                assert message.error() is None, message.error()
                headers: Any = tuple(message.headers() or ())
                out.append(Seen(message.key(), message.value(), headers, message.timestamp()[1]))
    finally:
        consumer.close()
    return out


def _end(consumer: Consumer, partition: TopicPartition, deadline: float) -> int:
    """Return the end offset of a partition, whose leader may be about to move."""
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, 20)[1])
        except KafkaException as error:
            if error.args[0].code() in _MISSING or time.monotonic() >= deadline:
                raise
        time.sleep(0.1)


def batches_of(directory: Path) -> str:
    """Return the batches of a partition as a node has them: offsets, producer, epoch, sequence and end markers."""
    segments = sorted(directory.glob("*.log"))
    if not segments:
        return "no segments\n"
    files = ",".join(map(str, segments))
    return run_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--skip-record-metadata", "--files", files
    )


class Verdict(NamedTuple):
    """Comparison of one partition."""

    lost: int
    repeated: int
    """Records that arrived more than once."""
    foreign: int
    """Records that were not written in this form: a key, a value, a header or a timestamp differs."""
    out_of_order: int
    """Records that first arrived after a later record."""
    repeats: int
    """Number of times that copying resumed at an earlier offset than it had reached."""

    def __str__(self) -> str:
        return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self._asdict().items())


def judge(wanted: Sequence[Seen], mirrored: Iterable[Seen]) -> Verdict:
    """Compare a partition of the target with the records written to its source."""
    place = {seen: at for at, seen in enumerate(wanted)}
    assert len(place) == len(wanted), "records have to be told apart"
    counts = Counter(mirrored := list(mirrored))
    firsts = [place[seen] for seen in dict.fromkeys(mirrored) if seen in place]
    order = [place[seen] for seen in mirrored if seen in place]
    return Verdict(
        lost=len(place.keys() - counts.keys()),
        repeated=sum(count - 1 for seen, count in counts.items() if seen in place),
        foreign=sum(count for seen, count in counts.items() if seen not in place),
        out_of_order=sum(after < before for before, after in itertools.pairwise(firsts)),
        repeats=sum(after <= before for before, after in itertools.pairwise(order)),
    )
