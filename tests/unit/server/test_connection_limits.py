from __future__ import annotations

from klamm.server.connection_limits import ConnectionLimits, ConnectionSlot


def limits(**settings: object) -> ConnectionLimits:
    values: dict[str, object] = {
        "max.connections": 10,
        "max.connections.per.ip": 2,
        "max.connections.per.ip.overrides": "10.0.0.9:3, ::1:1",
    }
    values |= {name.replace("_", "."): value for name, value in settings.items()}
    return ConnectionLimits(values.get)


def admitted(counted: ConnectionLimits, address: str, listener: str = "MAIN") -> ConnectionSlot:
    slot = counted.admit(address, listener)
    assert slot is not None
    return slot


def test_connections_per_address_are_limited_and_released() -> None:
    counted = limits()
    first = admitted(counted, "10.0.0.1")
    admitted(counted, "10.0.0.1")
    assert counted.admit("10.0.0.1", "MAIN") is None
    admitted(counted, "10.0.0.2")
    first.release()
    admitted(counted, "10.0.0.1")


def test_connection_is_released_only_once() -> None:
    counted = limits()
    first = admitted(counted, "10.0.0.1")
    admitted(counted, "10.0.0.1")
    first.release()
    first.release()
    admitted(counted, "10.0.0.1")
    assert counted.admit("10.0.0.1", "MAIN") is None


def test_some_addresses_have_limits_of_their_own() -> None:
    counted = limits()
    assert [counted.admit("10.0.0.9", "MAIN") is not None for _ in range(4)] == [True, True, True, False]
    assert [counted.admit("::1", "MAIN") is not None for _ in range(2)] == [True, False]


def test_all_addresses_together_have_a_limit() -> None:
    counted = limits(max_connections=1)
    first = admitted(counted, "a")
    assert counted.admit("b", "MAIN") is None
    first.release()
    admitted(counted, "b")


def test_listener_limit_applies_in_addition() -> None:
    counted = limits(listener_name_inner_max_connections=1)
    first = admitted(counted, "10.0.0.1", "INNER")
    assert counted.admit("10.0.0.1", "INNER") is None
    admitted(counted, "10.0.0.1")
    first.release()
    admitted(counted, "10.0.0.1", "INNER")


def test_connections_are_limited_by_available_descriptors() -> None:
    counted = ConnectionLimits({"max.connections": 10, "max.connections.per.ip": 10}.get, most=2)
    first = admitted(counted, "10.0.0.1")
    admitted(counted, "10.0.0.1")
    assert counted.admit("10.0.0.1", "MAIN") is None
    first.release()
    admitted(counted, "10.0.0.1")
