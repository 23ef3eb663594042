"""AddOffsetsToTxn (key 25), v0-4.

Adds a group to a producer's transaction, before TxnOffsetCommit commits its offsets. Requires WRITE on the
transactional id and READ on the group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import may_transactional_id, require_coordinator, require_group
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode, TransactionalIdAuthorizationError
from klamm.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from klamm.protocol.types import ProducerIdentity
from klamm.security.acls import AclOperation
from klamm.server.attempt import attempt
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.ADD_OFFSETS_TO_TXN, min_version=0, max_version=4)
_FENCED_SINCE: Final = 2
"""First version with PRODUCER_FENCED; older clients know only INVALID_PRODUCER_EPOCH."""


async def handle(request: AddOffsetsToTxnRequest, context: RequestContext) -> AddOffsetsToTxnResponse:
    """Add the group to the transaction."""

    async def add() -> None:
        if not may_transactional_id(context, AclOperation.WRITE, request.transactional_id):
            raise TransactionalIdAuthorizationError
        require_group(context, AclOperation.READ, request.group_id)
        require_coordinator(request.transactional_id, context.node_id, context.services.cluster)
        await context.services.transactions.add(
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            groups=frozenset({request.group_id}),
        )

    _, error = await attempt(add, api=API.key)
    code = error.error_code
    if code is ErrorCode.PRODUCER_FENCED and context.api_version < _FENCED_SINCE:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(error_code=code)


ROUTE: Final = Route(api=API, request=AddOffsetsToTxnRequest, handle=handle)
