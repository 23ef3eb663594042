"""Observer of one client connection: the list of clients, and enforced values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from klamm.client_config_runtime.enforcement import EnforcementService
from klamm.client_configs.definitions import BrokerLimits
from klamm.client_configs.enforcement import TimingLimits, enforceable
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.kinds import GroupProtocol
from klamm.gateway.client_configs.watch import ClientWatch
from klamm.gateway.frames.peer import Peer
from klamm.protocol.api import ApiKey
from klamm.server.client_registry import ClientRegistry

if TYPE_CHECKING:
    from klamm.gateway.client_configs.watch import WatchedClient

APP = ClientConfigEntity.of_client("anna", "app")


class WatchedConnection:
    """One connection of anna, and configs of her application."""

    def __init__(self, **configs: str) -> None:
        self.now_ms = 1_000
        service = SimpleNamespace(
            configs={APP: {name.replace("_", "."): value for name, value in configs.items()}},
            subscribe=lambda _: None,
        )
        self.enforcement = EnforcementService(
            cast("Any", service),
            is_on=lambda: True,
            limits=BrokerLimits,
            session_protocols=frozenset({GroupProtocol.CLASSIC}),
        )
        self.registry = ClientRegistry(now_ms=lambda: self.now_ms)
        watch = ClientWatch(self.registry, self.enforcement, timings=TimingLimits)
        self.peer = Peer(host="10.0.0.1", port=9, node_id=2)
        self.client: WatchedClient = watch.open(self.peer)
        self.peer.principal = "User:anna"  # by a login that passed
        self.client.on_software("librdkafka", "2.0")

    def request(self, api_key: ApiKey) -> None:
        self.client.on_request(api_key, "app", is_heartbeat=api_key == ApiKey.HEARTBEAT)


def test_client_is_on_the_list_with_its_login_and_software() -> None:
    watched = WatchedConnection(acks="all")
    watched.request(ApiKey.PRODUCE)
    assert watched.client.acks(1, "app") == -1
    (seen,) = watched.registry.clients()
    assert seen.key == ("User:anna", "app", "librdkafka", "2.0", "10.0.0.1")
    assert (seen.connections, seen.reported) == (1, {"acks": 1})
    watched.client.close()
    (gone,) = watched.registry.clients()
    assert gone.connections == 0


def test_values_are_replaced_within_their_limits() -> None:
    watched = WatchedConnection(session_timeout_ms="9000", heartbeat_interval_ms="100")
    watched.request(ApiKey.JOIN_GROUP)
    assert watched.client.session_timeout_ms(1_000, "app") == 9_000
    assert watched.client.heartbeat_interval_ms(7_000, "app") == 5_000
    assert watched.client.acks(0, "app") == 0
    assert watched.client.session_timeout_ms(1_000, "other") == 1_000
    assert watched.client.heartbeat_interval_ms(7_000, None) == 7_000
    assert watched.enforcement.counts == {"session.timeout.ms": 1, "heartbeat.interval.ms": 1}


def test_time_between_heartbeats_of_the_classic_protocol_is_reported() -> None:
    watched = WatchedConnection()
    watched.request(ApiKey.HEARTBEAT)
    watched.now_ms += 3_000
    watched.request(ApiKey.HEARTBEAT)
    (seen,) = watched.registry.clients()
    assert seen.reported == {"heartbeat.interval.ms": 3_000}


def test_session_timeout_of_the_consumer_protocol_cannot_be_enforced() -> None:
    enforced = WatchedConnection(session_timeout_ms="9000").enforcement.of_application(APP)
    assert enforceable(enforced, frozenset({GroupProtocol.CONSUMER})) == {"acks", "heartbeat.interval.ms"}
    assert enforceable(enforced, frozenset({GroupProtocol.CLASSIC})) == {"acks", "session.timeout.ms"}
