"""Policies on requests that flow through the gateway: Produce, and the names of groups that consumers join.

The policy runs in its own thread, with a time limit. Its decisions are remembered for a while, so most requests are
judged at once and the requests of a connection stay pipelined. A request with a new question waits for the policy, and
so do the later ones of its connection. A request of thousands of topics or partitions is judged in time slices. Denied
topics are cut out of a Produce request, and their entries are added to the response. With ``acks=0``
there is no response: a request with a denied topic then closes the connection, as an error does in Kafka.

Other APIs by which a client joins a group, and versions of Produce that name topics by id only, are not offered while a
policy on flows is in use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from klamm.client_configs.enforcement import ALL_REPLICAS
from klamm.gateway.policies.parts import in_order
from klamm.gateway.policies.verdicts import OBJECT_BYTES, effect, known_outcomes, remembered_effect
from klamm.gateway.relay.filter import FORWARD, Divide, Filter, Forward, Reply, Wait
from klamm.policy.answers import Throttle
from klamm.policy.details import GroupDetails, ProduceDetails
from klamm.policy.kinds import FLOW
from klamm.policy_runtime.worker import PolicyOutcome
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from klamm.server.attempt import ApiError
from klamm.server.codec import ELEMENTS_AT_ONCE, coded
from klamm.server.time_slice import TimeSlice, run_at_once

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from klamm.gateway.relay.filter import FilterContext, FilterResult
    from klamm.history.change import Author
    from klamm.policy.answers import Answer, Override
    from klamm.policy.details import Details
    from klamm.policy_runtime import Policies
    from klamm.protocol.schema import Message

SHARE_GROUP_HEARTBEAT: Final = 76
JOINS_UNSEEN: Final = frozenset({SHARE_GROUP_HEARTBEAT})
"""APIs by which a client joins a group and for which there is no filter."""
_JOINING: Final = 0
"""``member_epoch`` of a ConsumerGroupHeartbeat by which a consumer joins."""
LAST_WITH_NAMES: Final[Mapping[int, int]] = MappingProxyType({ApiKey.PRODUCE: 12, ApiKey.OFFSET_COMMIT: 9})
"""Last version of each API that has the names of topics."""
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


def with_topics(request: ProduceRequest, topics: Iterable[TopicData], *, acks: int) -> ProduceRequest:
    """Return a request for some of its topics."""
    return ProduceRequest(
        transactional_id=request.transactional_id, acks=acks, timeout_ms=request.timeout_ms, topic_data=list(topics)
    )


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


def merge_topics(
    order: Iterable[str], response: ProduceResponse, denied: list[TopicEntry], *, delay_ms: int
) -> ProduceResponse:
    """Return the upstream's response with the entries of denied topics, in the given order, and a pause."""
    return ProduceResponse(
        responses=in_order(order, [*response.responses, *denied], lambda entry: entry.name),
        throttle_time_ms=max(response.throttle_time_ms, delay_ms),
        node_endpoints=response.node_endpoints,
    )


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
        return Forward(request=with_topics(request, request.topic_data, acks=acks))
    refused = denied_topics(request.topic_data, denied)
    rest = [data for data in request.topic_data if data.name not in denied]
    if not rest or (denied and request.acks == 0):
        return Reply(response=ProduceResponse(responses=refused, throttle_time_ms=delay_ms))
    kept = with_topics(request, rest, acks=acks)
    if request.acks == 0:  # no response can ask for a pause
        return Forward(request=kept)
    order = [data.name for data in request.topic_data]
    return Divide(
        request=kept,
        merge=lambda response: merge_topics(order, response, refused, delay_ms=delay_ms),
        kept_bytes=OBJECT_BYTES * (len(order) + sum(len(entry.partition_responses) for entry in refused)),
    )


def _is_long(request: ProduceRequest) -> bool:
    """Return whether it takes milliseconds to judge a Produce request."""
    topics = request.topic_data
    return len(topics) > ELEMENTS_AT_ONCE or sum(len(data.partition_data) for data in topics) > ELEMENTS_AT_ONCE


def _strength(acks: int | None) -> int:
    """Return the rank of an ``acks``. One that the upstream rejects is the strongest, and thus stays as it is."""
    return _STRENGTHS.get(acks, len(_STRENGTHS))


def _group_error(error: ApiError) -> ErrorCode:
    """Return the code for a group that the policy denies, or about which it did not decide."""
    failed = ErrorCode.UNKNOWN_SERVER_ERROR
    return failed if error.error_code == failed else ErrorCode.INVALID_GROUP_ID


def _slowed(request: Message, answer: Answer | Wait | None) -> FilterResult:
    """Return a request to forward as it is, with a pause for the client in the response if the policy asks for one."""
    if not isinstance(answer, Throttle):
        return answer if isinstance(answer, Wait) else FORWARD
    delay_ms = answer.delay_ms

    def merge(response: Any) -> Message:
        fields = {field.name: getattr(response, field.name) for field in type(response).FIELDS}
        fields["throttle_time_ms"] = max(response.throttle_time_ms, delay_ms)
        changed: Message = type(response)(**fields)
        return changed

    return Divide(request=request, merge=merge)


@dataclass(frozen=True, slots=True)
class _Decided:
    """Decision on a long Produce request, made beside other requests."""

    decision: FilterResult


