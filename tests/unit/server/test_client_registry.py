"""Connected and recently disconnected clients: in memory, bounded, never written to disk."""

from __future__ import annotations

from klamm.protocol.api import ApiKey
from klamm.server.client_registry import ClientRegistry
from klamm.server.session import Session


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


def session(number: int, *, software: str = "apache-kafka-java", host: str = "10.0.0.1") -> Session:
    return Session(connection_id=number, node_id=1, client_host=host, software_name=software, software_version="4.1.0")


def test_connections_of_one_application_are_one_client() -> None:
    # given
    clock = Clock()
    client_registry = ClientRegistry(now_ms=clock)
    # when
    client_registry.seen(session(1), "app", ApiKey.METADATA)
    clock.now_ms = 2_000
    client_registry.seen(session(2), "app", ApiKey.METADATA)
    client_registry.seen(session(3, host="10.0.0.2"), "app", ApiKey.METADATA)
    # then
    here, there = client_registry.clients()
    assert (here.client_id, here.connections, here.last_seen_ms) == ("app", 2, 2_000)
    assert (there.host, there.connections) == ("10.0.0.2", 1)


def test_disconnected_client_keeps_its_last_request_time() -> None:
    # given
    clock = Clock()
    client_registry = ClientRegistry(now_ms=clock)
    gone = session(1)
    client_registry.seen(gone, "app", ApiKey.METADATA)
    # when
    clock.now_ms = 9_000
    client_registry.left(gone)
    # then
    (client,) = client_registry.clients()
    assert (client.connections, client.last_seen_ms) == (0, 1_000)


def test_reconnected_client_is_the_same_client() -> None:
    # given
    clock = Clock()
    client_registry = ClientRegistry(now_ms=clock)
    first = session(1)
    first.fetched_configs, first.fetched_at_ms = (("acks", "all"),), 1_000
    client_registry.seen(first, "app", ApiKey.METADATA)
    client_registry.left(first)
    # when
    clock.now_ms = 2_000
    client_registry.seen(session(2), "app", ApiKey.METADATA)
    # then
    (client,) = client_registry.clients()
    assert (client.connections, client.last_seen_ms, client.fetched) == (1, 2_000, (("acks", "all"),))


def test_only_latest_disconnected_clients_are_kept() -> None:
    # given
    client_registry = ClientRegistry(now_ms=Clock(), max_gone=3)
    # when
    for number in range(10):
        leaving = session(number)
        client_registry.seen(leaving, f"app{number}", ApiKey.METADATA)
        client_registry.left(leaving)
    # then
    assert [client.client_id for client in client_registry.clients()] == ["app7", "app8", "app9"]


def test_long_names_are_shortened_when_a_client_has_left() -> None:
    # given: two client ids that begin alike
    client_registry = ClientRegistry(now_ms=Clock())
    first, second = (session(number, software="s" * 30_000) for number in range(2))
    long_name, other = "a" * 257, "a" * 30_000
    client_registry.seen(first, long_name, ApiKey.METADATA)
    client_registry.seen(second, other, ApiKey.METADATA)
    assert {client.client_id for client in client_registry.clients()} == {long_name, other}
    # when
    client_registry.left(first)
    client_registry.left(second)
    # then
    gone = client_registry.clients()
    assert len({client.client_id for client in gone}) == 2
    assert {(len(client.client_id), len(client.software_name)) for client in gone} == {(256, 256)}
    assert all(client.client_id.startswith("aaa") and "..." in client.client_id for client in gone)
    # when one comes back, then it is the same client, with its whole id
    client_registry.seen(session(3, software="s" * 30_000), long_name, ApiKey.METADATA)
    clients = client_registry.clients()
    assert {client.key for client in clients} == {client.key for client in gone}
    assert [client.client_id for client in clients if client.connections] == [long_name]


def test_connection_without_registration_is_not_listed() -> None:
    # given
    client_registry = ClientRegistry(now_ms=Clock())
    # when
    client_registry.left(session(1))
    # then
    assert client_registry.clients() == ()


def test_connection_with_several_client_ids_lists_each() -> None:
    # given
    client_registry = ClientRegistry(now_ms=Clock())
    shared = session(1)
    # when
    client_registry.seen(shared, "one", ApiKey.METADATA)
    client_registry.seen(shared, "two", ApiKey.METADATA)
    # then
    assert [(client.client_id, client.connections) for client in client_registry.clients()] == [("one", 0), ("two", 1)]


def test_client_kinds_follow_from_requests() -> None:
    # given
    client_registry = ClientRegistry(now_ms=Clock())
    shared = session(1)
    for api_key in (ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.PRODUCE):
        client_registry.seen(shared, "writes", api_key)
    client_registry.seen(session(2), "writes", ApiKey.JOIN_GROUP)
    # when: a proxy sends for another client over the same connection
    client_registry.seen(shared, "asks", ApiKey.DESCRIBE_CONFIGS)
    client_registry.seen(session(3), "new", ApiKey.METADATA)
    # then
    assert {client.client_id: sorted(client.kinds) for client in client_registry.clients()} == {
        "writes": ["consumer", "producer"],
        "asks": ["admin"],
        "new": [],
    }
