"""Conversion of ACLs and ACL filters from request fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.protocol.errors import ProtocolError
from klamm.security.acls import Acl, AclFilter, AclOperation, AclPermission, AclResourceType, PatternType

if TYPE_CHECKING:
    from klamm.protocol.messages.create_acls import CreateAclsRequest
    from klamm.protocol.messages.delete_acls import DeleteAclsRequest
    from klamm.protocol.messages.describe_acls import DescribeAclsRequest


def read_filter(wanted: DescribeAclsRequest | DeleteAclsRequest.DeleteAclsFilter) -> AclFilter:
    """Convert a filter. A number outside Kafka's enum becomes UNKNOWN.

    Raises:
        ProtocolError: A field has the wire value UNKNOWN (0). Kafka closes the connection in this case.
    """
    _reject_unknown(wanted.resource_type_filter, wanted.pattern_type_filter, wanted.operation, wanted.permission_type)
    return AclFilter(
        resource_type=AclResourceType.from_wire(wanted.resource_type_filter),
        resource_name=wanted.resource_name_filter,
        pattern_type=PatternType.from_wire(wanted.pattern_type_filter),
        principal=wanted.principal_filter,
        host=wanted.host_filter,
        operation=AclOperation.from_wire(wanted.operation),
        permission=AclPermission.from_wire(wanted.permission_type),
    )


def read_acl(creation: CreateAclsRequest.AclCreation) -> Acl:
    """Convert an ACL. A number outside Kafka's enum becomes UNKNOWN.

    Raises:
        ProtocolError: A field has the wire value UNKNOWN (0). Kafka closes the connection in this case.
    """
    _reject_unknown(
        creation.resource_type, creation.resource_pattern_type, creation.operation, creation.permission_type
    )
    return Acl.from_wire(
        creation.resource_type,
        creation.resource_name,
        creation.resource_pattern_type,
        principal=creation.principal,
        host=creation.host,
        operation=creation.operation,
        permission=creation.permission_type,
    )


def _reject_unknown(*numbers: int) -> None:
    if 0 in numbers:
        raise ProtocolError("An ACL or an ACL filter contains the value UNKNOWN (0)")
