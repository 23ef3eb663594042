"""Filters of DescribeClientConfigs: match types, strictness, and invalid filters."""

from __future__ import annotations

import pytest

from klamm.client_configs.description import parse_filter
from klamm.client_configs.entities import ClientConfigEntity
from klamm.protocol.errors import InvalidRequestError, UnsupportedVersionError

ALICE = ClientConfigEntity.of_user("alice")
BOB = ClientConfigEntity.of_user("bob")
DEFAULT_USER = ClientConfigEntity.of_user(None)
ALICE_APP1 = ClientConfigEntity.of_client("alice", "app1")
ALICE_DEFAULT = ClientConfigEntity.of_client("alice", None)
ALL = [ALICE, BOB, DEFAULT_USER, ALICE_APP1, ALICE_DEFAULT]


def accepted(components: list[tuple[str, int, str | None]], *, strict: bool) -> list[ClientConfigEntity]:
    entity_filter = parse_filter(components, strict=strict)
    return [entity for entity in ALL if entity_filter.accepts(entity)]


def test_exact_match_selects_the_named_entity() -> None:
    """K649-19: MatchType 0 returns entities whose name for that type equals Match."""
    assert accepted([("user", 0, "alice")], strict=True) == [ALICE]


def test_default_match_selects_the_default_entity() -> None:
    """K649-20: MatchType 1 returns the default entity (name null) of that type."""
    assert accepted([("user", 1, None)], strict=True) == [DEFAULT_USER]


def test_any_match_selects_named_and_default_entities() -> None:
    """K649-21: MatchType 2 returns every entity having that type, named or default."""
    assert accepted([("user", 2, None)], strict=True) == [ALICE, BOB, DEFAULT_USER]


def test_filter_without_strict_selects_entities_with_further_types() -> None:
    """K649-24: Strict=true: only entities with exactly the listed types; false: also entities with further types."""
    assert accepted([("user", 0, "alice")], strict=False) == [ALICE, ALICE_APP1, ALICE_DEFAULT]


def test_filter_components_are_combined_with_and() -> None:
    """K649-23: Components are ANDed; at most one per type, duplicate -> 42."""
    assert accepted([("user", 0, "alice"), ("client-id", 0, "app1")], strict=True) == [ALICE_APP1]
    assert accepted([("user", 0, "bob"), ("client-id", 0, "app1")], strict=True) == []
    assert accepted([("user", 2, None), ("client-id", 1, None)], strict=False) == [ALICE_DEFAULT]


@pytest.mark.parametrize(
    "components",
    [
        [],
        [("client-id", 0, "app1")],
        [("user", 0, None)],
        [("user", 1, "alice")],
        [("user", 2, "alice")],
        [("user", 3, None)],
        [("user", -1, None)],
        [("user", 0, "alice"), ("user", 0, "bob")],
        [("", 0, "alice")],
    ],
    ids=["empty", "no user", "no name", "default+name", "any+name", "type 3", "type -1", "twice", "empty type"],
)
def test_invalid_filters_are_rejected(components: list[tuple[str, int, str | None]]) -> None:
    """K649-18: A request without a ``user`` component gets 42.

    K649-19: MatchType 0 returns entities whose name for that type equals Match.

    K649-20: MatchType 1 returns the default entity (name null) of that type.

    K649-21: MatchType 2 returns every entity having that type, named or default.

    K649-23: Components are ANDed; at most one per type, duplicate -> 42.

    K649-25: Unknown entity type in a filter -> 35; empty type "" -> 42.
    """
    with pytest.raises(InvalidRequestError):
        parse_filter(components, strict=False)


def test_unknown_entity_type_in_filter_is_an_unsupported_version() -> None:
    """K649-25: Unknown entity type in a filter -> 35; empty type "" -> 42."""
    with pytest.raises(UnsupportedVersionError):
        parse_filter([("user", 0, "alice"), ("ip", 0, "10.0.0.1")], strict=False)
