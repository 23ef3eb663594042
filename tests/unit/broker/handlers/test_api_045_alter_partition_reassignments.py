"""AlterPartitionReassignments: what is checked, and when changes begin."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING
from uuid import UUID

from klamm.broker.cluster import AdvertisedBroker, ClusterInfo
from klamm.broker.handlers.api_045_alter_partition_reassignments import handle
from klamm.broker.topics.catalog import Topic
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from tests.support.configs import make_context, make_service

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

NODES = tuple(AdvertisedBroker(node_id=node_id, host="a", port=node_id) for node_id in (1, 2))


class Topics:
    """Two topics of one partition, whose changes are durable as soon as both have begun."""

    def __init__(self) -> None:
        self._topics = {
            name: Topic(name=name, topic_id=UUID(int=number), is_internal=False, partitions=((1,),))
            for number, name in enumerate(("a", "b"), 1)
        }
        self.begun: dict[str, asyncio.Future[None]] = {}

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def begin_reassign(self, topic: Topic, _: object) -> asyncio.Future[None]:
        self.begun[topic.name] = asyncio.get_running_loop().create_future()
        if len(self.begun) == len(self._topics):
            for change in self.begun.values():
                change.set_result(None)
        return self.begun[topic.name]


async def reassigned(topics: Topics, *, cordoned: frozenset[int] = frozenset()) -> list[int]:
    configs = make_service()
    context: RequestContext = make_context(
        configs, topics=topics, cluster=ClusterInfo(cluster_id="c", nodes=NODES), logs=SimpleNamespace()
    )
    context.services.configs.cordoned_nodes = lambda: cordoned  # type: ignore[method-assign]
    partition = AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=0, replicas=[2])
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    request = AlterPartitionReassignmentsRequest(
        topics=[topic(name=name, partitions=[partition]) for name in ("a", "b")]
    )
    response = await asyncio.wait_for(handle(request, context), 20)
    return [entry.error_code for topic in response.responses for entry in topic.partitions]


async def test_changes_of_all_topics_begin_before_one_of_them_is_durable() -> None:
    """A plan of thousands of topics would take longer than a client waits."""
    assert await reassigned(Topics()) == [ErrorCode.NONE] * 2


async def test_cordoned_broker_gets_no_replicas() -> None:
    topics = Topics()
    assert await reassigned(topics, cordoned=frozenset({2})) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT] * 2
    assert topics.begun == {}
