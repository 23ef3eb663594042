"""DeleteAcls (key 31), v1-3: removes and returns the ACLs that match each filter, in one commit.

Requires ALTER on the cluster. SECURITY_DISABLED without an authorizer. A filter with an unknown enum value is rejected;
the other filters are applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import require_cluster
from klamm.broker.security.acl_wire import read_filter
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import KafkaApiError
from klamm.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from klamm.security.acls import AclOperation
from klamm.server.attempt import attempt
from klamm.server.route import Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.context import RequestContext
    from klamm.security.acls import Acl

API: Final = Api(key=ApiKey.DELETE_ACLS, min_version=1, max_version=3)


async def handle(request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    """Delete the matching ACLs."""
    filters = await context.time_slice.listed(read_filter(wanted) for wanted in request.filters)

    async def step() -> Sequence[Sequence[Acl] | KafkaApiError]:
        require_cluster(context, AclOperation.ALTER)
        return await context.services.authorizer.delete(filters, context.time_slice)

    outcomes, error = await attempt(step, api=API.key)
    if outcomes is None:
        rejected = DeleteAclsResponse.DeleteAclsFilterResult(
            error_code=error.error_code, error_message=error.error_message
        )
        return DeleteAclsResponse(filter_results=[rejected] * len(filters))
    return DeleteAclsResponse(filter_results=[_answer(outcome) async for outcome in context.time_slice.over(outcomes)])


def _answer(outcome: Sequence[Acl] | KafkaApiError) -> DeleteAclsResponse.DeleteAclsFilterResult:
    if isinstance(outcome, KafkaApiError):
        return DeleteAclsResponse.DeleteAclsFilterResult(
            error_code=outcome.error_code, error_message=outcome.error_message
        )
    return DeleteAclsResponse.DeleteAclsFilterResult(
        error_message=None,
        matching_acls=[
            DeleteAclsResponse.DeleteAclsMatchingAcl(
                error_message=None,
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in outcome
        ],
    )


ROUTE: Final = Route(api=API, request=DeleteAclsRequest, handle=handle)
