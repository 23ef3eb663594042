"""Produce (key 0), v0-13, in the gateway.

Only ``acks`` is read of most requests: with ``acks=0`` there is no response. Client configs may raise it (KIP-649).
Responses of v10 and newer may carry the addresses of new leaders (KIP-951), but not of those for which the gateway has
no port. v12 is the last version with the names of topics. With a policy on flows, clients get no later one, and v0-2
close the connection, because they cannot be decoded. They are announced nevertheless, as by Kafka 4: older versions of
librdkafka disable compression if v0 is missing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from klamm.client_configs.enforcement import ALL_REPLICAS
from klamm.gateway.frames.addresses import AddressCarrier
from klamm.gateway.frames.wire import INT16, response_body
from klamm.gateway.policies.decisions import OBJECT_BYTES, effect
from klamm.gateway.policies.divided_requests import in_order, replaced
from klamm.gateway.policies.policy_api import PolicyApi
from klamm.gateway.relay.api import AcksField, RelayedApi
from klamm.gateway.relay.filter import FORWARD, Divide, Filter, Forward, Reply, Wait
from klamm.lazy_dataclass import dataclass
from klamm.policy.answers import Throttle
from klamm.policy.details import ProduceDetails
from klamm.policy.kinds import FLOW
from klamm.policy_runtime.decision import Revision, decide_and_check
from klamm.policy_runtime.worker import PolicyOutcome
from klamm.protocol.api import ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.errors import ErrorCode, ProtocolError, error_name
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.primitives import read_uvarint, skip_tagged_fields
from klamm.server.attempt import ApiError
from klamm.server.codec import ELEMENTS_AT_ONCE, coded
from klamm.server.time_slice import TimeSlice, run_at_once

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from klamm.gateway.frames.addresses import AddressBook, Body
    from klamm.gateway.relay.filter import FilterContext, FilterResult
    from klamm.history.change import Author
    from klamm.policy.answers import Answer, Override
    from klamm.policy.details import Details
    from klamm.policy_runtime import Policies

_FLEXIBLE_SINCE: Final = 9
_TRANSACTIONAL_ID_SINCE: Final = 3
_ENDPOINTS_SINCE: Final = 10
"""First version of responses with addresses of new leaders (KIP-951)."""
_PLAIN: Final = bytes(2)
"""No tagged fields in the header, and no transactional id: the beginning of most requests."""
_NO_ENDPOINTS: Final = bytes(5)
"""End of a response without addresses: no throttle time and no tagged field. A response with addresses ends with the
port, the rack and the tagged fields of the last one, so one of its last five bytes is not zero.
"""


def acks_of(view: memoryview, api_version: int, body: int) -> tuple[int, int]:
    """Return ``acks`` of a request, and the position after it.

    Args:
        view: Bytes of the frame, size included.
        api_version: Version of the request.
        body: Position after the client id.

    Raises:
        IndexError: The view ends before ``acks``.
        struct.error: The view ends before ``acks``.
        ProtocolError: The request is malformed.
    """
    if api_version >= _FLEXIBLE_SINCE and view[body : body + 2] == _PLAIN:
        body += len(_PLAIN)
    elif api_version >= _FLEXIBLE_SINCE:
        body = skip_tagged_fields(view, body, len(view))
        length, body = read_uvarint(view, body)
        body += max(length - 1, 0)
    elif api_version >= _TRANSACTIONAL_ID_SINCE:
        (length,) = INT16.unpack_from(view, body)
        body += INT16.size + max(length, 0)
    acks: int = INT16.unpack_from(view, body)[0]
    return acks, body + INT16.size


def put_acks(view: memoryview, end: int, acks: int) -> None:
    """Replace ``acks`` in a request, given the position after it."""
    INT16.pack_into(view, end - INT16.size, acks)


_APPENDED: Final = frozenset({ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
"""Error codes that the leader returns after it has appended the records."""


def check_response(frame: memoryview, api_version: int) -> None:
    """Check the response to a request whose client expects none.

    Codes that only report late replicas are accepted, because the leader has appended the records. A producer with
    ``acks=0`` does not wait for replicas, and closing its connection would lose the requests that follow.

    Raises:
        ProtocolError: A partition has an error, or the response is malformed.
    """
    response = decode(ProduceResponse, api_version, frame, response_body(ProduceResponse, api_version, frame))
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code not in _APPENDED:
                raise ProtocolError(f"Produce with acks=0 failed: {error_name(partition.error_code)}")


def _may_have_endpoints(response: memoryview) -> bool:
    return response[-len(_NO_ENDPOINTS) :] != _NO_ENDPOINTS


def _rewrite(body: memoryview, version: int, book: AddressBook) -> Body | None:
    return ADDRESSES.rewrite_all(body, version, book) if _may_have_endpoints(body) else None


def _leave_out(response: ProduceResponse, left: Collection[int]) -> None:
    response.node_endpoints = [leader for leader in response.node_endpoints if leader.node_id not in left]


# -- policies on flows

_MAGIC_AT: Final = 16
_PRODUCER_ID_AT: Final = 43
_PRODUCER_ID_SIZE: Final = 8
_STRENGTHS: Final[Mapping[int | None, int]] = MappingProxyType({0: 0, 1: 1, ALL_REPLICAS: 2})
"""Rank of each ``acks``, from the weakest to the strongest."""

TopicData = ProduceRequest.TopicProduceData
TopicEntry = ProduceResponse.TopicProduceResponse


def is_idempotent(data: TopicData) -> bool:
    """Return whether every batch of a topic has a producer id."""
    return all(_has_producer_id(partition.records) for partition in data.partition_data)


def _has_producer_id(records: bytes | bytearray | memoryview | None) -> bool:
    if records is None or len(records) < _PRODUCER_ID_AT + _PRODUCER_ID_SIZE or records[_MAGIC_AT] < 2:  # noqa: PLR2004
        return False
    end = _PRODUCER_ID_AT + _PRODUCER_ID_SIZE
    return int.from_bytes(records[_PRODUCER_ID_AT:end], "big", signed=True) >= 0


def denied_topics(topics: Iterable[TopicData], denied: Mapping[str, ApiError]) -> list[TopicEntry]:
    """Return the entries of denied topics."""
    return [
        TopicEntry(
            name=topic.name,
            partition_responses=[
                ProduceResponse.PartitionProduceResponse(
                    index=partition.index,
                    error_code=denied[topic.name].error_code,
                    error_message=denied[topic.name].error_message,
                    base_offset=-1,
                )
                for partition in topic.partition_data
            ],
        )
        for topic in topics
        if topic.name in denied
    ]


def produce_questions(request: ProduceRequest, author: Author) -> list[ProduceDetails]:
    """Return the question to the policy about each topic of a Produce request."""
    return [
        ProduceDetails(
            topic=data.name,
            acks=request.acks,
            is_idempotent=is_idempotent(data),
            principal=author.principal,
            client_id=author.client_id,
            listener=author.listener,
        )
        for data in request.topic_data
    ]


def produce_decision(request: ProduceRequest, acks: int, answers: Iterable[ApiError | Answer | None]) -> FilterResult:
    """Return what becomes of a Produce request: the result of a filter.

    Args:
        request: The request.
        acks: Its acks after the overrides.
        answers: The answer about each of its topics.
    """
    denied: dict[str, ApiError] = {}
    delay_ms = 0
    for data, answer in zip(request.topic_data, answers, strict=True):
        if isinstance(answer, ApiError):
            denied[data.name] = answer
        elif isinstance(answer, Throttle):
            delay_ms = max(delay_ms, answer.delay_ms)
    if not denied and delay_ms == 0:
        if acks == request.acks:
            return FORWARD
        return Forward(request=replaced(request, acks=acks))
    denials = denied_topics(request.topic_data, denied)
    rest = [data for data in request.topic_data if data.name not in denied]
    if not rest or (denied and request.acks == 0):
        return Reply(response=ProduceResponse(responses=denials, throttle_time_ms=delay_ms))
    kept = replaced(request, topic_data=rest, acks=acks)
    if request.acks == 0:  # no response can ask for a pause
        return Forward(request=kept)
    order = [data.name for data in request.topic_data]

    def merge(response: ProduceResponse) -> ProduceResponse:
        entries = in_order(order, [*response.responses, *denials], lambda entry: entry.name)
        return replaced(response, responses=entries, throttle_time_ms=max(response.throttle_time_ms, delay_ms))

    return Divide(
        request=kept,
        merge=merge,
        kept_bytes=OBJECT_BYTES * (len(order) + sum(len(entry.partition_responses) for entry in denials)),
    )


def _is_long(request: ProduceRequest) -> bool:
    """Return whether it takes milliseconds to judge a Produce request."""
    topics = request.topic_data
    return len(topics) > ELEMENTS_AT_ONCE or sum(len(data.partition_data) for data in topics) > ELEMENTS_AT_ONCE


def _strength(acks: int | None) -> int:
    """Return the rank of an ``acks``. One that the upstream rejects is the strongest, and thus stays as it is."""
    return _STRENGTHS.get(acks, len(_STRENGTHS))


def _strongest(overrides: Collection[Override], acks: int, *, topics: int) -> Override | None:
    """Return the override whose acks a request gets; None if it keeps its own ``acks``.

    Its own acks count as long as one of its ``topics`` is not overridden.
    """
    overrides = [override for override in overrides if override.acks is not None]
    strongest = max(overrides, key=lambda override: _strength(override.acks), default=None)
    if strongest is None or (len(overrides) < topics and _strength(acks) >= _strength(strongest.acks)):
        return None
    return None if strongest.acks == acks else strongest


@dataclass(frozen=True, slots=True)
class _Decided:
    """Decision on a long request, made beside other requests."""

    decision: FilterResult


class _UnknownError(Exception):
    """The policy must be asked about some topics.

    Args:
        outcomes: Outcome of each question, None if the policy must be asked.
    """

    def __init__(self, outcomes: Mapping[Details, PolicyOutcome | None]) -> None:
        super().__init__()
        self.outcomes = outcomes


class ProducedTopics:
    """Decisions of the policies about the topics of a request.

    The policy runs in its own thread, with a time limit. Its decisions are remembered for a while, so most requests are
    decided on at once and stay pipelined. A request with a new question waits for the policy, and so do the later ones
    of its connection. A request of thousands of topics or partitions is decided on in time slices. Denied topics are
    cut out of a request, and their entries are added to the response. With ``acks=0`` there is no response: a request
    with a denied topic then closes the connection, as an error does in Kafka.

    Args:
        policies: Policies in use.
    """

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    def decide(self, request: ProduceRequest, context: FilterContext) -> FilterResult:
        """Ask the policy about each topic of a Produce request; about those of a long one beside other requests."""
        if isinstance(context.wait_result, _Decided):
            return context.wait_result.decision
        if _is_long(request):
            size = OBJECT_BYTES * sum(1 + len(data.partition_data) for data in request.topic_data)
            return Wait(work=partial(self._decide_long, request, context.author, size), kept_bytes=size)

        async def wait(outcomes: Mapping[Details, PolicyOutcome | None]) -> Mapping[Details, PolicyOutcome]:
            raise _UnknownError(outcomes)

        questions, learned = produce_questions(request, context.author), context.wait_result or {}
        answers = self._answers(questions, request.acks, learned, wait, TimeSlice(math.inf))
        try:
            return produce_decision(request, *run_at_once(answers))
        except _UnknownError as unknown:
            work = partial(self._policies.learn, FLOW, unknown.outcomes)
            return Wait(work=work, kept_bytes=OBJECT_BYTES * len(unknown.outcomes))

    async def _decide_long(self, request: ProduceRequest, author: Author, size: int) -> _Decided:
        """Return the decision on a long Produce request of ``size`` bytes in memory, and let other requests run."""
        questions = await coded(partial(produce_questions, request, author), size)
        learn = partial(self._policies.learn, FLOW)
        decision = await self._answers(questions, request.acks, {}, learn, TimeSlice())
        return _Decided(await coded(partial(produce_decision, request, *decision), size))

    async def _answers(
        self,
        questions: Sequence[ProduceDetails],
        acks: int,
        learned: Mapping[Details, PolicyOutcome],
        learn: Callable[[Mapping[Details, PolicyOutcome | None]], Awaitable[Mapping[Details, PolicyOutcome]]],
        slices: TimeSlice,
    ) -> tuple[int, list[ApiError | Answer | None]]:
        """Return the acks of a Produce request after its overrides, and the answer about each topic.

        A request has one ``acks`` for all its topics, so the strongest override wins, and satisfies weaker ones. The
        policy is asked again about every topic whose acks have changed, in audit mode too: it counts and logs what the
        policy would decide if it was enforced. Only the acks stay those of the client then.

        Args:
            questions: Question about each topic.
            acks: Acks that the client requests.
            learned: Outcomes that the request has waited for.
            learn: Function that asks the policy the questions without an outcome.
            slices: Time slices of the request.
        """
        policies, current, cause = self._policies, acks, None
        outcomes: dict[ProduceDetails, tuple[ProduceDetails, PolicyOutcome]] = {}
        overrides: dict[ProduceDetails, Override] = {}

        async def check(checked_acks: int, overridden: Override | None) -> Override | None:
            changed: dict[ProduceDetails, ProduceDetails] = {}
            remembered: dict[Details, PolicyOutcome | None] = {}
            async for question in slices.over(questions):
                is_overridden = overridden is not None and outcomes[question][1].error is None
                details = changed[question] = replace(question, acks=checked_acks) if is_overridden else question
                remembered[details] = learned.get(details) or policies.cached_outcome(FLOW, details)
            decided: Mapping[Details, Any] = (
                await learn({**learned, **remembered}) if None in remembered.values() else remembered
            )
            async for question, details in slices.over(changed.items()):
                outcomes[question] = details, decided[details]
                override = policies.override_of(FLOW, details, decided[details])
                if override is not None and overridden is None:
                    overrides[question] = override
            return _strongest(overrides.values(), acks, topics=len(changed)) if overridden is None else None

        async def apply(_: int, override: Override) -> None:
            nonlocal current, cause
            current, cause = cast("int", override.acks), override

        await decide_and_check(lambda: [current], lambda checked: checked, check, Revision(), apply)
        answers = []
        async for question in slices.over(questions):
            details, outcome = outcomes[question]
            override = policies.override_of(FLOW, details, outcome)
            if override is not None and _strength(override.acks) <= _strength(current):
                outcome = PolicyOutcome(None, None)
            overridden = None if cause is None else overrides.get(question, cause)
            answers.append(effect(policies, FLOW, details, outcome, overridden))
        return current if policies.is_enforced(FLOW) else acks, answers


POLICY: Final = PolicyApi(
    key=ApiKey.PRODUCE,
    kind=FLOW,
    filter=lambda policies, _: Filter(
        request=ProduceRequest, response=ProduceResponse, decide=ProducedTopics(policies).decide
    ),
    last_version=12,
)
ADDRESSES: Final = AddressCarrier(
    response=ProduceResponse,
    addressed=lambda response: [(leader.node_id, leader) for leader in response.node_endpoints],
    leave_out=_leave_out,
    first_version=_ENDPOINTS_SINCE,
    rewrite_body=_rewrite,
    decodes_all=_may_have_endpoints,
)
API: Final = RelayedApi(
    key=ApiKey.PRODUCE,
    versions=(0, 13),
    announces_all=True,
    carries_records=True,
    acks=AcksField(read=acks_of, put=put_acks, check_response=check_response),
    addresses=ADDRESSES,
)
