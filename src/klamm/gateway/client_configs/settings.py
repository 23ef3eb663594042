"""Settings of client configs in the gateway, with the names of the broker's configs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.client_configs.definitions import SETTABLE, BrokerLimits, Switch
from klamm.client_configs.enforcement import TimingLimits
from klamm.configs.definitions import ALLOWED_CLIENT_CONFIGS, CLIENT_CONFIG_ENFORCEMENT
from klamm.properties import SettingsError, parse_bool, parse_int

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
    limits: BrokerLimits
    """Limits for values. They should be those of the upstream brokers."""
    timings: TimingLimits
    """Limits for heartbeat intervals that the gateway gives to members of the consumer protocol."""


def read_client_config_settings(configs: Mapping[str, str]) -> ClientConfigSettings | None:
    """Read the settings of a gateway; None when client configs are off.

    Raises:
        SettingsError: A value is not allowed.
    """
    if not parse_bool(ENABLE, configs.get(ENABLE, "false")):
        return None
    limits, timings = BrokerLimits(), TimingLimits()
    return ClientConfigSettings(
        is_enforced=_is_on(CLIENT_CONFIG_ENFORCEMENT, configs.get(CLIENT_CONFIG_ENFORCEMENT, Switch.OFF)),
        limits=BrokerLimits(
            min_session_timeout_ms=_number(configs, MIN_SESSION, limits.min_session_timeout_ms),
            max_session_timeout_ms=_number(configs, MAX_SESSION, limits.max_session_timeout_ms),
            allowed_keys=_allowed_keys(configs.get(ALLOWED_CLIENT_CONFIGS)),
        ),
        timings=TimingLimits(
            min_heartbeat_interval_ms=_number(configs, MIN_INTERVAL, timings.min_heartbeat_interval_ms),
            max_heartbeat_interval_ms=_number(configs, MAX_INTERVAL, timings.max_heartbeat_interval_ms),
        ),
    )


def _is_on(name: str, value: str) -> bool:
    text = value.strip().lower()
    if text not in {Switch.ON, Switch.OFF}:
        raise SettingsError(f"{name}={text}: expected on or off")
    return text == Switch.ON


def _number(configs: Mapping[str, str], name: str, default: int) -> int:
    return parse_int(name, configs.get(name, str(default)), at_least=1)


def _allowed_keys(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    keys = frozenset(key.strip() for key in text.split(",") if key.strip())
    if unknown := keys - set(SETTABLE):
        raise SettingsError(
            f"{ALLOWED_CLIENT_CONFIGS}={text}: {', '.join(sorted(unknown))} cannot be set for clients;"
            f" expected some of {', '.join(SETTABLE)}"
        )
    return keys
