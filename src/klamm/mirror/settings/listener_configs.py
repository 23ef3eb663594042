"""Configs of the listeners of a flow whose mirror is a broker of the target: as a broker has, after ``klamm.replica.``.

A key of these families that klamm's listeners do not read is an error, because it may be meant to protect them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.configs.definitions import find_broker_config
from klamm.kafka_client.connection.security import MECHANISMS, TLS_KEYS
from klamm.properties import SettingsError, parse_bool
from klamm.protocol.errors import InvalidConfigError
from klamm.security.principals import parse_super_users
from klamm.server.listeners import PROTOCOL_MAP

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from klamm.mirror.settings.key_reader import KeyReader

PREFIX: Final = "klamm.replica."
"""Prefix of the keys that a broker has in its ``server.properties``."""
SUPER_USERS: Final = "super.users"
_ALLOW_EVERYONE: Final = "allow.everyone.if.no.acl.found"
_LISTENER_PREFIX: Final = "listener.name."
_JAAS: Final = "sasl.jaas.config"
_HANDLER: Final = "sasl.server.callback.handler.class"
_ALL_LISTENERS: Final = frozenset(
    {
        PROTOCOL_MAP,
        SUPER_USERS,
        _ALLOW_EVERYONE,
        "connections.max.idle.ms",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
    }
)
"""Configs that no listener has of its own."""
_OAUTHBEARER: Final = frozenset(
    {
        "sasl.oauthbearer.allow.unverified.audience",
        "sasl.oauthbearer.allow.unverified.issuer",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
    }
)
_LISTENER: Final = (
    _OAUTHBEARER
    | TLS_KEYS
    | {
        _JAAS,
        "connection.failed.authentication.delay.ms",
        "connections.max.reauth.ms",
        "max.connections",
        "sasl.enabled.mechanisms",
        "sasl.server.max.receive.size",
        "ssl.client.auth",
        "ssl.principal.mapping.rules",
    }
)
"""Configs of all listeners, or of one with the prefix ``listener.name.<listener>.``."""
LISTENER_CONFIGS: Final = _LISTENER | _ALL_LISTENERS


def read_listener_configs(reader: KeyReader) -> dict[str, str]:
    """Return the keys with the name of a config of listeners, without ``klamm.replica.``. Other keys do not exist."""
    return reader.with_prefix(PREFIX, accepts=concerns_listeners)


def check_listener_configs(reader: KeyReader, configs: Mapping[str, str], listeners: Collection[str]) -> None:
    """Check that klamm's listeners read the configs, and that the values are valid.

    Raises:
        SettingsError: They do not read one, or a value is not valid.
    """
    prefixes = tuple(f"{_LISTENER_PREFIX}{name.lower()}." for name in listeners)
    for name, value in configs.items():
        key = next(iter(reader.find(PREFIX + name) or ()), PREFIX + name)
        own = next(filter(name.startswith, prefixes), "")
        if not own and name.lower().startswith(_LISTENER_PREFIX):
            expected = ", ".join(PREFIX + prefix for prefix in prefixes)
            raise SettingsError(f"{key}: expected a prefix of klamm's listeners, in lower case: {expected}")
        mechanism, base = _split(name.removeprefix(own))
        if not _is_read(base, mechanism, has_prefix=bool(own)):
            raise SettingsError(f"{key}: klamm's listeners do not read this config{_why(base)}: remove it")
        _check_value(key, base, value)


def concerns_listeners(name: str) -> bool:
    """Return whether a name, without ``klamm.replica.``, is meant for listeners."""
    _, base = _split(name)
    is_security = base.startswith(("ssl.", "sasl.")) and find_broker_config(base) is not None
    return name.lower().startswith(_LISTENER_PREFIX) or is_security or base in LISTENER_CONFIGS


def _split(name: str) -> tuple[str, str]:
    """Return the mechanism with which the name of a config begins, or an empty text, and the rest of the name."""
    mechanism, _, base = name.partition(".")
    return (mechanism, base) if mechanism.upper() in MECHANISMS else ("", name)


def _is_read(base: str, mechanism: str, *, has_prefix: bool) -> bool:
    if not mechanism:
        return base in _LISTENER or (base in _ALL_LISTENERS and not has_prefix)
    if base == _JAAS:
        return has_prefix and mechanism == mechanism.lower()
    return mechanism == "oauthbearer" and base in _OAUTHBEARER | {_HANDLER}


def _why(base: str) -> str:
    if base == _HANDLER:
        return " (only OAUTHBEARER has a handler, with the prefix oauthbearer.)"
    if base.endswith(".class"):
        return " (Java classes are not run)"
    return " (Kerberos is not served)" if base.startswith("sasl.kerberos.") else ""


def _check_value(key: str, name: str, value: str) -> None:
    if name == SUPER_USERS:
        try:
            parse_super_users(value)
        except SettingsError as error:
            raise SettingsError(f"{PREFIX}{error}") from error
    elif name == _ALLOW_EVERYONE:
        parse_bool(key, value)
    elif (definition := find_broker_config(name)) is not None and not definition.is_sensitive:
        try:
            definition.parse(value)
        except InvalidConfigError as error:
            raise SettingsError(f"{key}={value}: {error}") from error
