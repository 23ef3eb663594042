"""ListGroups (key 16), v0-5: groups of the broker id that was asked, filtered by state (v4+) and type (v5).

With DESCRIBE on the cluster all groups are listed, otherwise those with DESCRIBE on the group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import may_cluster, may_group
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.security.acls import AclOperation
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.LIST_GROUPS, min_version=0, max_version=5)


async def handle(request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
    """List matching groups. A filter with only unknown states or types matches nothing."""
    cluster = context.services.cluster
    groups = context.services.groups.list_groups(states=request.states_filter, types=request.types_filter)
    may_all = may_cluster(context, AclOperation.DESCRIBE)
    return ListGroupsResponse(
        groups=[
            ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state.value,
                group_type=group.group_type,
            )
            async for group in context.time_slice.over(groups)
            if (may_all or may_group(context, AclOperation.DESCRIBE, group.group_id))
            and cluster.coordinator(group.group_id) == context.node_id
        ]
    )


ROUTE: Final = Route(api=API, request=ListGroupsRequest, handle=handle)
