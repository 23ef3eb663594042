from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from klamm.client_config_runtime import enforcement as module
from klamm.client_config_runtime.enforcement import EnforcementService
from klamm.client_configs import enforcement as rules
from klamm.client_configs.definitions import BrokerLimits
from klamm.client_configs.enforcement import NOTHING_ENFORCED
from klamm.client_configs.entities import ClientConfigEntity
from klamm.server.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

ALICE = ClientConfigEntity.of_user("alice")


class EnforcedConnection:
    """A broker's client configs and switch, and one connection of alice."""

    def __init__(self) -> None:
        self.configs: dict[ClientConfigEntity, dict[str, str]] = {}
        self.is_on = False
        self.listeners: list[Callable[[], None]] = []
        service = SimpleNamespace(configs=self.configs, subscribe=self.listeners.append)
        self.service = EnforcementService(cast("Any", service), is_on=lambda: self.is_on, limits=BrokerLimits)
        self.session = Session(connection_id=1, node_id=1, principal="User:alice")

    def set(self, **configs: str) -> None:
        self.configs[ALICE] = {name.replace("_", "."): value for name, value in configs.items()}
        for listener in self.listeners:
            listener()

    def acks(self, requested: int, client_id: str | None = "app") -> int:
        return self.service.acks(requested, self.session, client_id)


def test_enforcement_applies_from_the_next_request_until_removal() -> None:
    alice = EnforcedConnection()
    assert alice.acks(1) == 1
    alice.set(acks="all", enforcement="on")
    assert (alice.acks(1), alice.acks(0), alice.acks(-1)) == (-1, -1, -1)
    alice.set(acks="all")
    assert alice.acks(1) == 1
    alice.is_on = True
    alice.service.refresh()
    assert alice.acks(1) == -1
    alice.set()
    assert alice.acks(1) == 1
    assert alice.service.counts == {"acks": 3}, "only raised requests are counted"


def test_values_are_resolved_once_per_client_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    alice = EnforcedConnection()
    alice.set(acks="all", session_timeout_ms="9000", enforcement="on")
    client_ids: list[str | None] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        client_ids.append(args[1].client_id)
        return resolve_it(*args, **kwargs)

    resolve_it = rules.enforced_values
    monkeypatch.setattr(module, "enforced_values", counted)
    # when
    for _ in range(3):
        alice.acks(1)
        assert alice.service.session_timeout_ms(alice.session, "app") == 9000
    alice.acks(1, "other")
    # then
    assert client_ids == ["app", "other"]
    assert alice.service.counts == {"acks": 4, "session.timeout.ms": 3}


def test_unenforced_configs_are_not_resolved() -> None:
    alice = EnforcedConnection()
    alice.set(acks="all")
    assert alice.acks(1) == 1
    assert alice.service.of_session(alice.session, "app") is NOTHING_ENFORCED
    assert alice.session.enforced is None
