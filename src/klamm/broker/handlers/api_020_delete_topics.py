"""DeleteTopics (key 20), v1-6.

Topics are named by name, or by id (v6). A name or id that occurs twice in a request has one entry, with
INVALID_REQUEST, and so has a topic given by both its name and its id. ``delete.topic.enable=false`` rejects all. A
policy is asked last. Partitions are charged to ``controller_mutation_rate`` (KIP-599); from v5 on requests that exceed
it are rejected.
Kafka's internal topics are rejected, because groups and transactions are not stored in them here. Kafka deletes them,
and all committed offsets with them. The topic of client registrations can be deleted.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.broker.requests.checks import TOPIC_DENIED, may_cluster, may_topic
from klamm.broker.topics.catalog import Topic
from klamm.configs.names import INTERNAL_TOPICS
from klamm.policy.kinds import DELETE_TOPIC
from klamm.policy_runtime.details import deletion_details
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.primitives import ZERO_UUID
from klamm.security.acls import AclOperation
from klamm.server.attempt import NONE, ApiError, attempt
from klamm.server.route import Route

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator
    from uuid import UUID

    from klamm.broker.context import RequestContext
    from klamm.broker.quotas import MutationQuota

Result: TypeAlias = DeleteTopicsResponse.DeletableTopicResult
API: Final = Api(key=ApiKey.DELETE_TOPICS, min_version=1, max_version=6)
_STATES_SINCE: Final = 6
_STRICT_SINCE: Final = 5
_DISABLED_HAS_CODE_SINCE: Final = 3
_BOTH: Final = "You may not specify both topic name and topic id."
_NEITHER: Final = "Neither topic name nor id were specified."
_UNKNOWN_NAME: Final = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
_INTERNAL: Final = ApiError(
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    "An internal topic cannot be deleted; delete groups to remove their offsets.",
)
_UNKNOWN_CODES: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
_UNKNOWN_ID: Final = ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")


async def handle(request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
    """Return one entry per topic."""
    rollbacks = context.services.topics.rollbacks
    wanted = await context.time_slice.listed(_wanted(request, context.api_version))
    if not context.services.configs.broker_value("delete.topic.enable"):
        code = ErrorCode.TOPIC_DELETION_DISABLED
        if context.api_version < _DISABLED_HAS_CODE_SINCE:
            code = ErrorCode.INVALID_REQUEST
        return DeleteTopicsResponse(
            responses=await context.time_slice.listed(
                _result(name, topic_id, ApiError(code, None)) for name, topic_id in wanted
            )
        )
    plan = await _plan(wanted, context)
    quota = context.mutation_quota(is_strict=context.api_version >= _STRICT_SINCE)
    begun = [
        await _begin(entry, context, quota) if isinstance(entry, Topic) else entry
        async for entry in context.time_slice.over(plan)
    ]
    results = [await _end(entry, context, rollbacks) async for entry in context.time_slice.over(begun)]
    return DeleteTopicsResponse(throttle_time_ms=quota.throttle_time_ms, responses=results)


def _wanted(request: DeleteTopicsRequest, version: int) -> Iterator[tuple[str | None, UUID]]:
    if version >= _STATES_SINCE:
        return ((topic.name, topic.topic_id) for topic in request.topics)
    return ((name, ZERO_UUID) for name in request.topic_names)


async def _plan(wanted: list[tuple[str | None, UUID]], context: RequestContext) -> list[Result | Topic]:
    """Decide on each entry before the first topic is deleted.

    As in Kafka, a repeated name or id is not deleted. A topic given by both its name and its id has one entry, under
    its name, and is not deleted.
    """
    topics, slices = context.services.topics, context.time_slice
    resolved = await slices.listed(
        topics.get(name) if name is not None else topics.by_id(topic_id) for name, topic_id in wanted
    )
    names = Counter(
        await slices.listed(name for name, topic_id in wanted if name is not None and topic_id == ZERO_UUID)
    )
    ids = Counter(await slices.listed(topic_id for name, topic_id in wanted if name is None))
    given_ids = frozenset(ids)
    given_once = frozenset(name for name, count in names.items() if count == 1)
    answers: list[Result | Topic] = []
    async for (name, topic_id), topic in slices.over(zip(wanted, resolved, strict=True)):
        if (name is None) == (topic_id == ZERO_UUID):
            text = _NEITHER if name is None else _BOTH
            answers.append(_result(name, topic_id, ApiError(ErrorCode.INVALID_REQUEST, text)))
        elif (count := names.pop(name, 0) if name is not None else ids.pop(topic_id, 0)) == 0:
            continue  # has an entry at its first occurrence
        elif count > 1:
            what = "Duplicate topic name." if name is not None else "Duplicate topic id."
            answers.append(_result(name, topic_id, ApiError(ErrorCode.INVALID_REQUEST, what)))
        elif (denied := _denied(name, topic_id, topic, context)) is not None:
            answers.append(denied)
        elif topic is None:
            answers.append(_result(name, topic_id, _UNKNOWN_NAME if name is not None else _UNKNOWN_ID))
        elif name is None and topic.name in given_once:
            continue  # has an entry under its name
        elif topic.name in INTERNAL_TOPICS:
            answers.append(_result(topic.name, topic.topic_id, _INTERNAL))
        elif name is not None and topic.topic_id in given_ids:
            error = ApiError(
                ErrorCode.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied."
            )
            answers.append(_result(name, topic.topic_id, error))
        else:
            answers.append(topic)
    return answers


def _denied(name: str | None, topic_id: UUID, topic: Topic | None, context: RequestContext) -> Result | None:
    """Return the error of a denied deletion. A name without DESCRIBE is denied whether it exists or not."""
    if may_cluster(context, AclOperation.DELETE):
        return None
    if name is not None and not may_topic(context, AclOperation.DESCRIBE, name):
        return _result(name, ZERO_UUID, TOPIC_DENIED)
    if topic is None or may_topic(context, AclOperation.DELETE, topic.name):
        return None
    if name is None and not may_topic(context, AclOperation.DESCRIBE, topic.name):
        return _result(None, topic_id, TOPIC_DENIED)
    return _result(topic.name, topic_id, TOPIC_DENIED)


async def _begin(
    topic: Topic, context: RequestContext, quota: MutationQuota
) -> Result | tuple[Topic, asyncio.Future[None]]:
    deleting, error = await attempt(lambda: _delete_if_allowed(topic, context, quota), api=API.key)
    return _result(topic.name, topic.topic_id, error) if deleting is None else (topic, deleting)


async def _end(begun: Result | tuple[Topic, asyncio.Future[None]], context: RequestContext, rollbacks: int) -> Result:
    """Wait until a deletion is durable, also that of another request."""
    if not isinstance(begun, tuple):
        if begun.error_code not in _UNKNOWN_CODES:
            return begun
        _, error = await attempt(lambda: context.services.topics.settle(rollbacks), api=API.key)
        return begun if error == NONE else _result(begun.name, begun.topic_id, error)
    topic, deleting = begun
    _, error = await attempt(lambda: deleting, api=API.key)
    return _result(topic.name, topic.topic_id if error == NONE else ZERO_UUID, error)


async def _delete_if_allowed(topic: Topic, context: RequestContext, quota: MutationQuota) -> asyncio.Future[None]:
    policies, topics = context.services.policies, context.services.topics
    async with policies.turn(DELETE_TOPIC):
        current = await policies.decide(
            DELETE_TOPIC,
            decide=lambda: topics.by_id(topic.topic_id) or topic,  # a topic that is gone is reported by its deletion
            details=lambda decided: deletion_details(
                decided.name, decided.topic_id, decided.partitions, context.author
            ),
            revision=context.services.configs.revision,
        )
        quota.charge(len(current.partitions))
        return topics.begin_delete(current, author=context.author)


def _result(name: str | None, topic_id: UUID, error: ApiError) -> Result:
    return DeleteTopicsResponse.DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=error.error_code, error_message=error.error_message
    )


ROUTE: Final = Route(api=API, request=DeleteTopicsRequest, handle=handle)
