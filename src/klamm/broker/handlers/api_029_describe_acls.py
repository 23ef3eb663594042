"""DescribeAcls (key 29), v1-3: the ACLs that match a filter, by resource pattern.

Requires DESCRIBE on the cluster. SECURITY_DISABLED without an authorizer. A filter with an unknown enum value matches
nothing.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import require_cluster
from klamm.broker.security.acl_wire import read_filter
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from klamm.security.acls import AclOperation
from klamm.server.attempt import attempt
from klamm.server.route import Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.context import RequestContext
    from klamm.security.acls import Acl

API: Final = Api(key=ApiKey.DESCRIBE_ACLS, min_version=1, max_version=3)


async def handle(request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
    """Return the matching ACLs."""
    wanted, slices = read_filter(request), context.time_slice

    async def step() -> Sequence[Acl]:
        require_cluster(context, AclOperation.DESCRIBE)
        return context.services.authorizer.find(wanted)

    acls, error = await attempt(step, api=API.key)
    by_pattern = groupby(acls or (), key=lambda acl: (acl.resource_type, acl.resource_name, acl.pattern_type))
    return DescribeAclsResponse(
        error_code=error.error_code,
        error_message=error.error_message,
        resources=[
            DescribeAclsResponse.DescribeAclsResource(
                resource_type=resource_type,
                resource_name=name,
                pattern_type=pattern_type,
                acls=await slices.listed(
                    DescribeAclsResponse.AclDescription(
                        principal=acl.principal,
                        host=acl.host,
                        operation=acl.operation,
                        permission_type=acl.permission,
                    )
                    for acl in group
                ),
            )
            async for (resource_type, name, pattern_type), group in slices.over(by_pattern)
        ],
    )


ROUTE: Final = Route(api=API, request=DescribeAclsRequest, handle=handle)
