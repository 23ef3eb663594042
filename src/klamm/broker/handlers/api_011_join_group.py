"""JoinGroup (key 11), v0-9.

The response is sent when all members have joined or the rebalance timeout has passed. v0 has no rebalance timeout and
uses the session timeout. From v4 on a dynamic member without an id gets MEMBER_ID_REQUIRED (KIP-394). v5 adds static
members (KIP-345), v9 a leader that skips the assignment (KIP-814). A session timeout that the broker enforces for the
client (``client.config.enforcement``) replaces the requested one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.groups.classic.model import JoinAttempt
from klamm.broker.requests.checks import require_coordinator, require_group
from klamm.client_configs.definitions import SESSION_TIMEOUT_MS
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import KafkaApiError
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from klamm.security.acls import AclOperation
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext
    from klamm.broker.groups.classic.model import JoinReply

API: Final = Api(key=ApiKey.JOIN_GROUP, min_version=0, max_version=9)
FIRST_VERSION_WITH_REBALANCE_TIMEOUT: Final = 1
FIRST_VERSION_REQUIRING_MEMBER_ID: Final = 4
FIRST_VERSION_WITH_NULLABLE_PROTOCOL: Final = 7
FIRST_VERSION_SKIPPING_ASSIGNMENT: Final = 9


async def handle(request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
    """Let the member join its group."""
    try:
        require_group(context, AclOperation.READ, request.group_id)
        require_coordinator(request.group_id, context.node_id, context.services.cluster)
    except KafkaApiError as error:
        return JoinGroupResponse(
            error_code=error.error_code,
            member_id=request.member_id,
            generation_id=-1,
            protocol_name=_nullable(None, context.api_version),
        )
    reply = await context.services.groups.classic.join(request.group_id, _attempt(request, context))
    return _response(reply, context.api_version)


def _attempt(request: JoinGroupRequest, context: RequestContext) -> JoinAttempt:
    version = context.api_version
    context.session.reported[SESSION_TIMEOUT_MS] = request.session_timeout_ms
    has_rebalance_timeout = version >= FIRST_VERSION_WITH_REBALANCE_TIMEOUT
    return JoinAttempt(
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        client_host=f"/{context.session.client_host}",
        session_timeout_ms=request.session_timeout_ms,
        enforced_session_timeout_ms=context.services.enforcement.session_timeout_ms(context.session, context.client_id),
        rebalance_timeout_ms=request.rebalance_timeout_ms if has_rebalance_timeout else request.session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
        requires_known_member_id=version >= FIRST_VERSION_REQUIRING_MEMBER_ID,
        supports_skipping_assignment=version >= FIRST_VERSION_SKIPPING_ASSIGNMENT,
    )


def _response(reply: JoinReply, version: int) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=reply.error_code,
        generation_id=reply.generation_id,
        protocol_type=reply.protocol_type,
        protocol_name=_nullable(reply.protocol_name, version),
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.group_instance_id, metadata=member.metadata
            )
            for member in reply.members
        ],
    )


def _nullable(protocol_name: str | None, version: int) -> str | None:
    """Return the protocol name for the response; versions without null get an empty string."""
    return "" if protocol_name is None and version < FIRST_VERSION_WITH_NULLABLE_PROTOCOL else protocol_name


ROUTE: Final = Route(api=API, request=JoinGroupRequest, handle=handle, may_wait=True)
