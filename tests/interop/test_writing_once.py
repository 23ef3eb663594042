"""Tasks of the sink without Spark: repeated batches, fenced tasks, and rejected records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

import klamm
from klamm.admin import Acl, AclOperation, AclPermission, AclResourceType, AdminClient, NewTopic, PatternType
from klamm.dataframes.batch_transaction import BatchTransaction
from klamm.dataframes.errors import WritingError
from klamm.dataframes.options import WriteOptions, write_options
from klamm.dataframes.rows import rows_of
from klamm.dataframes.writer import RecordWriter, TargetCluster
from tests.support.long_tests import long_only
from tests.support.mirror import create_topic, read
from tests.support.record_times import RECENT_MS
from tests.support.security import PASSWORDS, PLAIN_MODULE, sasl_settings
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.dataframes.rows import Rows
    from tests.support.kafka import KafkaCluster

FOREVER = {"retention.ms": "-1"}
"""The records are old."""


@pytest.fixture(scope="module", params=["klamm", *long_only("kafka")])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "kafka":
        cluster: KafkaCluster = request.getfixturevalue("real_kafka")
        yield cluster.bootstrap_servers
    else:
        with klamm.Broker() as broker:
            yield broker.bootstrap_servers


def options(address: str, **more: str) -> WriteOptions:
    properties = {"kafka.bootstrap.servers": address, **{name.replace("_", "."): value for name, value in more.items()}}
    return write_options(properties, streaming=True, overwrite=False)


def row(topic: str, partition: int | None, key: bytes | None, value: bytes) -> Rows:
    columns = {
        "key": pa.array([key], pa.binary()),
        "value": pa.array([value], pa.binary()),
        "partition": pa.array([partition], pa.int32()),
        "timestamp": pa.array([RECENT_MS * 1000], pa.timestamp("us", tz="UTC")),
    }
    return rows_of(pa.RecordBatch.from_pydict(columns), topic)


class Task:
    """One task of a stream, executed step by step. It ends when the test stops calling it."""

    def __init__(self, address: str, topic: str, batch_id: int, *, task: int = 0, query: str = "q") -> None:
        target_options = options(address)
        self.topic = topic
        self.target = TargetCluster(target_options)
        self.transaction = BatchTransaction(
            self.target, target_options, query_id=f"{topic}-{query}", task=task, batch_id=batch_id
        )
        self.transaction.begin()
        if not self.transaction.is_written:
            self.writer = RecordWriter(self.target, target_options, transaction=self.transaction)

    def write(self, *values: bytes) -> None:
        for value in values:
            self.writer.write(row(self.topic, 0, b"k", value))
        self.writer.flush()

    def commit(self, records: int) -> None:
        self.transaction.commit((self.topic, 0), records)

    def close(self) -> None:
        self.target.close()


def committed(address: str, topic: str, count: int) -> list[bytes | None]:
    return [record.value for record in read(address, topic, {0: count})[0]]


def test_repeated_batch_is_recognized_after_commit(address: str) -> None:
    # given
    topic = unique("known-")
    create_topic(address, topic, 1, FOREVER)
    first = Task(address, topic, 7)
    first.write(b"a", b"b")
    first.commit(2)
    # when the same is repeated, after a crash
    again = Task(address, topic, 7)
    # then
    assert again.transaction.is_written
    again.transaction.check_repeated(2)
    with pytest.raises(WritingError, match="2 records were written before, and now it would be 3"):
        again.transaction.check_repeated(3)
    # when it goes on
    after = Task(address, topic, 9)
    assert not after.transaction.is_written
    after.write(b"c")
    after.commit(1)
    # and when an older checkpoint is restored
    with pytest.raises(WritingError, match="batch 7 must be written, but 9 was written before it"):
        Task(address, topic, 7)
    # then other tasks and queries have numbers of their own
    assert not Task(address, topic, 7, task=1).transaction.is_written
    assert not Task(address, topic, 7, query="other").transaction.is_written
    assert committed(address, topic, 3) == [b"a", b"b", b"c"]
    for task in (first, again, after):
        task.close()


def test_uncommitted_records_of_a_task_are_hidden_and_it_is_fenced(address: str) -> None:
    # given
    topic = unique("fenced-")
    create_topic(address, topic, 1, FOREVER)
    dead = Task(address, topic, 0)
    dead.write(b"never")
    # when
    successor = Task(address, topic, 0)
    successor.write(b"once")
    # then
    with pytest.raises(WritingError, match=rf"{topic}.*(PRODUCER_FENCED|INVALID_PRODUCER_EPOCH)"):
        dead.write(b"neither")
    with pytest.raises(WritingError):
        dead.commit(1)
    successor.commit(1)
    assert committed(address, topic, 1) == [b"once"]
    dead.close()
    successor.close()


def plain_writer(target_options: WriteOptions) -> tuple[RecordWriter, TargetCluster]:
    target = TargetCluster(target_options)
    return RecordWriter(target, target_options), target


def test_batches_are_split_to_topic_limit_and_oversized_record_is_reported(address: str) -> None:
    # given
    topic = unique("narrow-")
    create_topic(address, topic, 2, {"max.message.bytes": "20000", **FOREVER})
    writer, target = plain_writer(options(address, exactlyOnce="false"))
    # when
    for at in range(100):
        writer.write(row(topic, at % 2, None, b"%d" % at + bytes(900)))
    writer.flush()
    # then
    records = read(address, topic, {0: 50, 1: 50})
    assert [int((record.value or b"").rstrip(b"\0")) for record in records[0]] == list(range(0, 100, 2))
    assert [int((record.value or b"").rstrip(b"\0")) for record in records[1]] == list(range(1, 100, 2))
    # when
    writer.write(row(topic, 1, b"k", bytes(30_000)))
    with pytest.raises(WritingError, match=rf"{topic}-1: a record of 30,001 bytes exceeds max.message.bytes"):
        writer.flush()
    target.close()


def test_missing_topic_or_partition_and_rejected_record_are_reported(address: str) -> None:
    topic = unique("tidy-")
    create_topic(address, topic, 1, {"cleanup.policy": "compact"})
    writer, target = plain_writer(options(address, exactlyOnce="false"))
    with pytest.raises(WritingError, match="nowhere: not a topic on"):
        writer.write(row("nowhere", None, b"k", b"v"))
    with pytest.raises(WritingError, match=f"{topic} has no partition 3, only 1"):
        writer.write(row(topic, 3, b"k", b"v"))
    writer.write(row(topic, None, None, b"v"))
    with pytest.raises(WritingError, match="INVALID_RECORD: a compacted topic rejects records without a key"):
        writer.flush()
    target.close()


def test_missing_acl_is_reported_at_once() -> None:
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=sasl_settings(authorizer=True)) as broker:
        # given
        servers = broker.bootstrap_servers
        name = next(user for user in PASSWORDS if user != "admin")
        login: dict[str, Any] = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "admin",
        }
        with AdminClient(servers, **login, sasl_plain_password=PASSWORDS["admin"]) as admin:
            admin.create_topics([NewTopic(name="guarded", num_partitions=1, replication_factor=1)]).all().result(300)

            def allow(kind: AclResourceType, operation: AclOperation, resource: str) -> None:
                acl = Acl(
                    resource_type=kind,
                    resource_name=resource,
                    pattern_type=PatternType.PREFIXED,
                    principal=f"User:{name}",
                    host="*",
                    operation=operation,
                    permission=AclPermission.ALLOW,
                )
                admin.create_acls([acl]).all().result(300)

            properties = {
                "kafka.bootstrap.servers": servers,
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.jaas.config": f'{PLAIN_MODULE} required username="{name}" password="{PASSWORDS[name]}";',
            }
            target_options = write_options(properties, streaming=True, overwrite=False)
            target = TargetCluster(target_options)
            transaction = BatchTransaction(target, target_options, query_id="q", task=0, batch_id=0)
            # then, right by right
            allow(AclResourceType.TOPIC, AclOperation.DESCRIBE, "guarded")
            with pytest.raises(WritingError, match="transactional id klamm-kafka-q-0: TRANSACTIONAL_ID_AUTH"):
                transaction.begin()
            allow(AclResourceType.TRANSACTIONAL_ID, AclOperation.WRITE, "klamm-kafka")
            with pytest.raises(WritingError, match="group klamm-kafka-q-0: GROUP_AUTHORIZATION_FAILED"):
                transaction.begin()
            allow(AclResourceType.GROUP, AclOperation.READ, "klamm-kafka")
            transaction.begin()
            with pytest.raises(WritingError, match="guarded: TOPIC_AUTHORIZATION_FAILED: the principal may not write"):
                transaction.add([("guarded", 0)])
            target.close()
