from __future__ import annotations

import pytest

from klamm.properties import SettingsError
from klamm.server.listeners import Address, Listener, SecurityProtocol, parse_listeners, setting_of


def parse(text: str, *, count: int = 1, advertised: str | None = None, **configs: str) -> tuple[Listener, ...]:
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    return parse_listeners(text, advertised=advertised, configs=settings, count=count)


def addresses(*listen: tuple[str, int]) -> tuple[Address, ...]:
    return tuple(Address(host=host, port=port) for host, port in listen)


def test_plain_address_is_the_plaintext_listener() -> None:
    (listener,) = parse("127.0.0.1:9092")
    assert (listener.name, listener.protocol) == ("PLAINTEXT", SecurityProtocol.PLAINTEXT)
    assert listener.listen == addresses(("127.0.0.1", 9092))


def test_protocol_map_gives_the_protocol_of_each_listener() -> None:
    inside, outside = parse(
        "INSIDE://:9092, outside://[::1]:9093",
        listener_security_protocol_map="INSIDE:PLAINTEXT,OUTSIDE:SASL_SSL",
        advertised="OUTSIDE://kafka.example.org:443",
    )
    assert (inside.name, inside.protocol, inside.listen) == (
        "INSIDE",
        SecurityProtocol.PLAINTEXT,
        addresses(("", 9092)),
    )
    assert (outside.name, outside.protocol, outside.listen) == (
        "OUTSIDE",
        SecurityProtocol.SASL_SSL,
        addresses(("::1", 9093)),
    )
    assert inside.advertise is None
    assert outside.advertise == addresses(("kafka.example.org", 443))


def test_each_broker_id_gets_an_address_per_listener() -> None:
    plain, ssl = parse("PLAINTEXT://a:9092,SSL://a:9100,SSL://b:9100,SSL://c:9100", count=3)
    assert plain.listen == addresses(("a", 9092), ("a", 9093), ("a", 9094))
    assert ssl.listen == addresses(("a", 9100), ("b", 9100), ("c", 9100))


def test_controller_listener_is_skipped() -> None:
    names = [listener.name for listener in parse("PLAINTEXT://:9092,CTL://:9093", controller_listener_names="CTL")]
    assert names == ["PLAINTEXT"]


def test_advertised_controller_listener_of_kafkas_example_is_accepted() -> None:
    (listener,) = parse(
        "PLAINTEXT://:9092,CONTROLLER://:9093",
        advertised="PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        controller_listener_names="CONTROLLER",
    )
    assert listener.advertise == addresses(("localhost", 9092))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected"),
        ("localhost", "expected"),
        (":9092", "expected"),
        ("a:65536", "expected"),
        ("NEW://a:1", "No security protocol defined for listener NEW"),
        ("SSL://a:1,SSL://b:2", "one address per listener"),
    ],
)
def test_invalid_listeners_are_rejected(text: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        parse(text)


@pytest.mark.parametrize(
    ("advertised", "reason"),
    [("SSL://a:1", "not among"), ("PLAINTEXT://:1", "expected a host name"), ("0.0.0.0:1", "nonroutable meta-address")],
)
def test_unusable_addresses_are_not_advertised(advertised: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        parse("a:1", advertised=advertised)


def test_listener_setting_overrides_the_general_one() -> None:
    configs = {"ssl.client.auth": "none", "listener.name.outside.ssl.client.auth": "required"}
    assert setting_of(configs, "OUTSIDE", "ssl.client.auth") == "required"
    assert setting_of(configs, "INSIDE", "ssl.client.auth") == "none"
