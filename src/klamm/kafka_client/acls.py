"""ACLs in the fields of DescribeAcls (KIP-140, KIP-290)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.protocol.messages.describe_acls import DescribeAclsRequest
from klamm.security.acls import Acl

if TYPE_CHECKING:
    from klamm.protocol.messages.describe_acls import DescribeAclsResponse
    from klamm.security.acls import AclFilter


def describe_acls_request(wanted: AclFilter) -> DescribeAclsRequest:
    """Return the request for the ACLs that match a filter."""
    return DescribeAclsRequest(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.resource_name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )


def described_acls(response: DescribeAclsResponse) -> tuple[Acl, ...]:
    """Return the ACLs of a response. Unknown wire values become UNKNOWN."""
    return tuple(
        Acl.from_wire(
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission=acl.permission_type,
        )
        for resource in response.resources
        for acl in resource.acls
    )
