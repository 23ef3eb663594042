"""Requests to a broker without storage."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from klamm.mirror.replica.leader_partition import LeaderPartition, Leadership
from klamm.mirror.replica.listener import write_txn_markers
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.write_txn_markers import WriteTxnMarkersRequest

if TYPE_CHECKING:
    from klamm.mirror.replica.listener import ReplicaContext

NODES = frozenset({1, 2, 3})


def error_code(leader: LeaderPartition) -> int:
    """Return the error code of the answer to a coordinator."""
    services: Any = SimpleNamespace(is_leased=lambda: True, find_by_name=lambda _topic, _partition: leader)
    topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=leader.topic, partition_indexes=[leader.partition])
    marker = WriteTxnMarkersRequest.WritableTxnMarker(producer_id=1, transaction_result=True, topics=[topic])
    context = cast("ReplicaContext", SimpleNamespace(services=services))
    response = asyncio.run(write_txn_markers(WriteTxnMarkersRequest(markers=[marker]), context))
    return response.markers[0].topics[0].partitions[0].error_code


def test_marker_for_a_sealed_partition_is_left_to_its_next_leader() -> None:
    leader = LeaderPartition("A.orders", UUID(int=7), 0)
    leader.lead(Leadership(leader_epoch=0, partition_epoch=0, replicas=NODES, live=NODES), 100.0)
    assert error_code(leader) == ErrorCode.NONE

    leader.seal()

    assert error_code(leader) == ErrorCode.NOT_LEADER_OR_FOLLOWER
