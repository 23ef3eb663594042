"""InitProducerId (key 22), v0-5.

Gives an idempotent producer an id that nobody had before, with epoch 0. Needs IDEMPOTENT_WRITE on the cluster, or
WRITE on some topic.
Not done here: transactional ids (KIP-98): refused, told in the log.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from klamm.broker.attempt import attempt
from klamm.broker.route import Route
from klamm.broker.security.checks import may_cluster, may_transactional_id, may_write_somewhere
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ClusterAuthorizationError, InvalidRequestError, TransactionalIdAuthorizationError
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.security.acls import AclOperation

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

logger = logging.getLogger(__name__)

API: Final = Api(key=ApiKey.INIT_PRODUCER_ID, min_version=0, max_version=5)
_NONE: Final = -1


async def handle(request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
    """Allocate an id."""

    async def allocate() -> int:
        if request.transactional_id is not None:
            if not may_transactional_id(context, AclOperation.WRITE, request.transactional_id):
                raise TransactionalIdAuthorizationError
            logger.warning(
                "Transactional id %r of client %s is refused: there are no transactions here",
                request.transactional_id,
                context.client_id,
            )
            raise InvalidRequestError("Transactional ids are not supported")
        if not may_cluster(context, AclOperation.IDEMPOTENT_WRITE) and not may_write_somewhere(context):
            raise ClusterAuthorizationError
        if (request.producer_id == _NONE) != (request.producer_epoch == _NONE):
            raise InvalidRequestError("Producer id and epoch are given together or not at all")
        return await context.services.producer_ids.allocate()

    producer_id, error = await attempt(allocate, api=API.key)
    if producer_id is None:
        return InitProducerIdResponse(error_code=error.error_code, producer_id=_NONE, producer_epoch=_NONE)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


ROUTE: Final = Route(api=API, request=InitProducerIdRequest, handle=handle)