class FlowJudge:
    """Filters of requests that flow through the gateway.

    Args:
        policies: Policies in use.
    """

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    @property
    def filters(self) -> Mapping[int, Filter]:
        """The filter of each API."""
        return {
            ApiKey.PRODUCE: Filter(request=ProduceRequest, response=ProduceResponse, decide=self.judge_produce),
            ApiKey.JOIN_GROUP: Filter(request=JoinGroupRequest, response=JoinGroupResponse, decide=self.judge_join),
            ApiKey.CONSUMER_GROUP_HEARTBEAT: Filter(
                request=ConsumerGroupHeartbeatRequest,
                response=ConsumerGroupHeartbeatResponse,
                decide=self.judge_heartbeat,
            ),
            ApiKey.OFFSET_COMMIT: Filter(
                request=OffsetCommitRequest, response=OffsetCommitResponse, decide=self.judge_commit
            ),
            ApiKey.TXN_OFFSET_COMMIT: Filter(
                request=TxnOffsetCommitRequest, response=TxnOffsetCommitResponse, decide=self.judge_commit
            ),
        }

    def judge_produce(self, request: ProduceRequest, context: FilterContext) -> FilterResult:
        """Ask the policy about each topic of a Produce request; about those of a long one beside other requests."""
        if isinstance(context.wait_result, _Decided):
            return context.wait_result.decision
        if _is_long(request):
            size = OBJECT_BYTES * sum(1 + len(data.partition_data) for data in request.topic_data)
            return Wait(work=partial(self._judge_long, request, context.author, size), kept_bytes=size)
        questions = produce_questions(request, context.author)
        judged = run_at_once(self._judge_topics(questions, request.acks, context.wait_result))
        return judged if isinstance(judged, Wait) else produce_decision(request, *judged)

    async def _judge_long(self, request: ProduceRequest, author: Author, size: int) -> _Decided:
        """Return the decision on a long Produce request of ``size`` bytes in memory, and let other requests run."""
        questions = await coded(partial(produce_questions, request, author), size)
        learned = None
        while True:
            judged = await TimeSlice().run(self._judge_topics(questions, request.acks, learned))
            if not isinstance(judged, Wait):
                return _Decided(await coded(partial(produce_decision, request, *judged), size))
            learned = await judged.work()

    def _judge_topics(
        self, questions: Sequence[ProduceDetails], acks: int, learned: Any
    ) -> Generator[None, None, tuple[int, list[ApiError | Answer | None]] | Wait]:
        """Return the acks of a Produce request after its overrides, and the answer about each topic. Yields between.

        A request has one ``acks`` for all its topics, so the strongest override wins, and satisfies weaker ones. The
        policy is asked again about every topic whose acks have changed, in audit mode too: it counts and logs what the
        policy would decide if it was enforced. Only the acks stay those of the client then.
        """
        policies = self._policies
        first = yield from known_outcomes(policies, FLOW, questions, learned)
        if isinstance(first, Wait):
            return first
        overrides: dict[Details, Override] = {}
        for details, outcome in first.items():
            yield
            override = policies.override_of(FLOW, details, outcome)
            if override is not None:
                overrides[details] = override
        wanted = [override.acks for override in overrides.values() if override.acks is not None]
        if len(wanted) < len(first):
            wanted.append(acks)
        strongest = max(wanted, key=_strength, default=acks)
        changed: dict[ProduceDetails, ProduceDetails] = {}
        for each in questions:
            yield
            changed[each] = replace(each, acks=strongest) if first[each].error is None else each
        second = yield from known_outcomes(policies, FLOW, changed.values(), learned)
        if isinstance(second, Wait):
            return second
        cause = next((override for override in overrides.values() if override.acks == strongest), None)
        answers = []
        for each in questions:
            yield
            outcome = second[changed[each]]
            override = policies.override_of(FLOW, changed[each], outcome)
            if override is not None and _strength(override.acks) <= _strength(strongest):
                outcome = PolicyOutcome(None, None)
            overridden = None if strongest == acks else overrides.get(each, cause)
            answers.append(effect(policies, FLOW, changed[each], outcome, overridden))
        return strongest if policies.is_enforced(FLOW) else acks, answers

    def judge_join(self, request: JoinGroupRequest, context: FilterContext) -> FilterResult:
        """Ask the policy about the name of a group that a consumer is about to join."""
        answer = self._ask_group(request.group_id, context)
        if isinstance(answer, ApiError):
            return Reply(response=JoinGroupResponse(error_code=_group_error(answer), members=[]))
        return _slowed(request, answer)

    def judge_heartbeat(self, request: ConsumerGroupHeartbeatRequest, context: FilterContext) -> FilterResult:
        """Ask the policy about the name of a group that a consumer is about to join by the protocol of KIP-848."""
        if request.member_epoch != _JOINING:
            return FORWARD
        answer = self._ask_group(request.group_id, context)
        if isinstance(answer, ApiError):
            return Reply(
                response=ConsumerGroupHeartbeatResponse(
                    error_code=_group_error(answer), error_message=answer.error_message
                )
            )
        return _slowed(request, answer)

    def judge_commit(
        self, request: OffsetCommitRequest | TxnOffsetCommitRequest, context: FilterContext
    ) -> FilterResult:
        """Ask the policy about the name of a group whose offsets are about to be committed, in a transaction or not."""
        answer = self._ask_group(request.group_id, context)
        if isinstance(answer, ApiError):
            return Reply(response=ApiError(_group_error(answer), None))
        return answer if isinstance(answer, Wait) else FORWARD

    def _ask_group(self, group_id: str, context: FilterContext) -> ApiError | Answer | Wait | None:
        author = context.author
        details = GroupDetails(
            group_id=group_id, principal=author.principal, client_id=author.client_id, listener=author.listener
        )
        return remembered_effect(self._policies, FLOW, details, context)
