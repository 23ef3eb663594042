"""Pure translation of the flags of ``klamm acls`` into resources and ACLs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.cli.connection import RequestError
from klamm.lazy_dataclass import dataclass
from klamm.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Iterable

_NAMED: Final = {
    "topic": AclResourceType.TOPIC,
    "group": AclResourceType.GROUP,
    "transactional_id": AclResourceType.TRANSACTIONAL_ID,
    "delegation_token": AclResourceType.DELEGATION_TOKEN,
    "user_principal": AclResourceType.USER,
}
RESOURCES: Final = (*(name.replace("_", "-") for name in _NAMED), "cluster", "idempotent")
"""Flags that select a resource."""

_OPERATIONS: Final = {name.replace("_", "").lower(): operation for name, operation in AclOperation.__members__.items()}
_ON_RECORDS: Final = (AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DESCRIBE)
_ON_CONFIGS: Final = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)
_SUPPORTED: Final = {
    AclResourceType.TOPIC: (*_ON_RECORDS, AclOperation.DELETE, AclOperation.ALTER, *_ON_CONFIGS),
    AclResourceType.GROUP: (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE, *_ON_CONFIGS),
    AclResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.IDEMPOTENT_WRITE,
        *_ON_CONFIGS,
    ),
    AclResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.TWO_PHASE_COMMIT),
    AclResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    AclResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}
"""Operations that exist for each type of resource, in addition to ALL."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ResourceFilter:
    """A resource of the flags. For ``--add`` it is the pattern of the new ACLs."""

    resource_type: AclResourceType
    name: str
    pattern_type: PatternType

    def __str__(self) -> str:
        """Return the resource as Kafka's tool prints it."""
        return (
            f"ResourcePattern(resourceType={self.resource_type.name}, name={self.name},"
            f" patternType={self.pattern_type.name})"
        )

    def everything(self) -> AclFilter:
        """Return the filter for all ACLs of the resource."""
        return AclFilter(resource_type=self.resource_type, resource_name=self.name, pattern_type=self.pattern_type)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AccessRule:
    """An ACL without its resource."""

    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission

    def __str__(self) -> str:
        """Return the rule as Kafka's tool prints it."""
        return (
            f"(principal={self.principal}, host={self.host}, operation={self.operation.name},"
            f" permissionType={self.permission.name})"
        )

    def acl(self, resource: ResourceFilter) -> Acl:
        """Return the ACL for a resource."""
        return Acl(
            resource_type=resource.resource_type,
            resource_name=resource.name,
            pattern_type=resource.pattern_type,
            principal=self.principal,
            host=self.host,
            operation=self.operation,
            permission=self.permission,
        )

    def filter(self, resource: ResourceFilter) -> AclFilter:
        """Return the filter that matches this ACL on a resource."""
        return AclFilter(
            resource_type=resource.resource_type,
            resource_name=resource.name,
            pattern_type=resource.pattern_type,
            principal=self.principal,
            host=self.host,
            operation=self.operation,
            permission=self.permission,
        )


Rules = dict[ResourceFilter, tuple[AccessRule, ...]]


def of_acl(acl: Acl) -> tuple[ResourceFilter, AccessRule]:
    """Return an ACL in its two parts."""
    resource = ResourceFilter(resource_type=acl.resource_type, name=acl.resource_name, pattern_type=acl.pattern_type)
    rule = AccessRule(principal=acl.principal, host=acl.host, operation=acl.operation, permission=acl.permission)
    return resource, rule


def rules_of(options: argparse.Namespace) -> Rules:
    """Return the selected resources, in order, with the ACLs that the flags describe.

    Raises:
        RequestError: An operation does not exist for a resource, or ``--add`` has no principal.
    """
    resources = _resources(options)
    if not options.producer and not options.consumer:
        words = options.operation or ["all"]
        operations = [_OPERATIONS.get(word.strip().replace("_", "").lower(), AclOperation.UNKNOWN) for word in words]
        by_resource = {resource: _rules(options, operations) for resource in resources}
    else:
        by_resource = {}
        for resource in resources:
            operations = list(_of_roles(resource.resource_type, options))
            if operations:
                by_resource[resource] = _rules(options, operations)
    for resource, rules in by_resource.items():
        _check_operations(resource.resource_type, rules)
        if options.add and not rules:
            raise RequestError("You must specify one of: --allow-principal, --deny-principal when trying to add ACLs.")
    return by_resource


def _resources(options: argparse.Namespace) -> list[ResourceFilter]:
    pattern_type = options.resource_pattern_type
    resources = [
        ResourceFilter(resource_type=resource_type, name=name.strip(), pattern_type=pattern_type)
        for flag, resource_type in _NAMED.items()
        for name in getattr(options, flag) or ()
    ]
    # The cluster has one, literal name. As in Kafka's tool, --cluster has no effect with other pattern types, which are
    # for the other resources.
    if options.idempotent or (options.cluster and pattern_type is PatternType.LITERAL):
        resources.append(
            ResourceFilter(resource_type=AclResourceType.CLUSTER, name=CLUSTER_NAME, pattern_type=PatternType.LITERAL)
        )
    return sorted(set(resources))


def _of_roles(resource_type: AclResourceType, options: argparse.Namespace) -> Iterable[AclOperation]:
    """Return the operations of a producer or a consumer on a resource."""
    if options.producer:
        yield from {
            AclResourceType.TOPIC: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE),
            AclResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
            AclResourceType.CLUSTER: (AclOperation.IDEMPOTENT_WRITE,) if options.idempotent else (),
        }.get(resource_type, ())
    if options.consumer:
        yield from {
            AclResourceType.TOPIC: (AclOperation.READ, AclOperation.DESCRIBE),
            AclResourceType.GROUP: (AclOperation.READ,),
        }.get(resource_type, ())


def _rules(options: argparse.Namespace, operations: Collection[AclOperation]) -> tuple[AccessRule, ...]:
    return tuple(
        sorted(
            {
                AccessRule(principal=principal.strip(), host=host.strip(), operation=operation, permission=permission)
                for principals, hosts, permission in (
                    (options.allow_principal, options.allow_host, AclPermission.ALLOW),
                    (options.deny_principal, options.deny_host, AclPermission.DENY),
                )
                for principal in principals or ()
                for host in hosts or (WILDCARD,)
                for operation in operations
            }
        )
    )


def _check_operations(resource_type: AclResourceType, rules: Iterable[AccessRule]) -> None:
    allowed = (AclOperation.ALL, *_SUPPORTED[resource_type])
    if any(rule.operation not in allowed for rule in rules):
        listed = ", ".join(operation.name for operation in sorted(allowed))
        raise RequestError(f"ResourceType {resource_type.name} only supports operations [{listed}]")


def check_principals(principals: Iterable[str]) -> None:
    """Check that principals have a type and a name.

    Raises:
        RequestError: A principal lacks its type or its name. The message is Kafka's.
    """
    for text in principals:
        kind, colon, name = text.partition(":")
        if not (kind and colon and name):
            raise RequestError(f"expected a string in format principalType:principalName but got {text}")
