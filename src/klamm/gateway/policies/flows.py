"""Policies on requests that flow through the gateway: Produce, and the names of groups that consumers join.

A policy on flows only computes, so it is asked synchronously and the requests of a connection stay pipelined. Denied
topics are cut out of a Produce request, and their entries are added to the response. With ``acks=0`` there is no
response: a request with a denied topic then closes the connection, as an error does in Kafka.

Other APIs by which a client joins a group, and versions of Produce that name topics by id only, are not offered while a
policy on flows is in use.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from klamm.gateway.interceptors import DividedRequest, RequestFilter
from klamm.policy.answers import Override, Throttle
from klamm.policy.details import GroupDetails, ProduceDetails
from klamm.policy.kinds import FLOW
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from klamm.server.attempt import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from klamm.gateway.interceptors import InterceptedCall
    from klamm.policy.answers import Answer
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

Entry = TypeVar("Entry")
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


def merge_topics(response: ProduceResponse, denied: list[TopicEntry], *, delay_ms: int) -> ProduceResponse:
    """Return the upstream's response with the entries of denied topics, and a pause for the client."""
    return ProduceResponse(
        responses=[*response.responses, *denied],
        throttle_time_ms=max(response.throttle_time_ms, delay_ms),
        node_endpoints=response.node_endpoints,
    )


def _delayed(request: Message, delay_ms: int) -> DividedRequest:
    """Return a request to forward as it is, with a pause for the client in the response."""

    def merge(response: Any) -> Message:
        fields = {field.name: getattr(response, field.name) for field in type(response).FIELDS}
        fields["throttle_time_ms"] = max(response.throttle_time_ms, delay_ms)
        changed: Message = type(response)(**fields)
        return changed

    return DividedRequest(request=request, merge=merge)


def _refused_topics(
    request: OffsetCommitRequest | TxnOffsetCommitRequest, topic: Callable[..., Entry], partition: Callable[..., Any]
) -> list[Entry]:
    """Return the entries of a commit whose group is denied. ``topic`` and ``partition`` are types of its response."""
    return [
        topic(
            name=each.name,
            topic_id=each.topic_id,
            partitions=[
                partition(partition_index=one.partition_index, error_code=ErrorCode.INVALID_GROUP_ID)
                for one in each.partitions
            ],
        )
        for each in request.topics
    ]


class FlowJudge:
    """Filters of requests that flow through the gateway.

    Args:
        policies: Policies in use.
    """

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    @property
    def filters(self) -> Mapping[int, RequestFilter]:
        """The filter of each API."""
        return {
            ApiKey.PRODUCE: RequestFilter(request=ProduceRequest, response=ProduceResponse, judge=self.judge_produce),
            ApiKey.JOIN_GROUP: RequestFilter(
                request=JoinGroupRequest, response=JoinGroupResponse, judge=self.judge_join
            ),
            ApiKey.CONSUMER_GROUP_HEARTBEAT: RequestFilter(
                request=ConsumerGroupHeartbeatRequest,
                response=ConsumerGroupHeartbeatResponse,
                judge=self.judge_heartbeat,
            ),
            ApiKey.OFFSET_COMMIT: RequestFilter(
                request=OffsetCommitRequest, response=OffsetCommitResponse, judge=self.judge_commit
            ),
            ApiKey.TXN_OFFSET_COMMIT: RequestFilter(
                request=TxnOffsetCommitRequest, response=TxnOffsetCommitResponse, judge=self.judge_transactional_commit
            ),
        }

    def judge_produce(
        self, request: ProduceRequest, context: InterceptedCall
    ) -> ProduceRequest | ProduceResponse | DividedRequest | None:
        """Ask the policy about each topic of a Produce request."""
        author = context.author
        denied: dict[str, ApiError] = {}
        acks, delay_ms = request.acks, 0
        for data in request.topic_data:
            details = ProduceDetails(
                topic=data.name,
                acks=request.acks,
                is_idempotent=is_idempotent(data),
                principal=author.principal,
                client_id=author.client_id,
                listener=author.listener,
            )
            match self._ask(details):
                case ApiError() as error:
                    denied[data.name] = error
                case Override(acks=int(raised)):
                    acks = raised
                case Throttle(delay_ms=pause):
                    delay_ms = max(delay_ms, pause)
        if not denied and delay_ms == 0:
            return None if acks == request.acks else with_topics(request, request.topic_data, acks=acks)
        refused = denied_topics(request.topic_data, denied)
        rest = [data for data in request.topic_data if data.name not in denied]
        if not rest or (denied and request.acks == 0):
            return ProduceResponse(responses=refused, throttle_time_ms=delay_ms)
        kept = with_topics(request, rest, acks=acks)
        if request.acks == 0:  # no response can ask for a pause
            return kept
        return DividedRequest(request=kept, merge=lambda response: merge_topics(response, refused, delay_ms=delay_ms))

    def judge_join(
        self, request: JoinGroupRequest, context: InterceptedCall
    ) -> JoinGroupResponse | DividedRequest | None:
        """Ask the policy about the name of a group that a consumer is about to join."""
        answer = self._ask_group(request.group_id, context)
        if isinstance(answer, ApiError):
            return JoinGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID, members=[])
        return _delayed(request, answer.delay_ms) if isinstance(answer, Throttle) else None

    def judge_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: InterceptedCall
    ) -> ConsumerGroupHeartbeatResponse | DividedRequest | None:
        """Ask the policy about the name of a group that a consumer is about to join by the protocol of KIP-848."""
        if request.member_epoch != _JOINING:
            return None
        answer = self._ask_group(request.group_id, context)
        if isinstance(answer, ApiError):
            return ConsumerGroupHeartbeatResponse(
                error_code=ErrorCode.INVALID_GROUP_ID, error_message=answer.error_message
            )
        return _delayed(request, answer.delay_ms) if isinstance(answer, Throttle) else None

    def judge_commit(self, request: OffsetCommitRequest, context: InterceptedCall) -> OffsetCommitResponse | None:
        """Ask the policy about the name of a group whose offsets are about to be committed."""
        if not isinstance(self._ask_group(request.group_id, context), ApiError):
            return None
        answer = OffsetCommitResponse
        return answer(
            topics=_refused_topics(request, answer.OffsetCommitResponseTopic, answer.OffsetCommitResponsePartition)
        )

    def judge_transactional_commit(
        self, request: TxnOffsetCommitRequest, context: InterceptedCall
    ) -> TxnOffsetCommitResponse | None:
        """Ask the policy about the name of a group whose offsets are about to be committed in a transaction."""
        if not isinstance(self._ask_group(request.group_id, context), ApiError):
            return None
        answer = TxnOffsetCommitResponse
        return answer(
            topics=_refused_topics(
                request, answer.TxnOffsetCommitResponseTopic, answer.TxnOffsetCommitResponsePartition
            )
        )

    def _ask_group(self, group_id: str, context: InterceptedCall) -> ApiError | Answer | None:
        author = context.author
        details = GroupDetails(
            group_id=group_id, principal=author.principal, client_id=author.client_id, listener=author.listener
        )
        return self._ask(details)

    def _ask(self, details: ProduceDetails | GroupDetails) -> ApiError | Answer | None:
        try:
            return self._policies.check_now(FLOW, details)
        except KafkaApiError as error:
            return ApiError(error.error_code, error.error_message)
