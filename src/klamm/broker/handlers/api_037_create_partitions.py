"""CreatePartitions (key 37), v0-3.

Adds partitions to topics, with replicas assigned by the broker or by the request. A topic that occurs twice has one
entry, with INVALID_REQUEST, and is not changed. ``validate_only`` changes nothing. A policy is asked last. A request
that adds more than 10,000 partitions in total is rejected as a whole. Partitions are charged to
``controller_mutation_rate`` (KIP-599), also with ``validate_only``; from v3 on requests that exceed it are rejected.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.broker.requests.checks import TOPIC_DENIED, may_topic
from klamm.broker.topics.placement import check_growth, place_added_partitions
from klamm.policy.kinds import CREATE_PARTITIONS
from klamm.policy_runtime.details import partitions_details
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError, PolicyViolationError
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.security.acls import AclOperation
from klamm.server.attempt import NONE, ApiError, attempt
from klamm.server.route import Route

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from klamm.broker.context import RequestContext
    from klamm.broker.quotas import MutationQuota
    from klamm.broker.topics.catalog import Topic
    from klamm.policy.details import CreatePartitionsDetails

TopicRequest: TypeAlias = CreatePartitionsRequest.CreatePartitionsTopic
Result: TypeAlias = CreatePartitionsResponse.CreatePartitionsTopicResult
API: Final = Api(key=ApiKey.CREATE_PARTITIONS, min_version=0, max_version=3)
_STRICT_SINCE: Final = 3
_CODES_OF_CHANGED_TOPICS: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PARTITIONS})


class _MissingTopicError(KafkaApiError):
    """The topic does not exist. Kafka sends no message here."""

    error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def handle(request: CreatePartitionsRequest, context: RequestContext) -> CreatePartitionsResponse:
    """Return one entry per topic."""
    slices, rollbacks = context.time_slice, context.services.topics.rollbacks
    names = await slices.listed(topic.name for topic in request.topics)
    occurrences, once_each = Counter(names), dict(zip(names, request.topics, strict=True))
    quota = context.mutation_quota(is_strict=context.api_version >= _STRICT_SINCE)
    admitted = [
        (topic, _rejection(topic, context, is_duplicate=occurrences[name] > 1))
        async for name, topic in slices.over(once_each.items())
    ]
    excess = await _excess((topic for topic, rejection in admitted if rejection is None), context)
    begun = [
        (topic.name, rejection or excess or await _begin(topic, context, quota, validate_only=request.validate_only))
        async for topic, rejection in slices.over(admitted)
    ]
    results = [await _end(name, growing, context, rollbacks) async for name, growing in slices.over(begun)]
    return CreatePartitionsResponse(throttle_time_ms=quota.throttle_time_ms, results=results)


def _rejection(topic: TopicRequest, context: RequestContext, *, is_duplicate: bool) -> ApiError | None:
    if is_duplicate:
        return ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    return None if may_topic(context, AclOperation.ALTER, topic.name) else TOPIC_DENIED


async def _excess(topics_to_grow: Iterable[TopicRequest], context: RequestContext) -> ApiError | None:
    """Return the error of all topics when they add too many partitions in total, else None."""
    topics = context.services.topics
    both = ((each.count, topics.get(each.name)) for each in topics_to_grow)
    added = await context.time_slice.listed(
        0 if topic is None else max(count - len(topic.partitions), 0) for count, topic in both
    )
    try:
        check_growth(sum(added))
    except PolicyViolationError as error:
        return ApiError(error.error_code, error.error_message)
    return None


async def _begin(
    topic: TopicRequest, context: RequestContext, quota: MutationQuota, *, validate_only: bool
) -> asyncio.Future[None] | ApiError:
    growing, error = await attempt(lambda: _grow(topic, context, quota, validate_only=validate_only), api=API.key)
    return error if growing is None else growing


async def _end(name: str, growing: asyncio.Future[None] | ApiError, context: RequestContext, rollbacks: int) -> Result:
    """Wait until the new partitions are durable, also those of another request."""
    if isinstance(growing, ApiError):
        error = growing
        if error.error_code in _CODES_OF_CHANGED_TOPICS:
            _, failure = await attempt(lambda: context.services.topics.settle(rollbacks), api=API.key)
            error = error if failure == NONE else failure
    else:
        durable = growing
        _, error = await attempt(lambda: durable, api=API.key)
    return Result(name=name, error_code=error.error_code, error_message=error.error_message)


async def _grow(
    growth: TopicRequest, context: RequestContext, quota: MutationQuota, *, validate_only: bool
) -> asyncio.Future[None] | None:
    policies, topics = context.services.policies, context.services.topics
    async with policies.turn(CREATE_PARTITIONS):
        topic, added = await policies.decide(
            CREATE_PARTITIONS,
            decide=lambda: _decide(growth, context),
            details=lambda decided: _details(growth, decided[0], context, validate_only=validate_only),
            revision=context.services.configs.revision,
        )
        quota.charge(len(added))
        return None if validate_only else topics.begin_grow(topic, added)


def _decide(growth: TopicRequest, context: RequestContext) -> tuple[Topic, Sequence[Sequence[int]]]:
    topics = context.services.topics
    topic = topics.get(growth.name)
    if topic is None:
        raise _MissingTopicError
    assignments = None
    if growth.assignments is not None:
        assignments = [assignment.broker_ids for assignment in growth.assignments]
    added = place_added_partitions(
        topic=growth.name,
        current=topic.partitions,
        count=growth.count,
        assignments=assignments,
        node_ids=context.services.cluster.node_ids,
        cordoned=context.services.configs.cordoned_nodes(),
    )
    return topic, added


def _details(
    growth: TopicRequest, topic: Topic, context: RequestContext, *, validate_only: bool
) -> CreatePartitionsDetails:
    return partitions_details(
        topic.name,
        topic.topic_id,
        topic.partitions,
        count=growth.count,
        assignments=None if growth.assignments is None else [entry.broker_ids for entry in growth.assignments],
        configs=context.services.configs.set_on_topic(topic.name),
        defaults=context.services.configs.topic_defaults(),
        requester=context.author,
        validate_only=validate_only,
    )


ROUTE: Final = Route(api=API, request=CreatePartitionsRequest, handle=handle)
