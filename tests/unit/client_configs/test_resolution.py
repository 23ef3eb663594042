"""Resolution of the configs of an application, and its identification."""

from __future__ import annotations

import pytest

from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.resolution import asking_entity, resolve
from klamm.protocol.errors import InvalidRequestError, UnsupportedVersionError

of_user, of_client = ClientConfigEntity.of_user, ClientConfigEntity.of_client


def test_client_id_of_a_user_overrides_the_user_per_key() -> None:
    """K649-32: Precedence per key: <user, client-id> over <user>."""
    configs = {
        of_user("alice"): {"acks": "0", "session.timeout.ms": "20000"},
        of_client("alice", "app1"): {"acks": "all"},
    }
    assert resolve(configs, of_client("alice", "app1")) == {"acks": "all", "session.timeout.ms": "20000"}
    assert resolve(configs, of_client("alice", "app2")) == {"acks": "0", "session.timeout.ms": "20000"}


def test_default_user_is_the_lowest_and_only_default_layer() -> None:
    """O649-D, K649-33."""
    configs = {
        of_user(None): {"acks": "1", "heartbeat.interval.ms": "1000"},
        of_user("alice"): {"acks": "0"},
        of_client("alice", None): {"session.timeout.ms": "9000"},
        of_client(None, "app1"): {"session.timeout.ms": "8000"},
        of_client(None, None): {"session.timeout.ms": "7000"},
        of_user("bob"): {"acks": "all"},
    }
    assert resolve(configs, of_client("alice", "app1")) == {"acks": "0", "heartbeat.interval.ms": "1000"}


def test_unset_configs_resolve_to_nothing() -> None:
    """K649-31: Exactly one entry comes back, entity {user, client-id}, with merged Values."""
    assert resolve({}, of_client("alice", "app1")) == {}


def test_user_is_the_authenticated_principal() -> None:
    """K649-30: The user is taken from the connection's authenticated principal (name without "User:"."""
    entity = asking_entity([("client-id", 0, "app1")], principal_name="alice", header_client_id="other")
    assert entity == of_client("alice", "app1")


def test_user_component_must_equal_the_principal() -> None:
    """K649-35: A user component that is sent anyway must equal the principal."""
    both: list[tuple[str, int, str | None]] = [("user", 0, "alice"), ("client-id", 0, "app1")]
    assert asking_entity(both, principal_name="alice", header_client_id=None) == of_client("alice", "app1")
    with pytest.raises(InvalidRequestError, match="bob cannot request the configs of user alice"):
        asking_entity(both, principal_name="bob", header_client_id=None)


def test_missing_client_id_component_falls_back_to_the_request_header() -> None:
    """K649-36: client-id component missing -> use the request header's client id; default/any match -> 42."""
    assert asking_entity([], principal_name="alice", header_client_id="app9") == of_client("alice", "app9")
    assert asking_entity([], principal_name="alice", header_client_id=None) == of_client("alice", "")


@pytest.mark.parametrize(
    "components",
    [
        [("client-id", 1, None)],
        [("client-id", 2, None)],
        [("client-id", 0, "a"), ("client-id", 0, "b")],
        [("user", 2, None), ("client-id", 0, "a")],
        [("client-id", 0, None)],
    ],
)
def test_client_id_component_must_be_one_exact_match(components: list[tuple[str, int, str | None]]) -> None:
    """K649-36: client-id component missing -> use the request header's client id; default/any match -> 42."""
    with pytest.raises(InvalidRequestError):
        asking_entity(components, principal_name="alice", header_client_id="app1")


def test_unknown_entity_type_is_an_unsupported_version() -> None:
    """K649-25: Unknown entity type in a filter -> 35; empty type "" -> 42."""
    with pytest.raises(UnsupportedVersionError):
        asking_entity([("ip", 0, "x")], principal_name="alice", header_client_id="app1")
