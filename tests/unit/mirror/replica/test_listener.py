"""Requests to a broker without storage."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from klamm.mirror.replica.leader_partition import LAGGING_S, LeaderPartition, Leadership, Presence, ReplicaProgress
from klamm.mirror.replica.listener import fetch, write_txn_markers
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.fetch import FetchRequest
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


@pytest.mark.parametrize(
    ("offset", "rack", "node_id"),
    [(5, "c", 3), (7, "c", 3), (8, "c", 2), (8, "", 2), (5, "a", 2), (90, "c", 3)],
    ids=["has it", "has all before it", "lacks it", "no rack", "does not fetch", "beyond all ends"],
)
def test_consumer_is_sent_to_a_replica_that_has_its_offset(offset: int, rack: str, node_id: int) -> None:
    # given
    leader = LeaderPartition("A.orders", UUID(int=7), 0)
    leader.lead(Leadership(leader_epoch=0, partition_epoch=0, replicas=NODES, live=NODES), 100.0)
    leader.high_watermark = 7
    now = time.monotonic()
    for node, (end, at) in enumerate([(20, now - LAGGING_S - 1), (9, now), (7, now)], start=1):
        leader.followers[node] = ReplicaProgress(fetch_offset=end, leader_epoch=0, presence=Presence(at=at))
    services: Any = SimpleNamespace(
        is_leased=lambda: True,
        find=lambda _topic_id, _partition: leader,
        access=SimpleNamespace(may=lambda *_: True),
        rack_of=" abc".__getitem__,
    )
    context = cast("ReplicaContext", SimpleNamespace(services=services, api_version=13, session=None))
    wanted = FetchRequest.FetchPartition(fetch_offset=offset)
    topic = FetchRequest.FetchTopic(topic_id=leader.topic_id, partitions=[wanted])
    # when
    body = asyncio.run(fetch(FetchRequest(replica_id=-1, rack_id=rack, topics=[topic]), context))
    # then
    assert [answer.preferred_read_replica for answer in body.partitions] == [node_id]
