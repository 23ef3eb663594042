"""InitProducerId (key 22), v0-5.

An idempotent producer gets a new id with epoch 0. This requires IDEMPOTENT_WRITE on the cluster, or WRITE on any topic.
A transactional producer gets the id of its transactional id with the next epoch, which fences the previous producer
(KIP-98, KIP-360). This requires WRITE on the transactional id.
Not implemented: two-phase commit (v6, KIP-939), which Kafka 4.4 does not offer either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import may_cluster, may_transactional_id, may_write_somewhere, require_coordinator
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import (
    ClusterAuthorizationError,
    ErrorCode,
    InvalidRequestError,
    TransactionalIdAuthorizationError,
)
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.types import ProducerIdentity
from klamm.security.acls import AclOperation
from klamm.server.attempt import attempt
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.INIT_PRODUCER_ID, min_version=0, max_version=5)
_NONE: Final = -1
_FENCED_SINCE: Final = 4
"""First version with PRODUCER_FENCED; older clients know only INVALID_PRODUCER_EPOCH."""


async def handle(request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
    """Return the producer's id and epoch."""
    identity, error = await attempt(lambda: _initialize(request, context), api=API.key)
    if identity is None:
        code = error.error_code
        if code is ErrorCode.PRODUCER_FENCED and context.api_version < _FENCED_SINCE:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return InitProducerIdResponse(error_code=code, producer_id=_NONE, producer_epoch=_NONE)
    return InitProducerIdResponse(producer_id=identity.producer_id, producer_epoch=identity.producer_epoch)


async def _initialize(request: InitProducerIdRequest, context: RequestContext) -> ProducerIdentity:
    transactional_id = request.transactional_id
    if transactional_id is not None:
        if not may_transactional_id(context, AclOperation.WRITE, transactional_id):
            raise TransactionalIdAuthorizationError
    elif not may_cluster(context, AclOperation.IDEMPOTENT_WRITE) and not may_write_somewhere(context):
        raise ClusterAuthorizationError
    if (request.producer_id == _NONE) != (request.producer_epoch == _NONE):
        raise InvalidRequestError("Producer id and epoch are given together or not at all")
    if transactional_id is None:
        return ProducerIdentity(await context.services.producer_ids.allocate(), 0)
    require_coordinator(transactional_id, context.node_id, context.services.cluster)
    expected = None
    if request.producer_id != _NONE:
        expected = ProducerIdentity(request.producer_id, request.producer_epoch)
    return await context.services.transactions.initialize(
        transactional_id, timeout_ms=request.transaction_timeout_ms, expected=expected
    )


ROUTE: Final = Route(api=API, request=InitProducerIdRequest, handle=handle)
