from __future__ import annotations

from klamm.broker.security.limits import ConnectionLimits


def limits(**settings: object) -> ConnectionLimits:
    values: dict[str, object] = {
        "max.connections": 10,
        "max.connections.per.ip": 2,
        "max.connections.per.ip.overrides": "10.0.0.9:3, ::1:1",
    }
    values |= {name.replace("_", "."): value for name, value in settings.items()}
    return ConnectionLimits(values.__getitem__)


def test_an_address_gets_its_share_and_gives_it_back() -> None:
    counted = limits()
    assert [counted.admit("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert counted.admit("10.0.0.2")
    counted.release("10.0.0.1")
    assert counted.admit("10.0.0.1")


def test_some_addresses_have_limits_of_their_own() -> None:
    counted = limits()
    assert [counted.admit("10.0.0.9") for _ in range(4)] == [True, True, True, False]
    assert [counted.admit("::1") for _ in range(2)] == [True, False]


def test_all_addresses_together_have_a_limit() -> None:
    counted = limits(max_connections=1)
    assert [counted.admit(address) for address in ("a", "b")] == [True, False]
    counted.release("a")
    assert counted.admit("b")
