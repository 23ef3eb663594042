"""DescribeGroups (key 15), v0-6.

One entry per group. A group that does not exist is Dead, from v6 on with GROUP_ID_NOT_FOUND (KIP-1043). The protocol
and the members' metadata are included while the group is stable.
Requires DESCRIBE on the group. Authorized operations (v3+) are returned on request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.groups.classic.model import GroupState
from klamm.broker.groups.errors import GroupIdNotFoundError
from klamm.broker.requests.checks import OPERATIONS_OMITTED, authorized_operations, require_coordinator, require_group
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from klamm.security.acls import AclOperation, AclResourceType
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext
    from klamm.broker.groups.coordinator import DescribedGroup

API: Final = Api(key=ApiKey.DESCRIBE_GROUPS, min_version=0, max_version=6)
FIRST_VERSION_WITH_NOT_FOUND: Final = 6


async def handle(request: DescribeGroupsRequest, context: RequestContext) -> DescribeGroupsResponse:
    """Return one entry per group. An error does not affect other groups."""
    has_operations = request.include_authorized_operations
    return DescribeGroupsResponse(
        groups=[
            _answer(
                group_id,
                authorized_operations(context, AclResourceType.GROUP, group_id)
                if has_operations
                else OPERATIONS_OMITTED,
                context,
            )
            async for group_id in context.time_slice.over(request.groups)
        ]
    )


def _answer(group_id: str, operations: int, context: RequestContext) -> DescribeGroupsResponse.DescribedGroup:
    try:
        require_group(context, AclOperation.DESCRIBE, group_id)
        require_coordinator(group_id, context.node_id, context.services.cluster)
        return _described(context.services.groups.describe(group_id), operations)
    except GroupIdNotFoundError as error:
        has_not_found = context.api_version >= FIRST_VERSION_WITH_NOT_FOUND
        return DescribeGroupsResponse.DescribedGroup(
            error_code=error.error_code if has_not_found else ErrorCode.NONE,
            error_message=error.error_message if has_not_found else None,
            group_id=group_id,
            group_state=GroupState.DEAD.value,
            authorized_operations=OPERATIONS_OMITTED if has_not_found else operations,
        )
    except KafkaApiError as error:
        return DescribeGroupsResponse.DescribedGroup(group_id=group_id, error_code=error.error_code)


def _described(group: DescribedGroup, operations: int) -> DescribeGroupsResponse.DescribedGroup:
    return DescribeGroupsResponse.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        members=[
            DescribeGroupsResponse.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
        authorized_operations=operations,
    )


ROUTE: Final = Route(api=API, request=DescribeGroupsRequest, handle=handle)
