"""ElectLeaders (key 43), v0-2 (KIP-183, KIP-460).

The first replica of a partition is always its leader and always available, so no election is ever needed. As in Kafka,
a request for all partitions leaves out those that need no election. Requires ALTER on the cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import CLUSTER_DENIED, may_cluster
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from klamm.security.acls import AclOperation
from klamm.server.attempt import ApiError
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.ELECT_LEADERS, min_version=0, max_version=2)
_ELECTION_TYPES: Final = frozenset({0, 1})
"""Preferred and unclean election."""
_NOT_NEEDED: Final = ApiError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
_UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def handle(request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
    """Return one entry per partition named in the request."""
    if not may_cluster(context, AclOperation.ALTER):
        return ElectLeadersResponse(error_code=CLUSTER_DENIED.error_code)
    if request.topic_partitions is not None and not request.topic_partitions:
        return ElectLeadersResponse()
    if request.election_type not in _ELECTION_TYPES:
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    if request.topic_partitions is None:
        return ElectLeadersResponse(
            replica_election_results=[
                ElectLeadersResponse.ReplicaElectionResult(topic=topic.name) for topic in context.services.topics.all()
            ]
        )
    return ElectLeadersResponse(
        replica_election_results=[
            ElectLeadersResponse.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=await context.time_slice.listed(
                    _result(topic.topic, index, context) for index in topic.partitions
                ),
            )
            async for topic in context.time_slice.over(request.topic_partitions)
        ]
    )


def _result(name: str, index: int, context: RequestContext) -> ElectLeadersResponse.PartitionResult:
    topic = context.services.topics.get(name)
    if topic is None:
        outcome = ApiError(_UNKNOWN, f"No such topic as {name}")
    elif not topic.has_partition(index):
        outcome = ApiError(_UNKNOWN, f"No such partition as {name}-{index}")
    else:
        outcome = _NOT_NEEDED
    return ElectLeadersResponse.PartitionResult(
        partition_id=index, error_code=outcome.error_code, error_message=outcome.error_message
    )


ROUTE: Final = Route(api=API, request=ElectLeadersRequest, handle=handle)
