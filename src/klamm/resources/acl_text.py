"""Text form of an ACL of one principal: the key of an ACL in plans and files, and back."""

from __future__ import annotations

from klamm.security.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType

_FROM = " from "


def acl_text(acl: Acl) -> str:
    """Return ``ALLOW READ on TOPIC:LITERAL:orders from *``, which names all of an ACL but the principal."""
    resource = f"{acl.resource_type.name}:{acl.pattern_type.name}:{acl.resource_name}"
    return f"{acl.permission.name} {acl.operation.name} on {resource}{_FROM}{acl.host}"


def acl_of(principal: str, text: str) -> Acl:
    """Return the ACL of a principal from the text that ``acl_text`` returns."""
    permission, operation, _, rest = text.split(" ", 3)
    resource, _, host = rest.rpartition(_FROM)
    resource_type, pattern_type, name = resource.split(":", 2)
    return Acl(
        resource_type=AclResourceType[resource_type],
        resource_name=name,
        pattern_type=PatternType[pattern_type],
        principal=principal,
        host=host,
        operation=AclOperation[operation],
        permission=AclPermission[permission],
    )
