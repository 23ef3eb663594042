"""ACLs that are added and removed: filters and decisions equal those of a full scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from klamm.security.acls import Acl, AclFilter, AclOperation, AclPermission, AclResourceType, PatternType
from klamm.security.authorization import AclRules

if TYPE_CHECKING:
    import pytest

NAMES = ("*", "a", "ab", "abc", "b")
TYPES = (AclResourceType.TOPIC, AclResourceType.GROUP)
USERS = ("User:alice", "User:bob", "User:*")
OPERATIONS = (AclOperation.READ, AclOperation.WRITE, AclOperation.ALL)
PERMISSIONS = (AclPermission.ALLOW, AclPermission.DENY)
ACLS = st.builds(
    Acl,
    resource_type=st.sampled_from(TYPES),
    resource_name=st.sampled_from(NAMES),
    pattern_type=st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
    principal=st.sampled_from(USERS),
    host=st.just("*"),
    operation=st.sampled_from(OPERATIONS),
    permission=st.sampled_from(PERMISSIONS),
)
FILTERS = st.builds(
    AclFilter,
    resource_type=st.sampled_from((AclResourceType.ANY, *TYPES)),
    resource_name=st.sampled_from((None, "", *NAMES)),
    pattern_type=st.sampled_from((PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED)),
    principal=st.sampled_from((None, "User:nobody", *USERS)),
    host=st.sampled_from((None, "*")),
    operation=st.sampled_from((AclOperation.ANY, *OPERATIONS)),
    permission=st.sampled_from((AclPermission.ANY, *PERMISSIONS)),
)


def rules_of(*acls: Acl) -> AclRules:
    return AclRules(acls, super_users=frozenset(), allows_without_acl=False)


@given(st.lists(st.tuples(st.booleans(), ACLS), max_size=30), st.lists(FILTERS, min_size=1, max_size=5))
def test_filters_and_decisions_match_a_full_scan_after_any_changes(
    changes: list[tuple[bool, Acl]], filters: list[AclFilter]
) -> None:
    rules, in_force = rules_of(), set[Acl]()
    for is_new, acl in changes:
        if is_new:
            rules.add(acl)
            in_force.add(acl)
        elif acl in rules:
            rules.remove(acl)
            in_force.remove(acl)
    for wanted in filters:
        matching = rules.meant_by(wanted)
        assert len(matching) == len(set(matching))
        assert set(matching) == {acl for acl in in_force if wanted.matches(acl)}
    arranged_anew = rules_of(*in_force)
    for name in (*NAMES, "abcd", ""):
        for operation in (AclOperation.READ, AclOperation.DESCRIBE):
            question = ("User:alice", "10.0.0.1", operation, AclResourceType.TOPIC, name)
            assert rules.allow(*question) == arranged_anew.allow(*question)


def test_filter_by_name_or_principal_does_not_scan_other_acls(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    rules = rules_of(
        *(
            Acl(
                resource_type=AclResourceType.TOPIC,
                resource_name=f"topic-{number}",
                pattern_type=PatternType.LITERAL,
                principal=f"User:{number}",
                host="*",
                operation=AclOperation.READ,
                permission=AclPermission.ALLOW,
            )
            for number in range(1_000)
        )
    )
    looked_at: list[Acl] = []

    def matches(_wanted: AclFilter, acl: Acl) -> bool:
        looked_at.append(acl)
        return True

    monkeypatch.setattr(AclFilter, "matches", matches)

    def find(name: str | None, pattern: PatternType, principal: str | None = None) -> list[Acl]:
        wanted = AclFilter(
            resource_type=AclResourceType.ANY,
            resource_name=name,
            pattern_type=pattern,
            principal=principal,
            host=None,
            operation=AclOperation.ANY,
            permission=AclPermission.ANY,
        )
        return rules.meant_by(wanted)

    # when
    for pattern in (PatternType.LITERAL, PatternType.ANY, PatternType.MATCH):
        find("topic-7", pattern)
    find(None, PatternType.ANY, "User:7")
    # then
    assert [acl.resource_name for acl in looked_at] == ["topic-7"] * 4
