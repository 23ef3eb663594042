"""A flow with its own offsets topic (KIP-618): missing source offsets are copied from the worker's topic."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer

import klamm
from klamm.admin import AdminClient, OffsetSpec, TopicPartition
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.copy.source_offset_store import SourceOffsetStore, StoredSourceOffsets
from klamm.mirror.records.source_offsets import (
    ShardPlan,
    SourcePartition,
    cluster_id_key,
    cluster_id_value,
    key_bytes,
    shard_plan_key,
    shard_plan_value,
    topic_id_key,
    topic_id_value,
    value_bytes,
)
from klamm.mirror.records.worker_offsets import copy_worker_offsets, mirrored_offsets
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.status.verify import verify_flow
from klamm.properties import parse_properties
from klamm.protocol.partitioner import partition_for_key
from tests.support.mirror import Seen, create_topic, produce, properties, read
from tests.support.mirror_groups import Copying
from tests.support.mirrormaker import java_virtual_machine
from tests.support.record_times import RECENT_MS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.mirror.settings.flow import FlowSettings

COMPACTED = {"cleanup.policy": "compact"}
PARTITIONS = 3
OLD, NEW = UUID(int=1), UUID(int=2)


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with klamm.Broker() as broker:
        yield broker.bootstrap_servers


class Topics:
    """The worker's topic and the flow's own, of one run of a test: all share the target."""

    def __init__(self, target: str, name: str) -> None:
        self.target, self.name = target, f"{name}-{uuid4().hex[:6]}"
        self.workers, self.own = f"{self.name}-workers", f"{self.name}-own"
        for topic in (self.workers, self.own):
            create_topic(target, topic, PARTITIONS, COMPACTED)

    def flow(self, source: str = "a:1", topics: str = "x") -> FlowSettings:
        more = f"offset.storage.topic = {self.workers}\nA->B.offsets.storage.topic = {self.own}\n"
        (flow,) = parse_settings(parse_properties(properties(source, self.target, more, topics=topics))).flows
        return flow

    def write(self, topic: str, *records: tuple[bytes, bytes | None]) -> None:
        seen = ((partition_for_key(key, PARTITIONS), Seen(key, value, (), RECENT_MS)) for key, value in records)
        produce(self.target, topic, seen)

    def stored(self) -> StoredSourceOffsets:
        """What the copying of the flow finds."""
        settings = ConnectionSettings.of((self.target,), {}, "test")
        with contextlib.closing(
            SourceOffsetStore(settings, BufferPool(max_free_bytes=1_000_000), topic=self.own, source_alias="A")
        ) as store:
            return store.read()

    def written(self) -> int:
        """How many records the flow's own topic has."""
        ends = {TopicPartition(self.own, number): OffsetSpec.LATEST for number in range(PARTITIONS)}
        with AdminClient(self.target) as admin:
            return sum(found.offset for found in admin.list_offsets(ends).all().result(300).values())


def at(topic: str, offset: int | None, *, cluster: str = "A", partition: int = 0) -> tuple[bytes, bytes | None]:
    return key_bytes(SourcePartition(cluster, topic, partition)), None if offset is None else value_bytes(offset)


def topic_id(topic: str, value: UUID) -> tuple[bytes, bytes]:
    return topic_id_key(SourcePartition("A", topic, 0)), topic_id_value(value)


def plan(shards: int) -> tuple[bytes, bytes]:
    return shard_plan_key("A"), shard_plan_value(ShardPlan(shards))


def test_worker_topic_supplies_missing_source_offsets(target: str) -> None:
    """K894-38: as Kafka's ConnectorOffsetBackingStore describes it."""
    # given
    topics = Topics(target, "counts")
    topics.write(topics.workers, at("both", 4), at("both", 5), at("workers", 6), at("removed", 7), at("fresh", -1))
    topics.write(topics.workers, at("gone", 8), at("gone", None), at("elsewhere", 9, cluster="C"))
    topics.write(topics.own, at("both", 50), at("own", 60), at("removed", 70), at("removed", None))
    # when
    copy_worker_offsets(topics.flow())
    # then
    first = topics.written()
    assert topics.stored().offsets == {
        ("both", 0): 50,
        ("own", 0): 60,
        ("workers", 0): 6,
        ("fresh", 0): -1,
    }
    copy_worker_offsets(topics.flow())
    assert topics.written() == first == 6


def test_own_records_are_copied_with_source_offsets(target: str) -> None:
    """The id of a topic belongs to the position beside which it was written, not to a later one."""
    # given
    topics = Topics(target, "beside")
    topics.write(topics.workers, at("both", 5), topic_id("both", OLD), at("workers", 6), topic_id("workers", NEW))
    topics.write(topics.workers, plan(3), (cluster_id_key("A"), cluster_id_value("first")))
    topics.write(topics.own, at("both", 50))
    # when
    copy_worker_offsets(topics.flow())
    # then
    stored = topics.stored()
    assert stored.topic_ids == {("workers", 0): NEW}
    assert (stored.shard_plan, stored.cluster_id) == (ShardPlan(3), "first")
    # when both have a plan
    topics.write(topics.own, plan(5))
    copy_worker_offsets(topics.flow())
    # then
    assert topics.stored().shard_plan == ShardPlan(5)


