"""LeaveGroup (key 13), v0-5.

v0-2 name one member, whose error is the top-level one. v3-5 name several, by member id or by instance id alone
(KIP-345), with one entry each; the group rebalances once for all of them. The reason (v5, KIP-800) is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.groups.classic.model import MemberIdentity
from klamm.broker.requests.checks import MAX_LEAVING_MEMBERS, check_count, require_coordinator, require_group
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import KafkaApiError
from klamm.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from klamm.security.acls import AclOperation
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.LEAVE_GROUP, min_version=0, max_version=5)
FIRST_VERSION_WITH_MEMBERS: Final = 3


async def handle(request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
    """Remove the members from their group."""
    is_batched = context.api_version >= FIRST_VERSION_WITH_MEMBERS
    identities = (
        await context.time_slice.listed(
            MemberIdentity(member_id=m.member_id, group_instance_id=m.group_instance_id) for m in request.members
        )
        if is_batched
        else [MemberIdentity(member_id=request.member_id, group_instance_id=None)]
    )
    try:
        require_group(context, AclOperation.READ, request.group_id)
        require_coordinator(request.group_id, context.node_id, context.services.cluster)
        check_count(identities, MAX_LEAVING_MEMBERS, "members")
        codes = await context.services.groups.classic.leave(request.group_id, identities)
    except KafkaApiError as error:
        return LeaveGroupResponse(error_code=error.error_code)
    if not is_batched:
        return LeaveGroupResponse(error_code=codes[0])
    return LeaveGroupResponse(
        members=await context.time_slice.listed(
            LeaveGroupResponse.MemberResponse(
                member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code
            )
            for identity, code in zip(identities, codes, strict=True)
        )
    )


ROUTE: Final = Route(api=API, request=LeaveGroupRequest, handle=handle)
