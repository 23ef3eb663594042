"""Descriptions of client configs for operators."""

from __future__ import annotations

from klamm.client_configs.description import Compatibility, EntityFilter, FilterComponent
from klamm.client_configs.entities import ClientConfigEntity, EntityType
from tests.support.client_configs import describe

of_user, of_client = ClientConfigEntity.of_user, ClientConfigEntity.of_client
EVERY_USER = EntityFilter(components=(FilterComponent.of_entity_type(EntityType.USER),), strict=False)


def test_entity_shows_only_its_own_values() -> None:
    """K649-26: Values hold only that entity's own keys (no merging) when ResolveEntity=false."""
    configs = {of_user("alice"): {"acks": "0"}, of_client("alice", "app1"): {"session.timeout.ms": "9000"}}
    described = describe(EVERY_USER, configs, {})
    assert [(entry.entity, entry.values) for entry in described] == [
        (of_user("alice"), (("acks", "0"),)),
        (of_client("alice", "app1"), (("session.timeout.ms", "9000"),)),
    ]


def test_entities_without_configs_and_registrations_are_omitted() -> None:
    """K649-27: Entities with neither configs nor registrations are not returned."""
    assert describe(EVERY_USER, {of_user("alice"): {}}, {}) == []


def test_entity_with_registrations_only_has_no_values() -> None:
    """K649-27: Entities with neither configs nor registrations are not returned."""
    described = describe(EVERY_USER, {}, {of_client("alice", "app1"): {"a/1": ("acks",)}})
    assert [(entry.entity, entry.values) for entry in described] == [
        (of_user("alice"), ()),
        (of_client("alice", "app1"), ()),
    ]


def test_client_id_lists_every_registered_version() -> None:
    """K649-22: EntityCompatibility lists, per software name+version that registered under the entity, the configs it
    supports.
    """
    registered = {of_client("alice", "app1"): {"a/2": ("acks", "x"), "a/1": ("acks",)}}
    (app1,) = (entry for entry in describe(EVERY_USER, {}, registered) if entry.entity.has_client_id)
    assert app1.compatibility_of(EntityType.CLIENT_ID) == (("a/1", ("acks",)), ("a/2", ("acks", "x")))
    assert app1.compatibility_of(EntityType.USER) == ()


def test_user_lists_the_union_over_its_client_ids() -> None:
    """K649-22: EntityCompatibility lists, per software name+version that registered under the entity, the configs it
    supports.
    """
    registered: dict[ClientConfigEntity, Compatibility] = {
        of_client("alice", "app1"): {"a/1": ("acks",)},
        of_client("alice", "app2"): {"a/1": ("session.timeout.ms",), "b/1": ()},
        of_client("bob", "app1"): {"c/1": ("acks",)},
    }
    alice = next(entry for entry in describe(EVERY_USER, {}, registered) if entry.entity == of_user("alice"))
    assert alice.compatibility_of(EntityType.USER) == (("a/1", ("acks", "session.timeout.ms")), ("b/1", ()))
