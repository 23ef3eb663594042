"""Metadata of a cluster of which one broker has stale metadata. No network: the test opens the connections."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data import cluster as module
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.messages.metadata import MetadataResponse
from klamm.protocol.primitives import ZERO_UUID

TOPIC_ID = UUID(int=7)


class Rig:
    """Connections to a cluster of three brokers, of which ``h1`` is the bootstrap server, and their answers."""

    def __init__(self) -> None:
        self.leader, self.leader_epoch = 1, 5
        self.topic_id = TOPIC_ID
        self.unreachable: set[str] = set()
        self.attempts: list[str] = []
        settings = ConnectionSettings(bootstrap_servers=("h1:1",), client_id="test")
        self.cluster = Cluster(settings, BufferPool(max_free_bytes=0))

    def open(self, host: str, *_: object) -> Any:
        self.attempts.append(host)
        if host in self.unreachable:
            raise ConnectionLostError(f"{host}: timed out")
        return Mock(closed=False, login_due_at=math.inf, round_trip_s=0.001, call=self.call)

    def call(self, *_: object, **__: object) -> MetadataResponse:
        brokers = [MetadataResponse.MetadataResponseBroker(node_id=at, host=f"h{at}", port=1) for at in (1, 2, 3)]
        partition = MetadataResponse.MetadataResponsePartition(
            partition_index=0, leader_id=self.leader, leader_epoch=self.leader_epoch
        )
        topic = MetadataResponse.MetadataResponseTopic(name="t", topic_id=self.topic_id, partitions=[partition])
        return MetadataResponse(brokers=brokers, topics=[topic])


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    made = Rig()
    monkeypatch.setattr(module, "open_connection", made.open)
    monkeypatch.setattr(module, "_TURN_S", 0.0)
    return made


def test_refreshes_take_turns_between_brokers(rig: Rig) -> None:
    for _ in range(4):
        rig.cluster.refresh(["t"])
    assert rig.attempts == ["h1", "h2", "h3", "h1"]


def test_refreshes_within_some_time_use_one_connection(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TURN_S", 1000.0)
    for _ in range(4):
        rig.cluster.refresh(["t"])
    assert rig.attempts == ["h1"]


def test_unreachable_broker_loses_its_turn(rig: Rig) -> None:
    rig.unreachable = {"h2"}
    for _ in range(3):
        rig.cluster.refresh(["t"])
    assert rig.attempts == ["h1", "h2", "h3"]
    assert rig.cluster.leader("t", 0) == 1


@pytest.mark.parametrize(
    ("topic_id", "leader", "leader_epoch"),
    [
        (TOPIC_ID, 2, 7),  # the answer is that of a broker with stale metadata
        (UUID(int=8), 1, 5),  # the topic was created again
    ],
)
def test_older_leader_epoch_of_same_topic_leaves_leader(
    rig: Rig, topic_id: UUID, leader: int, leader_epoch: int
) -> None:
    # given
    rig.leader, rig.leader_epoch = 2, 7
    rig.cluster.refresh(["t"])
    # when
    rig.leader, rig.leader_epoch, rig.topic_id = 1, 5, topic_id
    rig.cluster.refresh(["t"])
    # then
    assert (rig.cluster.leader("t", 0), rig.cluster.leader_epoch("t", 0)) == (leader, leader_epoch)


def test_older_leader_epoch_without_topic_id_counts(rig: Rig) -> None:
    """Before Kafka 2.8, the topic may have been created again."""
    # given
    rig.leader, rig.leader_epoch, rig.topic_id = 2, 7, ZERO_UUID
    rig.cluster.refresh(["t"])
    # when
    rig.leader, rig.leader_epoch = 1, 5
    rig.cluster.refresh(["t"])
    # then
    assert (rig.cluster.leader("t", 0), rig.cluster.leader_epoch("t", 0)) == (1, 5)
