"""TxnOffsetCommit (key 28), v0-6.

Offsets of a group that are committed together with a producer's transaction, and dropped when it is aborted. One entry
per partition, in the order of the request; the response is sent when they are durable. From v3 on member and generation
are checked (KIP-447); a member of a consumer group may be behind (KIP-1251). From v5 on this request adds the group to
the transaction (KIP-890); before, AddOffsetsToTxn must do so. v6 has topic ids instead of names, and returns
GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH where older versions return ILLEGAL_GENERATION (KIP-1319).
Requires WRITE on the transactional id, READ on the group and on each topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.groups.errors import check_group_id
from klamm.broker.groups.offset_coordinator import Committer
from klamm.broker.requests.checks import may_transactional_id, require_coordinator, require_group
from klamm.broker.requests.offset_commits import commit_permitted, requested_offsets
from klamm.broker.transactions.admission import ClientAbility, CoordinatorLoadInProgressError
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError, TransactionalIdAuthorizationError
from klamm.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from klamm.protocol.types import ProducerIdentity
from klamm.security.acls import AclOperation
from klamm.server.route import Route

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from klamm.broker.context import RequestContext
    from klamm.broker.groups.offsets import OffsetToCommit

API: Final = Api(key=ApiKey.TXN_OFFSET_COMMIT, min_version=0, max_version=6)
_ABORTABLE_SINCE: Final = 4
_ADDS_SINCE: Final = 5
_TOPIC_IDS_SINCE: Final = 6


async def handle(request: TxnOffsetCommitRequest, context: RequestContext) -> TxnOffsetCommitResponse:
    """Store the offsets of all valid partitions until the transaction ends."""
    offsets = await requested_offsets(request, context, has_topic_ids=context.api_version >= _TOPIC_IDS_SINCE)
    try:
        if not may_transactional_id(context, AclOperation.WRITE, request.transactional_id):
            raise TransactionalIdAuthorizationError
        require_group(context, AclOperation.READ, request.group_id)
        check_group_id(request.group_id)
        require_coordinator(request.group_id, context.node_id, context.services.cluster)
    except KafkaApiError as error:
        return await _response(request, iter([error.error_code] * len(offsets)), context)
    codes = await commit_permitted(offsets, context, lambda permitted: _commit(request, permitted, context))
    return await _response(request, codes, context)


async def _commit(
    request: TxnOffsetCommitRequest, offsets: Sequence[OffsetToCommit], context: RequestContext
) -> Sequence[ErrorCode]:
    ability = ClientAbility(
        adds=context.api_version >= _ADDS_SINCE,
        knows_abortable=context.api_version >= _ABORTABLE_SINCE,
        retriable=CoordinatorLoadInProgressError,
    )
    transactions = context.services.transactions
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)

    async def admit() -> None:
        try:
            if ability.adds:
                await transactions.add(request.transactional_id, producer, groups=frozenset({request.group_id}))
            transactions.verify(request.transactional_id, producer, request.group_id)
        except KafkaApiError as error:
            if ability.translate(error) is error:
                raise  # an error that is its own cause would be a reference cycle
            raise ability.translate(error) from error

    by = Committer(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation_id=request.generation_id_or_member_epoch,
    )
    return await context.services.groups.offsets.commit_in_transaction(
        by,
        request.producer_id,
        offsets,
        admit,
        names_group_errors=context.api_version >= _TOPIC_IDS_SINCE,
        time_slice=context.time_slice,
    )


async def _response(
    request: TxnOffsetCommitRequest, codes: Iterator[ErrorCode], context: RequestContext
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=await context.time_slice.listed(
                    TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=next(codes)
                    )
                    for partition in topic.partitions
                ),
            )
            async for topic in context.time_slice.over(request.topics)
        ]
    )


ROUTE: Final = Route(api=API, request=TxnOffsetCommitRequest, handle=handle)
