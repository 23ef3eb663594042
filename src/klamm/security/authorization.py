"""Authorization by ACLs: the decisions of Kafka's ``StandardAuthorizer``.

DENY wins over ALLOW. An ALLOW for READ, WRITE, DELETE or ALTER also allows DESCRIBE, and one for ALTER_CONFIGS also
allows DESCRIBE_CONFIGS. A DENY implies nothing. Super users may do everything. If no ACL covers a resource,
``allow.everyone.if.no.acl.found`` decides.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from itertools import chain
from typing import TYPE_CHECKING, Final

from klamm.hosts import host_forms
from klamm.lazy_dataclass import dataclass
from klamm.security.acls import WILDCARD, Acl, AclOperation, AclPermission, AclResourceType, PatternType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from klamm.security.acls import AclFilter

EVERYBODY: Final = "User:*"
_ANY_NAME: Final = "hardcode"
"""Kafka's name for a resource that stands for all of its type."""

_ALLOWED_BY: Final[Mapping[AclOperation, frozenset[AclOperation]]] = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}),
}
"""Operations whose ALLOW also allows the key, besides the key itself."""

OPERATIONS: Final[Mapping[AclResourceType, tuple[AclOperation, ...]]] = {
    AclResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    AclResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    AclResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
"""Operations on a resource type that ``authorized_operations`` has bits for (KIP-430)."""


@dataclass(slots=True)
class _OfType:
    """ACLs of one resource type, indexed by the name in their pattern."""

    literal: dict[str, set[Acl]] = field(default_factory=dict)
    prefixed: dict[str, set[Acl]] = field(default_factory=dict)
    lengths: Counter[int] = field(default_factory=Counter)
    """Number of prefixes by length."""

    def patterns_like(self, acl: Acl) -> dict[str, set[Acl]]:
        """Return the index for a pattern type."""
        return self.prefixed if acl.pattern_type == PatternType.PREFIXED else self.literal

    def concerning(self, name: str) -> Iterator[Acl]:
        """Yield every ACL whose pattern covers ``name``."""
        yield from self.literal.get(name, ())
        if name != WILDCARD:
            yield from self.literal.get(WILDCARD, ())
        for length in self.lengths:
            if length <= len(name):
                yield from self.prefixed.get(name[:length], ())

    def named(self, name: str) -> Iterator[Acl]:
        """Yield every ACL whose pattern is exactly ``name``."""
        yield from self.literal.get(name, ())
        yield from self.prefixed.get(name, ())


class AclRules:
    """ACLs in force, indexed so that a decision costs only as much as the ACLs it concerns. Not thread-safe."""

    def __init__(self, acls: Iterable[Acl], *, super_users: frozenset[str], allows_without_acl: bool) -> None:
        self.super_users = super_users
        self._allows_without_acl = allows_without_acl
        self._acls: set[Acl] = set()
        self._by_type: dict[AclResourceType, _OfType] = {}
        self._by_principal: dict[str, set[Acl]] = {}
        for acl in acls:
            self.add(acl)

    def __contains__(self, acl: Acl) -> bool:
        """Return whether an ACL is in force."""
        return acl in self._acls

    def add(self, acl: Acl) -> None:
        """Add an ACL. Adding it twice has no effect."""
        if acl in self._acls:
            return
        self._acls.add(acl)
        of_type = self._by_type.setdefault(acl.resource_type, _OfType())
        patterns = of_type.patterns_like(acl)
        if patterns is of_type.prefixed and acl.resource_name not in patterns:
            of_type.lengths[len(acl.resource_name)] += 1
        patterns.setdefault(acl.resource_name, set()).add(acl)
        self._by_principal.setdefault(acl.principal, set()).add(acl)

    def remove(self, acl: Acl) -> None:
        """Remove an ACL."""
        self._acls.remove(acl)
        of_type = self._by_type[acl.resource_type]
        patterns = of_type.patterns_like(acl)
        if _drop(patterns, acl.resource_name, acl) and patterns is of_type.prefixed:
            length = len(acl.resource_name)
            of_type.lengths[length] -= 1
            if not of_type.lengths[length]:
                del of_type.lengths[length]
        if not of_type.literal and not of_type.prefixed:
            del self._by_type[acl.resource_type]
        _drop(self._by_principal, acl.principal, acl)

    def meant_by(self, wanted: AclFilter) -> list[Acl]:
        """Return the ACLs that a filter selects, in no order. Only ACLs of its name or its principal are checked."""
        candidates: Iterable[Acl] = self._acls
        name = wanted.resource_name
        if name is not None:
            look = _OfType.concerning if wanted.pattern_type == PatternType.MATCH else _OfType.named
            candidates = chain.from_iterable(look(of_type, name) for of_type in self._by_type.values())
        elif wanted.principal is not None:
            candidates = self._by_principal.get(wanted.principal, ())
        return [acl for acl in candidates if wanted.matches(acl)]

    def allow(
        self, principal: str, host: str, operation: AclOperation, resource_type: AclResourceType, name: str
    ) -> bool:
        """Return whether one action is allowed.

        Args:
            principal: Principal as ``Type:name``.
            host: IP address of the client as text.
            operation: Requested operation, never ALL or ANY.
            resource_type: Type of the resource.
            name: Name of the resource itself, not a pattern.
        """
        if principal in self.super_users:
            return True
        of_type = self._by_type.get(resource_type)
        hosts = host_forms(host)
        is_allowed, is_concerned = False, False
        for acl in of_type.concerning(name) if of_type is not None else ():
            is_concerned = True
            if not _applies(acl, principal, hosts, operation):
                continue
            if acl.permission == AclPermission.DENY:
                return False
            is_allowed = True
        return is_allowed or (self._allows_without_acl and not is_concerned)

    def allow_on_any(self, principal: str, host: str, operation: AclOperation, resource_type: AclResourceType) -> bool:
        """Return whether the action is allowed on some resource of a type (Kafka's ``authorizeByResourceType``).

        Where no ACL allows it, ``allow.everyone.if.no.acl.found`` decides as for a resource of the name ``hardcode``.
        """
        if self.allow(principal, host, operation, resource_type, _ANY_NAME):
            return True
        of_type = self._by_type.get(resource_type)
        if of_type is None:
            return False
        allowed, denied = _split(of_type, principal, host, operation)
        if any(acl.resource_name == WILDCARD and acl.pattern_type == PatternType.LITERAL for acl in denied):
            return False
        return any(not _is_covered(acl, denied) for acl in allowed)


def _drop(index: dict[str, set[Acl]], key: str, acl: Acl) -> bool:
    """Remove an ACL from an index. Return whether it was the last one under its key."""
    index[key].remove(acl)
    if index[key]:
        return False
    del index[key]
    return True


def _split(of_type: _OfType, principal: str, host: str, operation: AclOperation) -> tuple[list[Acl], list[Acl]]:
    hosts = host_forms(host)
    applying = [
        acl
        for patterns in (of_type.literal, of_type.prefixed)
        for acls in patterns.values()
        for acl in acls
        if _applies(acl, principal, hosts, operation)
    ]
    allowed = [acl for acl in applying if acl.permission == AclPermission.ALLOW]
    return allowed, [acl for acl in applying if acl.permission == AclPermission.DENY]


def _is_covered(allowed: Acl, denied: Iterable[Acl]) -> bool:
    """Return whether some DENY covers everything that an ALLOW grants."""
    if allowed.resource_name == WILDCARD and allowed.pattern_type == PatternType.LITERAL:
        return False  # only a denied wildcard could cover a wildcard, and there is none
    for deny in denied:
        if deny.pattern_type == PatternType.PREFIXED and allowed.resource_name.startswith(deny.resource_name):
            return True
        if allowed.pattern_type == deny.pattern_type and allowed.resource_name == deny.resource_name:
            return True
    return False


def _applies(acl: Acl, principal: str, hosts: Sequence[str], operation: AclOperation) -> bool:
    if acl.principal not in (principal, EVERYBODY) or (acl.host != WILDCARD and acl.host not in hosts):
        return False
    if acl.operation in (operation, AclOperation.ALL):
        return True
    return acl.permission == AclPermission.ALLOW and acl.operation in _ALLOWED_BY.get(operation, ())
