"""Access control lists: the ACL itself, and the filters that select ACLs (KIP-50, KIP-290).

Numbers are those of the wire protocol. An unknown number becomes UNKNOWN, which matches nothing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Self

from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import InvalidRequestError

WILDCARD: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"
"""Name of the only resource of type CLUSTER."""


class _WireEnum(IntEnum):
    @classmethod
    def from_wire(cls, number: int) -> Self:
        """Return the member of a wire value, UNKNOWN for a value without a member."""
        try:
            return cls(number)
        except ValueError:
            return cls(0)


class AclResourceType(_WireEnum):
    """Wire values of ``resource_type`` in the ACL APIs. They differ from the numbers of config resources."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_WireEnum):
    """Wire values of ``resource_pattern_type`` and ``pattern_type``."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(_WireEnum):
    """Wire values of ``operation``."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(_WireEnum):
    """Wire values of ``permission_type``."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Acl:
    """One ACL: it allows or denies a principal one operation on the resources that its pattern covers."""

    resource_type: AclResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    """``Type:name``; ``User:*`` stands for every user."""
    host: str
    """IP address as text; ``*`` stands for every address."""
    operation: AclOperation
    permission: AclPermission

    @classmethod
    def from_wire(
        cls,
        resource_type: int,
        resource_name: str,
        pattern_type: int,
        *,
        principal: str,
        host: str,
        operation: int,
        permission: int,
    ) -> Acl:
        """Return an ACL for wire values. Unknown values become UNKNOWN."""
        return cls(
            resource_type=AclResourceType.from_wire(resource_type),
            resource_name=resource_name,
            pattern_type=PatternType.from_wire(pattern_type),
            principal=principal,
            host=host,
            operation=AclOperation.from_wire(operation),
            permission=AclPermission.from_wire(permission),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Filter for ACLs. ANY, or None where there is no ANY, leaves a field open. The default leaves all fields open."""

    resource_type: AclResourceType = AclResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    """MATCH selects every pattern that covers the resource of that name."""
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY

    def matches(self, acl: Acl) -> bool:
        """Return whether the filter selects an ACL."""
        return (
            self.resource_type in (AclResourceType.ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (AclPermission.ANY, acl.permission)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return self.resource_name == acl.resource_name
        if acl.pattern_type == PatternType.LITERAL:
            return acl.resource_name in (self.resource_name, WILDCARD)
        return self.resource_name.startswith(acl.resource_name)


ANY_ACL: Final = AclFilter()
"""Filter that selects every ACL (Java's ``AclBindingFilter.ANY``)."""


def check_new_acl(acl: Acl) -> None:
    """Reject an ACL that cannot exist. Messages are Kafka's.

    Raises:
        InvalidRequestError: A field is ANY, MATCH or UNKNOWN, a name is empty, or the principal has no type.
    """
    if acl.resource_type == AclResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise InvalidRequestError(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not acl.resource_name:
        raise InvalidRequestError("Invalid empty resource name")
    if acl.resource_type in (AclResourceType.UNKNOWN, AclResourceType.ANY):
        raise InvalidRequestError(f"Invalid resourceType {acl.resource_type.name}")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidRequestError(f"Invalid patternType {acl.pattern_type.name}")
    if acl.operation in (AclOperation.UNKNOWN, AclOperation.ANY):
        raise InvalidRequestError(f"Invalid operation {acl.operation.name}")
    if acl.permission not in (AclPermission.DENY, AclPermission.ALLOW):
        raise InvalidRequestError(f"Invalid permissionType {acl.permission.name}")
    if ":" not in acl.principal:
        raise InvalidRequestError(
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal type"
            " from the principal name)"
        )


def check_filter(wanted: AclFilter) -> None:
    """Reject a filter that no ACL can match.

    Raises:
        InvalidRequestError: A field is unknown.
    """
    if wanted.resource_type == AclResourceType.UNKNOWN or wanted.pattern_type == PatternType.UNKNOWN:
        raise InvalidRequestError("Unknown patternFilter.")
    if wanted.operation == AclOperation.UNKNOWN or wanted.permission == AclPermission.UNKNOWN:
        raise InvalidRequestError("Unknown entryFilter.")
