"""Metadata (key 3), v0-13, in the gateway: the addresses of all brokers are replaced.

Brokers for which the gateway has no port are left out. The brokers come first in the response, so the topics behind
them are copied without being decoded. The API is always admitted: a client whose id is denied reaches the broker that
rejects it. Clients have no clear way to report an error in it.

A policy on topics decides on those that the upstream would create for a client that needs them. Requests that create no
topics, above all those for all topics, are forwarded as received. The responses to the others are decoded:

======  ================================================================================================
Step    What happens
======  ================================================================================================
look    The request is forwarded without ``allow_auto_topic_creation``. Most requests end here.
trial   Missing topics are sent as CreateTopics with ``validate_only``, as the client. The response has the
        numbers and defaults that the policy sees.
judge   The policy decides on each missing topic. A denial is remembered for a moment, as in the broker.
create  The allowed topics are created by CreateTopics, as the client and as the policy allows them, and their entries
        replace the first. The upstream's own defaults for automatic creation may differ from what was decided on.
======  ================================================================================================

Kafka's internal topics are left to the upstream. Versions before 4 cannot forbid the creation. For these the gateway
uses its newest version, whose response has the same fields.
"""

from __future__ import annotations

import asyncio
import logging
import math
import struct
import time
from typing import TYPE_CHECKING, Any, Final

from klamm.admin import ConfigResource
from klamm.configs.names import INTERNAL_TOPICS
from klamm.gateway.apis.api_019_create_topics import PARTS, decide_topic, describe_valid
from klamm.gateway.frames.addresses import AddressCarrier, replace_address
from klamm.gateway.frames.wire import INT32
from klamm.gateway.policies.decisions import PassedTrials, divide
from klamm.gateway.policies.divided_requests import replaced
from klamm.gateway.policies.policy_api import PolicyApi
from klamm.gateway.relay.api import RelayedApi
from klamm.gateway.relay.filter import FORWARD, Filter, Serve
from klamm.kafka_client.errors import CLUSTER_ERRORS
from klamm.policy.kinds import CREATE_TOPIC
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode, ProtocolError
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.primitives import ZERO_UUID, check_length, read_uvarint, write_uvarint
from klamm.protocol.readers import ELEMENT_COST, struct_reader
from klamm.protocol.types import ResourceType
from klamm.protocol.writers import struct_writer
from klamm.server.attempt import ApiError
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from klamm.gateway.frames.addresses import AddressBook, Body
    from klamm.gateway.policies.policy_api import ResourceTurns
    from klamm.gateway.relay.filter import FilterContext, FilterResult
    from klamm.policy_runtime import Policies

logger = logging.getLogger(__name__)

_THROTTLE_SINCE: Final = 3
"""First version of responses that begin with ``throttle_time_ms``."""
_MAX_BROKERS: Final = 100_000


def _rewrite(body: memoryview, version: int, book: AddressBook) -> Body:
    flexible = MetadataResponse.is_flexible(version)
    start = INT32.size if version >= _THROTTLE_SINCE else 0
    read = struct_reader(MetadataResponse.MetadataResponseBroker, version, flexible)
    write = struct_writer(MetadataResponse.MetadataResponseBroker, version, flexible)
    out = bytearray()
    try:
        if flexible:
            count, position = read_uvarint(body, start)
            count -= 1
        else:
            (count,), position = INT32.unpack_from(body, start), start + INT32.size
        check_length(count, _MAX_BROKERS, "brokers")
        kept = 0
        for _ in range(count):
            broker, position = read(body, position, len(body), [ELEMENT_COST])
            if replace_address(broker.node_id, broker, book):
                write(broker, out)
                kept += 1
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ProtocolError(f"Metadata response v{version}: {error}") from error
    length = bytearray()
    if flexible:
        write_uvarint(length, kept + 1)
    else:
        length += INT32.pack(kept)
    return [body[:start], length, out, body[position:]]


def _leave_out(response: MetadataResponse, left: Collection[int]) -> None:
    response.brokers = [broker for broker in response.brokers if broker.node_id not in left]


# -- policies on topics that the upstream would create for a client

_ASKS_FOR_CREATION_SINCE: Final = 4
_AUTO_CREATE: Final = "auto.create.topics.enable"
_SETTING_LASTS_S: Final = 30.0
"""Seconds after which the upstream's setting is read again."""
_RETRY_S: Final = 5.0
"""The same after a read that failed. Each may take as long as the admin client retries."""

Topic = MetadataResponse.MetadataResponseTopic


def requested_names(request: MetadataRequest, api_version: int) -> frozenset[str]:
    """Return the topics that the request would create if they are missing."""
    if request.topics is None or not (request.allow_auto_topic_creation or api_version < _ASKS_FOR_CREATION_SINCE):
        return frozenset()
    return frozenset(topic.name for topic in request.topics if topic.name and topic.topic_id == ZERO_UUID)


def with_creation(
    request: MetadataRequest, *, may_create: bool, names: Collection[str] | None = None
) -> MetadataRequest:
    """Return a request that allows or forbids the creation of topics, for some topics only if there are names."""
    topics = request.topics
    if names is not None:
        topics = [MetadataRequest.MetadataRequestTopic(name=name, topic_id=ZERO_UUID) for name in names]
    return replaced(request, topics=topics, allow_auto_topic_creation=may_create)


def failed_topic(name: str, error_code: int) -> Topic:
    """Return the entry of a topic that is not created."""
    return Topic(error_code=error_code, name=name, is_internal=name in INTERNAL_TOPICS)


