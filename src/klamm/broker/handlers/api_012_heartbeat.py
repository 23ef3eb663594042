"""Heartbeat (key 12), v0-4: keeps a member alive. REBALANCE_IN_PROGRESS makes it join again.

A session timeout that the broker enforces for the client takes effect with its next heartbeat, and so does its removal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import require_coordinator, require_group
from klamm.client_configs.definitions import HEARTBEAT_INTERVAL_MS
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import KafkaApiError
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.security.acls import AclOperation
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.HEARTBEAT, min_version=0, max_version=4)


async def handle(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    """Record the heartbeat of a member."""
    try:
        require_group(context, AclOperation.READ, request.group_id)
        require_coordinator(request.group_id, context.node_id, context.services.cluster)
        enforced = context.services.enforcement.of_session(context.session, context.client_id)
        await context.services.groups.classic.heartbeat(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            enforced_session_timeout_ms=enforced.session_timeout_ms,
        )
    except KafkaApiError as error:
        return HeartbeatResponse(error_code=error.error_code)
    _observe(context)
    return HeartbeatResponse()


def _observe(context: RequestContext) -> None:
    """Record the time between two heartbeats, which is about the client's interval."""
    session, now_ms = context.session, context.services.now_ms()
    if session.last_heartbeat_ms:
        session.reported[HEARTBEAT_INTERVAL_MS] = now_ms - session.last_heartbeat_ms
    session.last_heartbeat_ms = now_ms


ROUTE: Final = Route(api=API, request=HeartbeatRequest, handle=handle)
