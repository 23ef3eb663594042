"""Reading of a source partition for its replicas, with a broker that runs each call at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast
from uuid import UUID

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.replica.leader_partition import LeaderPartition
from klamm.mirror.replica.start import ReplicaCopy
from klamm.mirror.replica.window import Window

if TYPE_CHECKING:
    from klamm.mirror.replica.node import ReplicaNode


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
