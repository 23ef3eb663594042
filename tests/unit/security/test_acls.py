from __future__ import annotations

from dataclasses import replace

import pytest

from klamm.protocol.errors import InvalidRequestError
from klamm.security.acls import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    check_filter,
    check_new_acl,
)

ACL = Acl(
    resource_type=AclResourceType.TOPIC,
    resource_name="orders",
    pattern_type=PatternType.LITERAL,
    principal="User:alice",
    host="*",
    operation=AclOperation.READ,
    permission=AclPermission.ALLOW,
)
EVERYTHING = AclFilter(
    resource_type=AclResourceType.ANY,
    resource_name=None,
    pattern_type=PatternType.ANY,
    principal=None,
    host=None,
    operation=AclOperation.ANY,
    permission=AclPermission.ANY,
)


def test_open_filter_matches_every_acl() -> None:
    assert EVERYTHING.matches(ACL)


@pytest.mark.parametrize(
    ("wanted", "is_meant"),
    [
        (replace(EVERYTHING, resource_type=AclResourceType.GROUP), False),
        (replace(EVERYTHING, resource_type=AclResourceType.TOPIC), True),
        (replace(EVERYTHING, principal="User:bob"), False),
        (replace(EVERYTHING, host="10.0.0.1"), False),
        (replace(EVERYTHING, operation=AclOperation.WRITE), False),
        (replace(EVERYTHING, permission=AclPermission.DENY), False),
        (replace(EVERYTHING, pattern_type=PatternType.PREFIXED), False),
        (replace(EVERYTHING, resource_name="orders"), True),
        (replace(EVERYTHING, resource_name="order"), False),
        (replace(EVERYTHING, operation=AclOperation.UNKNOWN), False),
    ],
)
def test_each_filter_part_narrows_the_filter(wanted: AclFilter, *, is_meant: bool) -> None:
    assert wanted.matches(ACL) is is_meant


@pytest.mark.parametrize(
    ("pattern_type", "name", "is_meant"),
    [
        (PatternType.LITERAL, "orders", True),
        (PatternType.LITERAL, "*", True),
        (PatternType.LITERAL, "ord", False),
        (PatternType.PREFIXED, "ord", True),
        (PatternType.PREFIXED, "orders.x", False),
    ],
)
def test_match_pattern_selects_acls_covering_the_resource(
    pattern_type: PatternType, name: str, *, is_meant: bool
) -> None:
    acl = replace(ACL, pattern_type=pattern_type, resource_name=name)
    assert replace(EVERYTHING, pattern_type=PatternType.MATCH, resource_name="orders").matches(acl) is is_meant


@pytest.mark.parametrize(
    ("acl", "reason"),
    [
        (replace(ACL, resource_name=""), "Invalid empty resource name"),
        (replace(ACL, resource_type=AclResourceType.ANY), "Invalid resourceType ANY"),
        (replace(ACL, pattern_type=PatternType.MATCH), "Invalid patternType MATCH"),
        (replace(ACL, operation=AclOperation.ANY), "Invalid operation ANY"),
        (replace(ACL, permission=AclPermission.UNKNOWN), "Invalid permissionType UNKNOWN"),
        (replace(ACL, resource_type=AclResourceType.CLUSTER), "The only valid name for the CLUSTER resource is"),
        (replace(ACL, principal="alice"), "Could not parse principal"),
    ],
)
def test_invalid_acl_is_rejected(acl: Acl, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        check_new_acl(acl)


def test_filter_with_unknown_parts_is_rejected() -> None:
    with pytest.raises(InvalidRequestError, match="patternFilter"):
        check_filter(replace(EVERYTHING, pattern_type=PatternType.from_wire(99)))
    with pytest.raises(InvalidRequestError, match="entryFilter"):
        check_filter(replace(EVERYTHING, operation=AclOperation.from_wire(99)))
    check_filter(EVERYTHING)
