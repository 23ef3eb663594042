"""FindCoordinator (key 10), v0-6.

Key types: group (0), transaction (1). v0-3 have one key, v4-6 several with one entry each.
Not implemented: share groups (2). As by a Kafka broker without a share coordinator, they get INVALID_REQUEST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import may_group, may_transactional_id
from klamm.broker.requests.internal_topics import ensure_internal_topic
from klamm.configs.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.security.acls import AclOperation
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.cluster import AdvertisedBroker
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.FIND_COORDINATOR, min_version=0, max_version=6)
FIRST_VERSION_WITH_KEYS: Final = 4
GROUP: Final = 0
TRANSACTION: Final = 1
_TOPICS: Final = {GROUP: CONSUMER_OFFSETS, TRANSACTION: TRANSACTION_STATE}
"""Internal topic of each key type. As in Kafka, the first request for a coordinator creates it."""
NOWHERE: Final = ("", -1, -1)
"""Host, port and node id of an entry without a coordinator."""


async def handle(request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
    """Return the coordinator of each key."""
    if context.api_version >= FIRST_VERSION_WITH_KEYS:
        return FindCoordinatorResponse(
            coordinators=[
                await _answer(key, request.key_type, context)
                async for key in context.time_slice.over(request.coordinator_keys)
            ]
        )
    answer = await _answer(request.key, request.key_type, context)
    words = f"No coordinator for keys of type {request.key_type}."
    if answer.error_code != ErrorCode.INVALID_REQUEST:
        # Only in these versions, Kafka sets the message NONE for success.
        words = ErrorCode(answer.error_code).name
    return FindCoordinatorResponse(
        error_code=answer.error_code,
        error_message=words,
        node_id=answer.node_id,
        host=answer.host,
        port=answer.port,
    )


async def _answer(key: str, key_type: int, context: RequestContext) -> FindCoordinatorResponse.Coordinator:
    error_code = _denied(key, key_type, context)
    node = None if error_code else await _find(key, key_type, context)
    if node is None and not error_code:
        error_code = ErrorCode.INVALID_REQUEST
    host, port, node_id = NOWHERE if node is None else (node.host, node.port, node.node_id)
    return FindCoordinatorResponse.Coordinator(
        key=key,
        node_id=node_id,
        host=host,
        port=port,
        error_code=error_code,
    )


def _denied(key: str, key_type: int, context: RequestContext) -> ErrorCode:
    if key_type == GROUP and not may_group(context, AclOperation.DESCRIBE, key):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if key_type == TRANSACTION and not may_transactional_id(context, AclOperation.DESCRIBE, key):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return ErrorCode.NONE


async def _find(key: str, key_type: int, context: RequestContext) -> AdvertisedBroker | None:
    if key_type not in _TOPICS:
        return None
    await ensure_internal_topic(_TOPICS[key_type], context.services)
    cluster = context.services.cluster
    return cluster.node(cluster.coordinator(key), context.session.listener)


ROUTE: Final = Route(api=API, request=FindCoordinatorRequest, handle=handle)
