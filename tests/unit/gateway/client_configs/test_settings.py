"""Settings of client configs in the gateway."""

from __future__ import annotations

import pytest

from klamm.gateway.client_configs.settings import read_client_config_settings
from klamm.properties import SettingsError


def test_client_configs_are_off_by_default() -> None:
    assert read_client_config_settings({}) is None
    assert read_client_config_settings({"client.configs.enable": "false", "client.config.enforcement": "x"}) is None


def test_the_settings_have_the_names_of_the_broker() -> None:
    settings = read_client_config_settings(
        {
            "client.configs.enable": "true",
            "client.config.enforcement": "on",
            "client.configs.allowed.keys": "acks, heartbeat.interval.ms",
            "group.min.session.timeout.ms": "100",
            "group.max.session.timeout.ms": "200",
            "group.consumer.min.heartbeat.interval.ms": "3",
            "group.consumer.max.heartbeat.interval.ms": "4",
        }
    )
    assert settings is not None
    assert settings.is_enforced
    assert settings.allowed_keys == frozenset({"acks", "heartbeat.interval.ms"})
    assert settings.own_limits == {
        "group.min.session.timeout.ms": 100,
        "group.max.session.timeout.ms": 200,
        "group.consumer.min.heartbeat.interval.ms": 3,
        "group.consumer.max.heartbeat.interval.ms": 4,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("client.configs.enable", "maybe"),
        ("client.config.enforcement", "true"),
        ("client.configs.allowed.keys", "acks,linger.ms"),
        ("group.min.session.timeout.ms", "0"),
        ("group.consumer.max.heartbeat.interval.ms", "soon"),
    ],
)
def test_wrong_values_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        read_client_config_settings({"client.configs.enable": "true", name: value})
