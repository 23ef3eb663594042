"""AlterPartitionReassignments (key 45), v0-1 (KIP-455, KIP-860).

One entry per partition, each independent of the others. All replicas are this process, so a reassignment is complete
when the response is sent: none is ever in progress, and there is nothing to cancel. The first replica becomes the
leader. Requires ALTER on the cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.broker.requests.checks import CLUSTER_DENIED, may_cluster
from klamm.broker.topics.placement import check_assignment
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import (
    ErrorCode,
    InvalidReplicationFactorError,
    KafkaApiError,
    UnknownTopicOrPartitionError,
)
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from klamm.security.acls import AclOperation
from klamm.server.attempt import NONE, ApiError, attempt
from klamm.server.route import Route

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.ALTER_PARTITION_REASSIGNMENTS, min_version=0, max_version=1)
TopicResponse: TypeAlias = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
PartitionResponse: TypeAlias = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse
Outcomes: TypeAlias = "list[tuple[int, ApiError]]"
"""Partitions of a topic with the reason of those that are rejected."""


class NoReassignmentInProgressError(KafkaApiError):
    """No reassignment is in progress, so none can be canceled."""

    error_code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


async def handle(
    request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Return one entry per partition, after all changes are durable."""
    factor_may_change = request.allow_replication_factor_change
    if not may_cluster(context, AclOperation.ALTER):
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=factor_may_change,
            error_code=CLUSTER_DENIED.error_code,
            error_message=CLUSTER_DENIED.error_message,
        )
    slices = context.time_slice
    begun = [
        (topic.name, *await _begin(topic, context, factor_may_change=factor_may_change))
        async for topic in slices.over(request.topics)
    ]
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=factor_may_change,
        error_message=None,
        responses=[await _end(name, outcomes, change, context) async for name, outcomes, change in slices.over(begun)],
    )


async def _begin(
    reassignable: AlterPartitionReassignmentsRequest.ReassignableTopic,
    context: RequestContext,
    *,
    factor_may_change: bool,
) -> tuple[Outcomes, asyncio.Future[None] | ApiError]:
    """Return the rejected partitions of a topic, and the change of the others that is being written."""
    outcomes: Outcomes = []
    wanted: dict[int, tuple[int, ...]] = {}
    asked_of = context.services.topics.get(reassignable.name)
    async for partition in context.time_slice.over(reassignable.partitions):
        try:
            current = _current(reassignable.name, partition.partition_index, context)
            wanted[partition.partition_index] = _checked(
                partition.replicas, current, context, factor_may_change=factor_may_change
            )
        except KafkaApiError as error:
            rejection = ApiError(error.error_code, error.error_message)
            outcomes.append((partition.partition_index, rejection))
        else:
            outcomes.append((partition.partition_index, NONE))
    topic = context.services.topics.get(reassignable.name)
    if not wanted:
        return outcomes, NONE
    if topic is None or asked_of is None or topic.topic_id != asked_of.topic_id:  # another request deleted it meanwhile
        message = f"Unable to find a topic named {reassignable.name}."
        return outcomes, ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)

    async def begin() -> asyncio.Future[None]:
        return context.services.topics.begin_reassign(topic, wanted)

    change, failure = await attempt(begin, api=API.key)
    return outcomes, failure if change is None else change


async def _end(
    name: str, outcomes: Outcomes, change: asyncio.Future[None] | ApiError, context: RequestContext
) -> TopicResponse:
    """Wait until the change of a topic is durable."""
    failure = change if isinstance(change, ApiError) else (await attempt(lambda: change, api=API.key))[1]
    outcomes = [(index, failure if outcome == NONE else outcome) for index, outcome in outcomes]
    return TopicResponse(
        name=name,
        partitions=await context.time_slice.listed(
            PartitionResponse(partition_index=index, error_code=outcome.error_code, error_message=outcome.error_message)
            for index, outcome in outcomes
        ),
    )


def _current(name: str, index: int, context: RequestContext) -> Sequence[int]:
    topic = context.services.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartitionError(f"Unable to find a topic named {name}.")
    if not topic.has_partition(index):
        raise UnknownTopicOrPartitionError(f"Unable to find partition {name}:{index}.")
    return topic.partitions[index]


def _checked(
    replicas: Sequence[int] | None, current: Sequence[int], context: RequestContext, *, factor_may_change: bool
) -> tuple[int, ...]:
    if replicas is None:
        raise NoReassignmentInProgressError
    check_assignment(replicas, context.services.cluster.node_ids, cordoned=context.services.configs.cordoned_nodes())
    if not factor_may_change and len(replicas) != len(current):
        raise InvalidReplicationFactorError(f"The replication factor is changed from {len(current)} to {len(replicas)}")
    return tuple(replicas)


ROUTE: Final = Route(api=API, request=AlterPartitionReassignmentsRequest, handle=handle)
