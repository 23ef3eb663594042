"""A cluster of three nodes that loses one of them for longer than a session timeout; in ``make soak`` each in turn."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from unittest.mock import create_autospec

import pytest

from klamm.admin import (
    AdminClient,
    AlterConfigOp,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetAndMetadata,
    OpType,
    ResourceType,
    TopicPartition,
)
from klamm.kafka_client.data.cluster import Cluster
from klamm.mirror.copy import transactions
from klamm.mirror.copy.copier import Copier
from klamm.mirror.copy.partition import PartitionId
from klamm.protocol.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError
from tests.support.copiers import copy_settings, is_done, run_until
from tests.support.exactly_once import assert_exactly_once
from tests.support.mirror import Seen, create_topic, produce, read, wait_for_partitions
from tests.support.processes import wait_until
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.mirror.progress.partition_progress import PartitionProgress
    from tests.support.kafka import KafkaCluster

pytestmark = pytest.mark.long

YEAR_2013 = 1_356_998_400_000
IS_SOAK = bool(os.environ.get("KLAMM_SOAK"))
AWAY_S = 15.0 if IS_SOAK else 6.0
"""Longer than the session of a node lasts, which is 4 s here."""
LOST = (1, 2, 3) if IS_SOAK else (1,)
"""Ids of the nodes that are lost, one after the other."""
PARTITIONS = 6
ALIAS = unique("L")
TOPIC = f"lost-{ALIAS}"
GROUP = f"readers-{ALIAS}"
REMOTE_TOPIC = f"{ALIAS}.{TOPIC}"
POSITIONS = f"mm2-offsets.{ALIAS}.internal"
REPLICAS = {"retention.ms": "-1"}
CALL_TIMEOUT_S = 90
PAUSE_S = 0.2
"""Seconds between two rounds of admin calls, and between two batches of records."""


class _AdminCalls:
    """One admin client that keeps making calls of every kind and records the failures."""

    def __init__(self, address: str, topic: str) -> None:
        self._address = address
        self._topic = topic
        self.failures: list[str] = []
        self.done = 0

    def run(self, ending: threading.Event) -> None:
        partition = TopicPartition(self._topic, 0)
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        with AdminClient(self._address, timeout_ms=CALL_TIMEOUT_S * 1000) as admin:

            def alter(number: int) -> object:
                operation = AlterConfigOp(ConfigEntry("segment.ms", str(1_000_000 + number)), OpType.SET)
                return admin.incremental_alter_configs({resource: [operation]}).all()

            def create(number: int) -> object:
                return admin.create_topics([NewTopic(name=f"made-{ALIAS}-{number}", replication_factor=3)]).all()

            def commit(number: int) -> object:
                return admin.alter_group_offsets(GROUP, {partition: OffsetAndMetadata(offset=number)}).all()

            calls: list[Callable[[int], object]] = [
                create,
                alter,
                commit,
                lambda _: admin.list_group_offsets({GROUP: None}).all(),
                lambda _: admin.list_groups(),
                lambda _: admin.describe_cluster(),
                lambda _: admin.list_offsets({TopicPartition(self._topic, at): -1 for at in range(PARTITIONS)}).all(),
            ]
            number = 0
            while not ending.wait(PAUSE_S):
                number += 1
                for call in calls:
                    self._try(call, number)

    def _try(self, call: Callable[[int], object], number: int) -> None:
        try:
            call(number).result(2 * CALL_TIMEOUT_S)  # type: ignore[attr-defined]
        except TopicAlreadyExistsError:  # made by an attempt whose response was lost with its node, as in Java's client
            self.done += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, the test fails with it
            self.failures.append(f"{call}: {type(error).__name__}: {error}")
        else:
            self.done += 1


def _wait_for_all_replicas(address: str, topics: list[str]) -> None:
    """Wait until every replica is in sync again. The next node to be lost is then never the last one in sync."""

    def are_in_sync() -> bool:
        try:
            described = admin.describe_topics(topics).result(CALL_TIMEOUT_S)
        except UnknownTopicOrPartitionError:  # the node that is asked has not heard of the topic of groups
            return False
        return all(len(each.isr) == len(each.replicas) for topic in described.values() for each in topic.partitions)

    with AdminClient(address) as admin:
        wait_until(are_in_sync, timeout_s=300, what="all replicas in sync", interval_s=0.2)


def test_admin_calls_and_a_copier_survive_the_loss_of_a_node(real_kafka_3: KafkaCluster) -> None:
    """The leader of two partitions of each topic is lost while calls are made and records are copied."""
    # given
    address = real_kafka_3.bootstrap_servers
    for name, count in ((TOPIC, PARTITIONS), (REMOTE_TOPIC, PARTITIONS), (POSITIONS, 5)):
        create_topic(address, name, count, REPLICAS, replication=3)
        wait_for_partitions(address, name, count)
    partitions = [PartitionId(TOPIC, at, REMOTE_TOPIC) for at in range(PARTITIONS)]
    calls = _AdminCalls(address, TOPIC)
    written: dict[int, list[Seen]] = {at: [] for at in range(PARTITIONS)}
    ending = threading.Event()

    def write() -> None:
        # Without idempotence, a batch whose acknowledgement was lost with its node would be in the source twice.
        settings = {"delivery.timeout.ms": 55_000, "enable.idempotence": True}
        number = 0
        while not ending.wait(PAUSE_S):
            batch = [(at, Seen(None, b"%d" % (number + at), (), YEAR_2013)) for at in range(PARTITIONS)]
            produce(address, TOPIC, batch, settings)
            for at, record in batch:
                written[at].append(record)
            number += PARTITIONS

    def copy() -> None:
        copier = Copier(copy_settings(address, address, alias=ALIAS), partitions)
        with contextlib.closing(copier):
            run_until(copier, ending.is_set, timeout_s=1800)
            run_until(copier, lambda: writer.done() and _has_all(copier), timeout_s=300)

    def _has_all(copier: Copier) -> bool:
        return all(is_done(row) and row.next_offset == len(written[row.partition]) for row in copier.progress())

    # when
    with ThreadPoolExecutor(3) as threads:
        writer = threads.submit(write)
        others = [threads.submit(calls.run, ending), threads.submit(copy)]
        try:
            for node in (real_kafka_3.nodes[node_id] for node_id in LOST):
                node.kill()
                time.sleep(AWAY_S)
                node.start(expected_nodes=3)
                _wait_for_all_replicas(address, [TOPIC, REMOTE_TOPIC, POSITIONS, "__consumer_offsets"])
        finally:
            ending.set()
    # then
    for running in (writer, *others):
        running.result()
    assert not calls.failures, calls.failures[:5]
    assert calls.done >= 7 * len(LOST)  # each kind of call for each loss
    assert read(address, REMOTE_TOPIC, {at: len(records) for at, records in written.items()}) == written


def test_partition_below_min_insync_replicas_is_reported_with_its_dependents(
    real_kafka_3: KafkaCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata are not requested repeatedly in that time, and afterwards every record arrives exactly once."""
    # given
    address = real_kafka_3.bootstrap_servers
    monkeypatch.setattr(transactions, "_CLOSING_S", 3.0)
    lasting, lost = (1,), 2
    alias = unique("S")
    names = f"sick-{alias}", f"sound-{alias}"
    remote_sick, remote_sound = (f"{alias}.{name}" for name in names)
    assignments = {**dict.fromkeys(names, lasting), remote_sick: (1, lost), remote_sound: lasting}
    with AdminClient(address) as admin:
        new = [
            NewTopic(name=name, replicas_assignments={0: nodes}, configs={**REPLICAS, "min.insync.replicas": "2"})
            for name, nodes in {**assignments, f"mm2-offsets.{alias}.internal": lasting}.items()
        ]
        admin.create_topics(new).all().result(300)
    for name in assignments:
        wait_for_partitions(address, name, 1)
    sick, sound = (PartitionId(name, 0, f"{alias}.{name}") for name in names)
    records = [Seen(None, b"%d" % number, (), YEAR_2013) for number in range(20)]
    real_kafka_3.nodes[lost].kill()
    for partition in (sick, sound):
        produce(address, partition.topic, [(0, record) for record in records])
    refresh = create_autospec(Cluster.refresh, side_effect=Cluster.refresh)
    monkeypatch.setattr(Cluster, "refresh", refresh)
    copier = Copier(copy_settings(address, address, alias=alias, shards=1), [sick, sound])

    def by_topic() -> dict[str, PartitionProgress]:
        return {row.topic: row for row in copier.progress()}

    with contextlib.closing(copier):
        # when
        run_until(copier, lambda: "NOT_ENOUGH_REPLICAS" in by_topic()[sick.topic].reason)
        produce(address, sound.topic, [(0, record) for record in records])
        rejection = f"{remote_sick}-0: the target rejected records: NOT_ENOUGH_REPLICAS"
        run_until(copier, lambda: all(rejection in row.reason for row in copier.progress()))
        # then
        assert f"Other partitions of transactional id {alias}-mm2-klamm-{alias}-1-0 that had to wait: 1" in caplog.text
        # when
        refresh.reset_mock()
        until = time.monotonic() + 3
        run_until(copier, lambda: time.monotonic() > until)
        # then
        assert refresh.call_count < 6
        # when
        real_kafka_3.nodes[lost].start(expected_nodes=3)
        run_until(copier, lambda: all(map(is_done, copier.progress())))
    assert_exactly_once(address, remote_sick, {0: records})
    assert_exactly_once(address, remote_sound, {0: records * 2})