def test_missing_worker_topic_copies_no_offsets(target: str) -> None:
    more = "offset.storage.topic = nowhere\nA->B.offsets.storage.topic = not-there-yet\n"
    (flow,) = parse_settings(parse_properties(properties("a:1", target, more, topics="x"))).flows
    copy_worker_offsets(flow)


def test_open_transaction_delays_copy_only_if_offsets_are_missing(target: str) -> None:
    # given
    topics = Topics(target, "hidden")
    topics.write(topics.workers, at("both", 5))
    topics.write(topics.own, at("both", 50))
    producer = Producer({"bootstrap.servers": target, "transactional.id": topics.name})
    producer.init_transactions(10)
    producer.begin_transaction()
    key, value = at("workers", 60)
    producer.produce(topics.own, key=key, value=value, partition=partition_for_key(key, PARTITIONS))
    assert producer.flush(10) == 0
    # then
    copy_worker_offsets(topics.flow())
    topics.write(topics.workers, at("workers", 6))
    with pytest.raises(ConnectionLostError, match=f"An open transaction hides source offsets in {topics.own}"):
        copy_worker_offsets(topics.flow())
    # when
    producer.commit_transaction(10)
    copy_worker_offsets(topics.flow())
    # then
    assert topics.stored().offsets == {("both", 0): 50, ("workers", 0): 60}


def test_worker_topic_ahead_is_logged(target: str, caplog: pytest.LogCaptureFixture) -> None:
    """The flow was mirrored without the key in between, so records will be repeated."""
    # given
    topics = Topics(target, "ahead")
    topics.write(topics.workers, at("orders", 500), at("users", 5))
    topics.write(topics.own, at("orders", 50), at("users", 5))
    # when
    with caplog.at_level(logging.WARNING):
        copy_worker_offsets(topics.flow())
    # then
    told = (
        f"A->B: 1 source offsets in {topics.workers} are ahead of those in {topics.own}, for example that of orders-0"
    )
    assert told in caplog.text
    assert topics.stored().offsets == {("orders", 0): 50, ("users", 0): 5}


def test_flow_with_new_own_topic_resumes(target: str) -> None:
    """K894-38: no record is lost or comes twice."""
    with klamm.Broker() as source:
        # given
        here, topic = source.bootstrap_servers, f"moved-{uuid4().hex[:6]}"
        create_topic(here, topic, 2, {"retention.ms": "-1"})
        workers = properties(here, target, topics=topic)
        own = workers + f"A->B.offsets.storage.topic = {topic}-own\n"
        records = [Seen(b"k", b"%d" % number, (), RECENT_MS) for number in range(60)]
        for file, some in ((workers, records[:20]), (own, records[20:40]), (own, records[40:])):
            # when
            produce(here, topic, ((partition, record) for record in some for partition in (0, 1)))
            with Copying(parse_settings(parse_properties(file)).flows[0]) as copying:
                copying.wait_for(2 * (records.index(some[-1]) + 1))
    # then
    assert read(target, f"A.{topic}", {0: 60, 1: 60}) == {0: records, 1: records}


def test_verify_reads_missing_source_offsets_from_worker_topic(target: str) -> None:
    """As for a flow that starts now. Nothing is written, and removed source offsets do not count."""
    with klamm.Broker() as source:
        # given
        topics = Topics(target, "verified")
        topic = topics.name
        flow = topics.flow(source.bootstrap_servers, topic)
        records = [Seen(b"k", b"%d" % number, (), RECENT_MS) for number in range(10)]
        for address, name in ((source.bootstrap_servers, topic), (target, f"A.{topic}")):
            create_topic(address, name, 3, {"retention.ms": "-1"})
            produce(address, name, ((partition, record) for record in records for partition in range(3)))
        topics.write(topics.workers, at(topic, 9, partition=0), at(topic, 9, partition=1))
        topics.write(topics.workers, at(topic, 3, partition=2), at("elsewhere", 9, cluster="C"))
        topics.write(topics.own, at(topic, 4, partition=1))
        topics.write(topics.own, at(topic, 5, partition=2), at(topic, None, partition=2))
        before = topics.written()
        # when
        verdicts = {verdict.partition: verdict for verdict in verify_flow(flow)}
    # then
    assert {partition: verdict.mirrored for partition, verdict in verdicts.items()} == {0: 10, 1: 5, 2: -1}
    assert not verdicts[0].problem
    assert verdicts[0].findings is not None
    assert verdicts[0].findings.same == 10
    assert "there is no source offset for them" in verdicts[2].problem
    assert topics.written() == before


