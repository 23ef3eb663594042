"""DeleteGroups (key 42), v0-3: one entry per group. A group with members is not deleted; the others are.

Error messages (v3) are null, as in Kafka for groups of these types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import require_coordinator, require_group
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from klamm.security.acls import AclOperation
from klamm.server.attempt import attempt
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.DELETE_GROUPS, min_version=0, max_version=3)


async def handle(request: DeleteGroupsRequest, context: RequestContext) -> DeleteGroupsResponse:
    """Return one entry per group, after the deletions are durable. As in Kafka, a repeated group has one entry."""
    results: dict[str, DeleteGroupsResponse.DeletableGroupResult] = {}
    async for group_id in context.time_slice.over(request.groups_names):
        if group_id not in results:
            results[group_id] = await _answer(group_id, context)
    return DeleteGroupsResponse(results=list(results.values()))


async def _answer(group_id: str, context: RequestContext) -> DeleteGroupsResponse.DeletableGroupResult:
    async def delete() -> None:
        require_group(context, AclOperation.DELETE, group_id)
        require_coordinator(group_id, context.node_id, context.services.cluster)
        await context.services.groups.delete(group_id)

    _, error = await attempt(delete, api=API.key)
    return DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=error.error_code)


ROUTE: Final = Route(api=API, request=DeleteGroupsRequest, handle=handle)