class RequestedTopics:
    """Server of Metadata: topics that the upstream would create.

    Args:
        policies: Policies in use.
        now: Monotonic clock, in seconds.
    """

    def __init__(self, policies: Policies, now: Callable[[], float] = time.monotonic) -> None:
        self._policies = policies
        self._now = now
        self._trials = PassedTrials()
        self._creates = False
        """Last value of the upstream's ``auto.create.topics.enable``; False before the first one."""
        self._known_until = -math.inf
        """Time until which it is not read again."""
        self._reading = asyncio.Lock()

    async def handle(self, request: MetadataRequest, context: FilterContext) -> MetadataResponse:
        """Return the upstream's response. A topic whose creation is denied has TOPIC_AUTHORIZATION_FAILED."""
        names = requested_names(request, context.api_version)
        first = await _send(with_creation(request, may_create=False), context)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        missing = [topic.name for topic in first.topics if topic.error_code == unknown and topic.name in names]
        if not missing or not await self._creates_topics(first, context):
            return first
        internal = INTERNAL_TOPICS.intersection(missing)
        entries = await self._create([name for name in missing if name not in internal], context)
        for names_, may_create in ((internal, True), (set(missing) - internal - entries.keys(), False)):
            if names_:
                second = await _send(with_creation(request, may_create=may_create, names=names_), context)
                entries |= {topic.name: topic for topic in second.topics if topic.name is not None}
        return replaced(first, topics=[entries.get(topic.name or "", topic) for topic in first.topics])

    async def _creates_topics(self, response: MetadataResponse, context: FilterContext) -> bool:
        """Return whether the upstream creates topics on request. If that cannot be read, the last value counts.

        False before the first value: the client retries, but a topic that must not exist would stay.
        """
        async with self._reading:
            if self._now() >= self._known_until:
                try:
                    broker = ConfigResource(ResourceType.BROKER, str(response.brokers[0].node_id))
                    configs = (await context.admin.describe_configs({broker: [_AUTO_CREATE]}))[broker]
                    self._creates, lasts_s = configs[_AUTO_CREATE].value != "false", _SETTING_LASTS_S
                except (*CLUSTER_ERRORS, LookupError) as error:
                    lasts_s = _RETRY_S
                    text = "The gateway cannot read %s of the upstream, so missing topics are %s for clients: %r"
                    logger.warning(text, _AUTO_CREATE, "still created" if self._creates else "not created", error)
                self._known_until = self._now() + lasts_s
            return self._creates

    async def _create(self, names: Sequence[str], context: FilterContext) -> dict[str, Topic]:
        """Create the topics that the policy allows; return the entries of all others."""
        remembered = self._policies.denied_creations
        entries: dict[str, Topic] = {}
        for name in names:
            code = remembered.answer(name, context.author)
            if code is not None:
                entries[name] = failed_topic(name, code)
        missing = [
            CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=-1, replication_factor=-1, assignments=[], configs=[]
            )
            for name in names
            if name not in entries
        ]
        if not missing:
            return entries

        async def send(request: CreateTopicsRequest) -> CreateTopicsResponse:
            return await context.call(request, CreateTopicsResponse)

        async def decide(
            topics: Sequence[CreateTopicsRequest.CreatableTopic],
            passed: Mapping[str, CreateTopicsResponse.CreatableTopicResult],
        ) -> list[Any]:
            decisions: list[Any] = []
            async for tried in TimeSlice().over(await describe_valid(topics, passed, context, is_detailed=True)):
                decided = await decide_topic(
                    tried,
                    self._policies,
                    context,
                    send=send,
                    trials=self._trials,
                    is_detailed=True,
                    validate_only=False,
                )
                if isinstance(decided, ApiError):
                    name = tried.topic.name
                    remembered.remember(name, context.author, ErrorCode(decided.error_code))
                    again = remembered.answer(name, context.author)
                    code = decided.error_code if again is None else again
                    decided = PARTS.denied(tried.topic, ApiError(code, None))
                decisions.append(decided)
            return decisions

        created = await divide(
            PARTS, CreateTopicsRequest(topics=missing), context, decide, send=send, trials=self._trials
        )
        return entries | _failed(created.topics)


def _failed(results: Iterable[CreateTopicsResponse.CreatableTopicResult]) -> dict[str, Topic]:
    """Return the Metadata entries of topics that the upstream rejects. Those that exist meanwhile are left out."""
    return {
        entry.name: failed_topic(entry.name, _without_throttling(entry.error_code))
        for entry in results
        if entry.error_code not in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
    }


def _without_throttling(error_code: int) -> int:
    """Return an error code that clients expect in Metadata. With Kafka the client retries until a quota allows it."""
    if error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return error_code


async def _send(request: MetadataRequest, context: FilterContext) -> MetadataResponse:
    if context.api_version >= _ASKS_FOR_CREATION_SINCE:
        response: Any = await context.forward(request)
    else:
        response = await context.call(request, MetadataResponse)
    answer: MetadataResponse = response
    return answer


def _filter(policies: Policies, _turns: ResourceTurns) -> Filter:
    served = Serve(handle=RequestedTopics(policies).handle)

    def decide(request: MetadataRequest, context: FilterContext) -> FilterResult:
        return served if requested_names(request, context.api_version) else FORWARD

    return Filter(request=MetadataRequest, response=MetadataResponse, decide=decide, keeps_request=True)


POLICY: Final = PolicyApi(key=MetadataRequest.API_KEY, kind=CREATE_TOPIC, filter=_filter)
API: Final = RelayedApi(
    key=ApiKey.METADATA,
    versions=(0, 13),
    is_always_admitted=True,
    addresses=AddressCarrier(
        response=MetadataResponse,
        addressed=lambda response: [(broker.node_id, broker) for broker in response.brokers],
        leave_out=_leave_out,
        rewrite_body=_rewrite,
        decodes_all=lambda _: False,
    ),
)