def test_missing_source_offsets_are_not_zero(target: str) -> None:
    more = "offset.storage.topic = nowhere\nA->B.offsets.storage.topic = not-there-yet\n"
    (flow,) = parse_settings(parse_properties(properties("a:1", target, more, topics="x"))).flows
    with pytest.raises(ConnectionLostError, match="not-there-yet does not exist yet on the target"):
        mirrored_offsets(flow)


@pytest.mark.long
def test_offsets_in_own_topic_outrank_those_of_worker_as_in_kafka(java: None, target: str) -> None:
    """K894-27: the key counts behind ``A->B.`` only; Kafka 4.1 also loses what only the worker's topic has."""
    # given
    topics = Topics(target, "oracle")
    topics.write(topics.workers, at("both", 5), at("workers", 6))
    topics.write(topics.own, at("both", 50), at("own", 60))
    with java_virtual_machine() as jvm:
        # when
        connect = _Connect(jvm, topics)
        # then
        assert connect.places_that_count() == ["A->B."]
        found = connect.positions(["both", "own", "workers"])
    assert found == {"both": 50, "own": 60, "workers": None}


class _Connect:
    """Connect's stores of positions, as a worker makes them for a connector with a topic of its own."""

    def __init__(self, jvm: Any, topics: Topics) -> None:
        self._jvm, self._topics, self._connect = jvm, topics, jvm.org.apache.kafka.connect
        self._file = {
            "clusters": "A,B",
            "A.bootstrap.servers": "a:1",
            "B.bootstrap.servers": topics.target,
            "A->B.enabled": "true",
            "offset.storage.topic": topics.workers,
            "offset.storage.replication.factor": "1",
            "plugin.discovery": "service_load",
        }
        self._pair = self._connect.mirror.SourceAndTarget("A", "B")

    def places_that_count(self) -> list[str]:
        """Return what before the key makes it one of the connector's."""
        connector = self._jvm.java.lang.Class.forName("org.apache.kafka.connect.mirror.MirrorSourceConnector")
        found = []
        for place in ("", "A.", "B.", "A->B.", "A->B.target.", "B->A."):
            config = self._connect.mirror.MirrorMakerConfig({**self._file, f"{place}offsets.storage.topic": "own"})
            if config.connectorBaseConfig(self._pair, connector).get("offsets.storage.topic") == "own":
                found.append(place)
        return found

    def positions(self, names: list[str]) -> dict[str, int | None]:
        """Return the source offsets that a task of the connector reads."""
        workers, _ = self._store(self._topics.workers)
        own, admin = self._store(self._topics.own)
        store = self._connect.storage.ConnectorOffsetBackingStore.withConnectorAndWorkerStores(
            self._supplier(), workers, own, self._topics.own, admin
        )
        workers.start()
        store.start()
        keys = self._jvm.java.util.ArrayList()
        for name in names:
            keys.add(self._jvm.java.nio.ByteBuffer.wrap(at(name, 0)[0]))
        found = store.get(keys).get()
        values = [found.get(key) for key in keys]
        store.stop()
        workers.stop()
        wanted = {value_bytes(offset): offset for offset in (5, 6, 50, 60)}
        return {
            name: None if value is None else wanted[bytes(value.array())]
            for name, value in zip(names, values, strict=True)
        }

    def _store(self, topic: str) -> tuple[Any, Any]:
        clients = {"bootstrap.servers": self._topics.target}
        reader = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
        deserializers = {"key.deserializer": reader, "value.deserializer": reader, "auto.offset.reset": "earliest"}
        consumer = self._jvm.org.apache.kafka.clients.consumer.KafkaConsumer(self._map({**clients, **deserializers}))
        admin = self._connect.util.TopicAdmin(self._map(clients))
        converter = self._connect.json.JsonConverter()
        converter.configure({"schemas.enable": "false"}, True)
        store = self._connect.storage.KafkaOffsetBackingStore.readOnlyStore(topic, consumer, admin, converter)
        config = self._connect.mirror.MirrorMakerConfig(self._file).workerConfig(self._pair)
        store.configure(self._connect.runtime.distributed.DistributedConfig(config))
        return store, admin

    def _map(self, values: dict[str, str]) -> Any:
        out = self._jvm.java.util.HashMap()
        for key, value in values.items():
            out.put(key, value)
        return out

    def _supplier(self) -> Any:
        """Return a Java Supplier that is never called."""
        classes, invoke = self._jvm.java.lang.Class, self._jvm.java.lang.invoke
        nothing = invoke.MethodHandles.constant(classes.forName("java.lang.Object"), None)
        supplier = classes.forName("java.util.function.Supplier")
        return invoke.MethodHandleProxies.asInterfaceInstance(supplier, nothing)
