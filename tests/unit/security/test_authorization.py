from __future__ import annotations

import pytest

from klamm.security.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from klamm.security.authorization import AclRules

TOPIC = AclResourceType.TOPIC
HOST = "10.0.0.1"


def acl(
    operation: AclOperation = AclOperation.READ,
    *,
    name: str = "orders",
    pattern: PatternType = PatternType.LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    permission: AclPermission = AclPermission.ALLOW,
) -> Acl:
    return Acl(
        resource_type=TOPIC,
        resource_name=name,
        pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission=permission,
    )


def allows(
    *acls: Acl, operation: AclOperation = AclOperation.READ, name: str = "orders", without_acl: bool = False
) -> bool:
    rules = AclRules(acls, super_users=frozenset({"User:root"}), allows_without_acl=without_acl)
    return rules.allow("User:alice", HOST, operation, TOPIC, name)


def test_everything_is_denied_without_an_acl() -> None:
    assert not allows()


def test_resource_without_acls_follows_allow_everyone_setting() -> None:
    assert allows(without_acl=True)
    assert not allows(acl(principal="User:bob"), without_acl=True)


@pytest.mark.parametrize(
    ("entry", "is_allowed"),
    [
        (acl(), True),
        (acl(name="*"), True),
        (acl(name="ord", pattern=PatternType.PREFIXED), True),
        (acl(name="ord"), False),
        (acl(name="orders.x", pattern=PatternType.PREFIXED), False),
        (acl(principal="User:*"), True),
        (acl(principal="User:bob"), False),
        (acl(host=HOST), True),
        (acl(host="10.0.0.2"), False),
        (acl(AclOperation.ALL), True),
        (acl(AclOperation.WRITE), False),
        (acl(name="*", pattern=PatternType.PREFIXED), False),
    ],
)
def test_allow_acl_matches_pattern_principal_host_and_operation(entry: Acl, *, is_allowed: bool) -> None:
    assert allows(entry) is is_allowed


@pytest.mark.parametrize("host", ["2001:db8::1", "2001:db8:0:0:0:0:0:1"])
@pytest.mark.parametrize("denied", ["2001:db8::1", "2001:db8:0:0:0:0:0:1"])
def test_ipv6_host_is_denied_in_short_and_java_notation(denied: str, host: str) -> None:
    acls = [acl(), acl(host=denied, permission=AclPermission.DENY)]
    rules = AclRules(acls, super_users=frozenset(), allows_without_acl=False)
    assert not rules.allow("User:alice", host, AclOperation.READ, TOPIC, "orders")
    assert not rules.allow_on_any("User:alice", host, AclOperation.READ, TOPIC)


@pytest.mark.parametrize("name", ["orders", "*"])
def test_deny_acl_overrides_any_allow_acl(name: str) -> None:
    assert not allows(acl(AclOperation.ALL), acl(name=name, permission=AclPermission.DENY))
    assert not allows(acl(name="o", pattern=PatternType.PREFIXED, permission=AclPermission.DENY), acl(name="*"))


@pytest.mark.parametrize("operation", [AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER])
def test_operation_implies_describe_but_its_denial_does_not_deny_describe(operation: AclOperation) -> None:
    assert allows(acl(operation), operation=AclOperation.DESCRIBE)
    denied = acl(operation, permission=AclPermission.DENY)
    assert allows(denied, acl(AclOperation.DESCRIBE), operation=AclOperation.DESCRIBE)


def test_alter_configs_implies_describe_configs_only() -> None:
    assert allows(acl(AclOperation.ALTER_CONFIGS), operation=AclOperation.DESCRIBE_CONFIGS)
    assert not allows(acl(AclOperation.ALTER_CONFIGS), operation=AclOperation.DESCRIBE)
    assert not allows(acl(AclOperation.CREATE), operation=AclOperation.DESCRIBE)


def test_super_user_bypasses_deny_acls() -> None:
    deny = acl(AclOperation.ALL, principal="User:*", name="*", permission=AclPermission.DENY)
    rules = AclRules([deny], super_users=frozenset({"User:root"}), allows_without_acl=False)
    assert rules.allow("User:root", HOST, AclOperation.WRITE, TOPIC, "orders")


@pytest.mark.parametrize(
    ("entries", "is_allowed"),
    [
        ([], False),
        ([acl(AclOperation.WRITE, name="a", pattern=PatternType.PREFIXED)], True),
        ([acl(AclOperation.WRITE), acl(AclOperation.WRITE, permission=AclPermission.DENY)], False),
        (
            [
                acl(AclOperation.WRITE, name="*"),
                acl(AclOperation.WRITE, name="a", pattern=PatternType.PREFIXED, permission=AclPermission.DENY),
            ],
            True,
        ),
        ([acl(AclOperation.WRITE), acl(AclOperation.ALL, name="*", permission=AclPermission.DENY)], False),
        (
            [
                acl(AclOperation.WRITE),
                acl(AclOperation.WRITE, name="ord", pattern=PatternType.PREFIXED, permission=AclPermission.DENY),
            ],
            False,
        ),
    ],
)
def test_allow_on_any_needs_an_allow_not_covered_by_a_deny(entries: list[Acl], *, is_allowed: bool) -> None:
    rules = AclRules(entries, super_users=frozenset(), allows_without_acl=False)
    assert rules.allow_on_any("User:alice", HOST, AclOperation.WRITE, TOPIC) is is_allowed


@pytest.mark.parametrize(
    ("entries", "is_allowed"),
    [
        ([], True),
        ([acl(AclOperation.WRITE, principal="User:bob")], True),
        ([acl(AclOperation.WRITE, permission=AclPermission.DENY)], True),
        ([acl(AclOperation.WRITE, name="*", principal="User:bob")], False),
        ([acl(AclOperation.WRITE, name="h", pattern=PatternType.PREFIXED, principal="User:bob")], False),
        ([acl(AclOperation.WRITE, name="hardcode", principal="User:bob")], False),
        ([acl(AclOperation.WRITE, name="*", permission=AclPermission.DENY)], False),
        ([acl(AclOperation.WRITE, name="*", principal="User:bob"), acl(AclOperation.WRITE)], True),
    ],
)
def test_allow_on_any_without_an_allow_is_decided_for_the_name_hardcode(
    entries: list[Acl], *, is_allowed: bool
) -> None:
    """The results are those of Apache Kafka 4.4."""
    rules = AclRules(entries, super_users=frozenset(), allows_without_acl=True)
    assert rules.allow_on_any("User:alice", HOST, AclOperation.WRITE, TOPIC) is is_allowed
