"""EndTxn (key 26), v0-5.

Commits or aborts a producer's transaction. The response is sent when the decision is durable and the markers are
written. From v5 on this increments the producer epoch, and the response contains the id and epoch to continue with
(KIP-890, ``transaction.version`` 2). Requires WRITE on the transactional id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import may_transactional_id, require_coordinator
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode, TransactionalIdAuthorizationError
from klamm.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from klamm.protocol.types import ProducerIdentity
from klamm.security.acls import AclOperation
from klamm.server.attempt import attempt
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.END_TXN, min_version=0, max_version=5)
_FENCED_SINCE: Final = 2
"""First version with PRODUCER_FENCED; older clients know only INVALID_PRODUCER_EPOCH."""
_BUMPS_SINCE: Final = 5


async def handle(request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
    """End the transaction."""

    async def end() -> ProducerIdentity:
        if not may_transactional_id(context, AclOperation.WRITE, request.transactional_id):
            raise TransactionalIdAuthorizationError
        require_coordinator(request.transactional_id, context.node_id, context.services.cluster)
        return await context.services.transactions.end(
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            is_commit=request.committed,
            bumps_epoch=context.api_version >= _BUMPS_SINCE,
        )

    following, error = await attempt(end, api=API.key)
    if following is not None:
        return EndTxnResponse(producer_id=following.producer_id, producer_epoch=following.producer_epoch)
    code = error.error_code
    if code is ErrorCode.PRODUCER_FENCED and context.api_version < _FENCED_SINCE:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return EndTxnResponse(error_code=code)


ROUTE: Final = Route(api=API, request=EndTxnRequest, handle=handle)
