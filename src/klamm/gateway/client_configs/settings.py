"""Settings of client configs in the gateway, with the names of the broker's configs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.client_configs.definitions import SETTABLE, Switch
from klamm.configs.definitions import ALLOWED_CLIENT_CONFIGS, CLIENT_CONFIG_ENFORCEMENT
from klamm.properties import SettingsError, parse_bool, parse_int, parse_list

if TYPE_CHECKING:
    from collections.abc import Mapping

ENABLE: Final = "client.configs.enable"
MIN_SESSION: Final = "group.min.session.timeout.ms"
MAX_SESSION: Final = "group.max.session.timeout.ms"
MIN_INTERVAL: Final = "group.consumer.min.heartbeat.interval.ms"
MAX_INTERVAL: Final = "group.consumer.max.heartbeat.interval.ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfigSettings:
    """Settings of client configs."""

    is_enforced: bool
    """``client.config.enforcement``"""
    allowed_keys: frozenset[str] | None
    """``client.configs.allowed.keys``. None means that all keys are allowed."""
    own_limits: Mapping[str, int]
    """Limits for enforced values, by the broker's config. They narrow those of the upstream brokers."""


def read_client_config_settings(configs: Mapping[str, str]) -> ClientConfigSettings | None:
    """Read the settings of a gateway; None when client configs are off.

    Raises:
        SettingsError: A value is not allowed.
    """
    if not parse_bool(ENABLE, configs.get(ENABLE, "false")):
        return None
    return ClientConfigSettings(
        is_enforced=_is_on(CLIENT_CONFIG_ENFORCEMENT, configs.get(CLIENT_CONFIG_ENFORCEMENT, Switch.OFF)),
        allowed_keys=_allowed_keys(configs.get(ALLOWED_CLIENT_CONFIGS)),
        own_limits={
            name: parse_int(name, configs[name], at_least=1)
            for name in (MIN_SESSION, MAX_SESSION, MIN_INTERVAL, MAX_INTERVAL)
            if name in configs
        },
    )


def _is_on(name: str, value: str) -> bool:
    text = value.strip().lower()
    if text not in {Switch.ON, Switch.OFF}:
        raise SettingsError(f"{name}={text}: expected on or off")
    return text == Switch.ON


def _allowed_keys(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    keys = frozenset(parse_list(text))
    if unknown := keys - set(SETTABLE):
        raise SettingsError(
            f"{ALLOWED_CLIENT_CONFIGS}={text}: {', '.join(sorted(unknown))} cannot be set for clients;"
            f" expected some of {', '.join(SETTABLE)}"
        )
    return keys
