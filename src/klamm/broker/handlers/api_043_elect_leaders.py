"""ElectLeaders (key 43), v0-2 (KIP-183, KIP-460).

The first live replica of a partition is always its leader, so no election is ever needed. A partition that lacks its
preferred leader, or any, cannot get one here: its broker id is down, or its log is offline. As in Kafka, a request for
all partitions leaves out those that need no election. Requires ALTER on the cluster. A denied request gets the error
for each partition that it names, too, because v0 has no top-level error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.cluster import NO_LEADER
from klamm.broker.requests.checks import CLUSTER_DENIED, may_cluster
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from klamm.security.acls import AclOperation
from klamm.server.attempt import ApiError
from klamm.server.route import Route

if TYPE_CHECKING:
    from collections.abc import Iterable

    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.ELECT_LEADERS, min_version=0, max_version=2)
_ELECTION_TYPES: Final = frozenset({0, 1})
"""Preferred and unclean election."""
_PREFERRED: Final = 0
_NOT_NEEDED: Final = ApiError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
_NO_PREFERRED: Final = ApiError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
_NO_ELIGIBLE: Final = ApiError(
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."
)
_UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_LEFT_OUT_OF_ALL: Final = frozenset({ErrorCode.ELECTION_NOT_NEEDED, _UNKNOWN})
"""Outcomes left out of a request for all partitions. A topic is unknown if it was deleted during a pause."""


async def handle(request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
    """Return one entry per partition named in the request."""
    slices, wanted = context.time_slice, request.topic_partitions
    if not may_cluster(context, AclOperation.ALTER):
        return ElectLeadersResponse(
            error_code=CLUSTER_DENIED.error_code,
            replica_election_results=[
                ElectLeadersResponse.ReplicaElectionResult(
                    topic=topic.topic,
                    partition_result=await slices.listed(_entry(index, CLUSTER_DENIED) for index in topic.partitions),
                )
                async for topic in slices.over(wanted or ())
            ],
        )
    if wanted is not None and not wanted:
        return ElectLeadersResponse()
    if request.election_type not in _ELECTION_TYPES:
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    of_topics: Iterable[tuple[str, Iterable[int]]] = (
        ((topic.name, range(len(topic.partitions))) for topic in context.services.topics.all())
        if wanted is None
        else ((topic.topic, topic.partitions) for topic in wanted)
    )
    results = [
        ElectLeadersResponse.ReplicaElectionResult(
            topic=name,
            partition_result=await slices.listed(
                _result(name, index, context, request.election_type) for index in partitions
            ),
        )
        async for name, partitions in slices.over(of_topics)
    ]
    if wanted is None:
        for result in results:
            result.partition_result = [
                partition for partition in result.partition_result if partition.error_code not in _LEFT_OUT_OF_ALL
            ]
    return ElectLeadersResponse(replica_election_results=results)


def _result(name: str, index: int, context: RequestContext, election_type: int) -> ElectLeadersResponse.PartitionResult:
    topic = context.services.topics.get(name)
    if topic is None:
        outcome = ApiError(_UNKNOWN, f"No such topic as {name}")
    elif not topic.has_partition(index):
        outcome = ApiError(_UNKNOWN, f"No such partition as {name}-{index}")
    else:
        is_offline = index in context.services.logs.offline_partitions(topic.topic_id)
        replicas = topic.partitions[index]
        leader = NO_LEADER if is_offline else context.services.cluster.leader(replicas)
        if election_type == _PREFERRED:
            outcome = _NOT_NEEDED if leader == replicas[0] else _NO_PREFERRED
        else:
            outcome = _NO_ELIGIBLE if leader == NO_LEADER else _NOT_NEEDED
    return _entry(index, outcome)


def _entry(index: int, outcome: ApiError) -> ElectLeadersResponse.PartitionResult:
    return ElectLeadersResponse.PartitionResult(
        partition_id=index, error_code=outcome.error_code, error_message=outcome.error_message
    )


ROUTE: Final = Route(api=API, request=ElectLeadersRequest, handle=handle)
