"""Client config entities: addressing and validation."""

from __future__ import annotations

import pytest

from klamm.client_configs.entities import ClientConfigEntity, alterable_entity, parse_entity
from klamm.protocol.errors import InvalidRequestError


def test_absent_client_id_addresses_the_user_entity() -> None:
    """K649-51: client-id absent -> <user> entity; present -> <user, client-id> entity."""
    assert parse_entity([("user", "alice")]) == ClientConfigEntity.of_user("alice")


@pytest.mark.parametrize("order", [1, -1])
def test_component_order_does_not_change_entity(order: int) -> None:
    """K649-51: client-id absent -> <user> entity; present -> <user, client-id> entity."""
    components = [("user", "alice"), ("client-id", "app1")][::order]
    assert parse_entity(components) == ClientConfigEntity.of_client("alice", "app1")


def test_null_name_addresses_the_default_entity() -> None:
    """K649-52: EntityName null addresses the default entity."""
    assert parse_entity([("user", None)]) == ClientConfigEntity.of_user(None)
    assert parse_entity([("user", "alice"), ("client-id", None)]) == ClientConfigEntity.of_client("alice", None)
    assert parse_entity([("user", None), ("client-id", None)]) == ClientConfigEntity.of_client(None, None)


@pytest.mark.parametrize(
    "components",
    [
        [],
        [("client-id", "app1")],
        [("user", "")],
        [("user", "alice"), ("client-id", "")],
        [("user", "alice"), ("user", "bob")],
        [("user", "alice"), ("ip", "10.0.0.1")],
        [("", "alice")],
    ],
    ids=["empty", "no user", "empty user", "empty client id", "twice", "unknown type", "empty type"],
)
def test_invalid_entities_are_rejected(components: list[tuple[str, str | None]]) -> None:
    """K649-50: An entry without a user component gets 42; other entries are still processed.

    K649-53: Empty entity, empty name "", duplicate type, unknown type -> 42.
    """
    with pytest.raises(InvalidRequestError):
        alterable_entity(components)


def test_long_user_name_is_accepted() -> None:
    """The name of a certificate, which is a principal's, is easily longer than a topic's may be."""
    name = "CN=billing,OU=" + "x" * 30_000
    assert alterable_entity([("user", name)]) == ClientConfigEntity.of_user(name)


def test_empty_client_id_of_described_entity_is_accepted() -> None:
    """Such a client registers too; one of them must not keep an operator from seeing all others."""
    assert parse_entity([("user", "a"), ("client-id", "")]) == ClientConfigEntity.of_client("a", "")


def test_defaults_sort_before_names_and_users_before_their_clients() -> None:
    of_user, of_client = ClientConfigEntity.of_user, ClientConfigEntity.of_client
    expected = [
        of_user(None),
        of_client(None, None),
        of_user("a"),
        of_client("a", None),
        of_client("a", "x"),
        of_user("b"),
    ]
    assert sorted({*expected}, key=lambda entity: entity.sort_key) == expected


def test_entity_formats_as_a_phrase() -> None:
    assert str(ClientConfigEntity.of_client("alice", None)) == "user 'alice', the default client-id"
