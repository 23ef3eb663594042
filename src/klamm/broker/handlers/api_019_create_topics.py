"""CreateTopics (key 19), v2-7.

One entry per topic, in the order of the request. Topics are decided one after the other, and an error does not affect
other topics (KIP-108). A request for 10,000 partitions or more is rejected as a whole. A name that occurs twice has one
entry, with INVALID_REQUEST. ``validate_only`` runs every check and the policy, and creates nothing.
Requires CREATE on the cluster or the topic, which is checked first. The configs are returned to principals with
DESCRIBE_CONFIGS on the topic. Partitions are charged to ``controller_mutation_rate`` (KIP-599), also with
``validate_only``; from v6 on requests that exceed it are rejected.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.broker.requests.checks import may_cluster, may_topic
from klamm.broker.requests.topic_creation import CreatableTopic, TopicSpec, begin_topic, check_size
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.codec import NO_TAGS, encode, with_items
from klamm.protocol.errors import ErrorCode, PolicyViolationError
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.security.acls import AclOperation
from klamm.server.attempt import NONE, ApiError, attempt
from klamm.server.route import Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.context import RequestContext
    from klamm.broker.quotas import MutationQuota
    from klamm.configs.describe import DescribedConfig

API: Final = Api(key=ApiKey.CREATE_TOPICS, min_version=2, max_version=7)
_CONFIGS_SINCE: Final = 5
_STRICT_SINCE: Final = 6


class _Result(NamedTuple):
    """Entry of a topic without its configs."""

    head: CreateTopicsResponse.CreatableTopicResult
    configs: tuple[DescribedConfig, ...] = ()


class CreateTopicsAnswer:
    """Response that encodes equal configs once, however many topics share them."""

    def __init__(self, results: Sequence[_Result], throttle_time_ms: int) -> None:
        self._results = results
        self.throttle_time_ms = throttle_time_ms

    def is_flexible(self, version: int) -> bool:
        """Return whether the response has compact types and tagged fields."""
        return CreateTopicsResponse.is_flexible(version)

    def error_codes(self) -> tuple[int, ...]:
        """Return the error code of each topic."""
        return tuple(result.head.error_code for result in self._results)

    def buffers(self, version: int) -> Sequence[bytes | bytearray]:
        """Return the encoded body in pieces, one for each topic."""
        if version < _CONFIGS_SINCE:
            topics = [result.head for result in self._results]
            return [encode(CreateTopicsResponse(throttle_time_ms=self.throttle_time_ms, topics=topics), version)]
        written: dict[int, bytearray] = {}
        joined: dict[int, bytes] = {}
        none_yet = CreateTopicsResponse(throttle_time_ms=self.throttle_time_ms, topics=[])
        pieces = [with_items(encode(none_yet, version), len(self._results), (), flexible=True)]
        for head, configs in self._results:
            if not configs:
                pieces.append(bytes(encode(head, version, flexible=True)))
                continue
            body = joined.get(id(configs))
            if body is None:
                for config in configs:
                    # The results keep the described configs alive, so their ids (``id()``) are unique while this runs.
                    if id(config) not in written:
                        written[id(config)] = encode(_to_wire(config), version, flexible=True)
                body = joined[id(configs)] = b"".join([written[id(config)] for config in configs])
            pieces.append(
                with_items(encode(head, version, flexible=True), len(configs), (body, NO_TAGS), flexible=True)
            )
        return [*pieces, NO_TAGS]


async def handle(request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsAnswer:
    """Return one entry per topic. An error does not affect other topics, except too many partitions in total."""
    slices, rollbacks = context.time_slice, context.services.topics.rollbacks
    names = await slices.listed(topic.name for topic in request.topics)
    occurrences, once_each = Counter(names), dict(zip(names, request.topics, strict=True))
    quota = context.mutation_quota(is_strict=context.api_version >= _STRICT_SINCE)
    admitted = [
        _admit(topic, context, is_duplicate=occurrences[name] > 1)
        async for name, topic in slices.over(once_each.items())
    ]
    try:
        await check_size((spec for spec in admitted if isinstance(spec, TopicSpec)), context)
    except PolicyViolationError as error:
        rejection = ApiError(error.error_code, error.error_message)
        rejected = await slices.listed(
            _failed(spec.name, rejection) if isinstance(spec, TopicSpec) else spec for spec in admitted
        )
        return CreateTopicsAnswer(rejected, quota.throttle_time_ms)
    # All topics are decided and applied, in order, before the first is awaited, so they share commits.
    begun = [
        await _begin(spec, context, quota, validate_only=request.validate_only) async for spec in slices.over(admitted)
    ]
    results = [await _end(topic, context, rollbacks) async for topic in slices.over(begun)]
    return CreateTopicsAnswer(results, quota.throttle_time_ms)


def _admit(
    topic: CreateTopicsRequest.CreatableTopic, context: RequestContext, *, is_duplicate: bool
) -> _Result | TopicSpec:
    if is_duplicate:
        return _failed(topic.name, ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
    if not (may_cluster(context, AclOperation.CREATE) or may_topic(context, AclOperation.CREATE, topic.name)):
        return _failed(topic.name, ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed."))
    return TopicSpec(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[(assignment.partition_index, assignment.broker_ids) for assignment in topic.assignments],
        configs=[(config.name, config.value) for config in topic.configs],
    )


async def _begin(
    spec: _Result | TopicSpec, context: RequestContext, quota: MutationQuota, *, validate_only: bool
) -> _Result | CreatableTopic:
    if not isinstance(spec, TopicSpec):
        return spec
    begun, error = await attempt(lambda: begin_topic(spec, context, quota, validate_only=validate_only), api=API.key)
    return _failed(spec.name, error) if begun is None else begun


async def _end(begun: _Result | CreatableTopic, context: RequestContext, rollbacks: int) -> _Result:
    """Wait until a created topic is durable, also one that another request has created."""
    if not isinstance(begun, CreatableTopic):
        if begun.head.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
            return begun
        _, error = await attempt(lambda: context.services.topics.settle(rollbacks), api=API.key)
        return begun if error == NONE else _failed(begun.head.name, error)
    durable, error = begun.durable, NONE
    if durable is not None:
        _, error = await attempt(lambda: durable, api=API.key)
    return _created(begun, context) if error == NONE else _failed(begun.topic.name, error)


def _created(created: CreatableTopic, context: RequestContext) -> _Result:
    topic = created.topic
    if not may_topic(context, AclOperation.DESCRIBE_CONFIGS, topic.name):
        return _Result(
            CreateTopicsResponse.CreatableTopicResult(
                name=topic.name,
                topic_id=topic.topic_id,
                error_message=created.note,
                topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                configs=[],
            )
        )
    head = CreateTopicsResponse.CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_message=created.note,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0]),
        configs=[],
    )
    return _Result(head, context.services.configs.describe_new_topic(created.configs, node_id=context.node_id))


def _to_wire(entry: DescribedConfig) -> CreateTopicsResponse.CreatableTopicConfigs:
    return CreateTopicsResponse.CreatableTopicConfigs(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
    )


def _failed(name: str, error: ApiError) -> _Result:
    return _Result(
        CreateTopicsResponse.CreatableTopicResult(
            name=name, error_code=error.error_code, error_message=error.error_message, configs=[]
        )
    )


ROUTE: Final = Route(api=API, request=CreateTopicsRequest, handle=handle)
