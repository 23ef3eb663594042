"""SyncGroup (key 14), v0-5.

The response to a follower waits for the leader's assignment, and every response waits until that is durable. v5 must
name the protocol and its type, and they must be the group's (KIP-559).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.groups.classic.model import SyncAttempt
from klamm.broker.groups.errors import InconsistentGroupProtocolError
from klamm.broker.requests.checks import require_coordinator, require_group
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import KafkaApiError
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from klamm.security.acls import AclOperation
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.SYNC_GROUP, min_version=0, max_version=5)
_PROTOCOL_SINCE: Final = 5


async def handle(request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
    """Return the assignment of a member."""
    try:
        if context.api_version >= _PROTOCOL_SINCE and None in {request.protocol_type, request.protocol_name}:
            raise InconsistentGroupProtocolError("SyncGroup v5 needs a protocol type and a protocol name")
        require_group(context, AclOperation.READ, request.group_id)
        require_coordinator(request.group_id, context.node_id, context.services.cluster)
    except KafkaApiError as error:
        return SyncGroupResponse(error_code=error.error_code)
    reply = await context.services.groups.classic.sync(
        request.group_id,
        SyncAttempt(
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation_id=request.generation_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments=tuple((share.member_id, bytes(share.assignment)) for share in request.assignments),
        ),
    )
    return SyncGroupResponse(
        error_code=reply.error_code,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        assignment=reply.assignment,
    )


ROUTE: Final = Route(api=API, request=SyncGroupRequest, handle=handle, may_wait=True)
