"""Reading of a source partition for its replicas, with a broker that runs each call at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast
from unittest.mock import create_autospec
from uuid import UUID

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.data.cluster import Cluster
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.copy.source_offset_store import SourceOffsetStore, StoredSourceOffsets
from klamm.mirror.replica.leader_partition import LeaderPartition
from klamm.mirror.replica.node import ReplicaNode
from klamm.mirror.replica.start import ReplicaCopy, ReplicaStart
from klamm.mirror.replica.window import Window
from tests.support.copiers import copy_settings


def test_response_without_batches_shows_that_a_disputed_log_does_not_diverge() -> None:
    leader = LeaderPartition("A.orders", UUID(int=7), 0, may_lose=True)
    leader.begin(0, 20)
    window = leader.tail = leader._disputed = Window(20, 3)
    node = cast("ReplicaNode", SimpleNamespace(post=lambda function, *args: function(*args)))
    copy = ReplicaCopy(PartitionId("orders", 0, "A.orders"), leader, window, node, {})
    assert leader.is_disputed

    copy.fetched(end_offset=20)
    copy.take(memoryview(b""), BufferPool(max_free_bytes=0).take(1), None)

    assert not leader.is_disputed


def test_partition_waits_while_source_names_former_leader() -> None:
    """Its log ends before the records that were mirrored, and the replicas must not be halted for that."""
    # given
    partition_id, key, topic_id = PartitionId("orders", 0, "A.orders"), ("orders", 0), UUID(int=7)
    source, store, node = (create_autospec(each, instance=True) for each in (Cluster, SourceOffsetStore, ReplicaNode))
    source.cluster_id = "c"
    source.topic_id.return_value, source.leader_epoch.return_value = topic_id, 5
    source.log_bounds.return_value = {key: range(900)}
    store.read.return_value = StoredSourceOffsets({key: 999}, {key: 7}, {key: topic_id}, "c")
    start = ReplicaStart(copy_settings("a:1", "b:1", alias="A"), source, source, store, node=node, active={})
    # when
    copies = start.copies([partition_id])
    # then
    assert copies == []
    assert "the source names leader epoch 5 of orders-0" in start.reasons[partition_id]
    node.call.assert_not_called()
