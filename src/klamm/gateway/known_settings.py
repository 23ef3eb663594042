"""Names of settings that have an effect in a gateway. All others are rejected, unless a policy may read them."""

from __future__ import annotations

from typing import Final

from klamm.configs.definitions import (
    ALLOWED_CLIENT_CONFIGS,
    CLIENT_CONFIG_ENFORCEMENT,
    POLICY_RELOAD_INTERVAL_MS,
    POLICY_RULES_FILE,
    POLICY_TIMEOUT_MS,
    UPSTREAM,
    base_name,
    broker_configs,
    find_broker_config,
)
from klamm.gateway import settings
from klamm.gateway.client_configs import settings as client_configs
from klamm.gateway.history import feature as history
from klamm.policy.kinds import GATEWAY_KINDS, names_policy
from klamm.properties import SettingsError, did_you_mean

_OWN: Final = frozenset(
    {
        UPSTREAM,
        settings.METRICS_LISTEN,
        settings.ADMIN_ONLY,
        settings.DATA_DIR,
        settings.TOPOLOGY_INTERVAL,
        settings.START_TIMEOUT,
        settings.SHUTDOWN_GRACE,
        settings.MAX_FRAME,
        settings.PRINCIPAL_CLAIM,
        settings.BROKER_HOSTS,
        settings.PROXY_NETWORKS,
        settings.PROCESSES,
        settings.BYPASS_INTERVAL,
        settings.GATEWAY_HOSTS,
        settings.REUSE_PORT,
        client_configs.ENABLE,
        history.ENABLE,
        client_configs.MIN_SESSION,
        client_configs.MAX_SESSION,
        client_configs.MIN_INTERVAL,
        client_configs.MAX_INTERVAL,
        ALLOWED_CLIENT_CONFIGS,
        CLIENT_CONFIG_ENFORCEMENT,
        POLICY_TIMEOUT_MS,
        POLICY_RELOAD_INTERVAL_MS,
        POLICY_RULES_FILE,
        *(key for kind in GATEWAY_KINDS for key in (*kind.class_keys, kind.mode_key)),
    }
)
_OF_LISTENERS: Final = (
    "listeners",
    "listener.",
    "advertised.listeners",
    "ssl.",
    "sasl.",
    "connection.failed.authentication.delay.ms",
    "connections.max.reauth.ms",
)
"""Beginnings of the broker configs that concern the listener and its logins."""
_PROVIDERS: Final = "config.providers"
_OF_CLIENTS: Final = frozenset(
    {"client.id", "reconnect.backoff.max.ms", "reconnect.backoff.ms", "request.timeout.ms", "security.protocol"}
)
"""Client properties that concern the connections to the upstream, beside those of TLS and SASL."""


def reject_unknown(given: settings.GatewaySettings) -> None:
    """Reject settings that would have no effect.

    Raises:
        SettingsError: A setting has no effect in a gateway, and no policy is configured that may read it.
    """
    if not names_policy(given.configs, GATEWAY_KINDS) and (unknown := unknown_names(given)):
        raise SettingsError("; ".join(map(describe_unknown, unknown)))


def unknown_names(given: settings.GatewaySettings) -> tuple[str, ...]:
    """Return the names of settings without an effect, sorted."""
    of_upstream = {f"{settings.UPSTREAM_PREFIX}{name}" for name in given.upstream_properties}
    return tuple(sorted(name for name in {*given.configs, *of_upstream} if not _is_known(name)))


def describe_unknown(name: str) -> str:
    """Return an error message about a setting without an effect, with the most similar known name."""
    known = {
        *_OWN,
        *filter(_is_known, broker_configs()),
        *(f"{settings.UPSTREAM_PREFIX}{each}" for each in _OF_CLIENTS),
    }
    return f"setting {name} has no effect in a gateway{did_you_mean(name, known)}"


def _is_known(name: str) -> bool:
    if name in _OWN or name.startswith(_PROVIDERS):
        return True
    if name.startswith(settings.UPSTREAM_PREFIX):
        of_client = name.removeprefix(settings.UPSTREAM_PREFIX)
        return of_client in _OF_CLIENTS or of_client.startswith(("ssl.", "sasl."))
    return find_broker_config(name) is not None and base_name(name).startswith(_OF_LISTENERS)
