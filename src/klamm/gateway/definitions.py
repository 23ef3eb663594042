"""Table of the gateway's settings: key, parser with its limits, default, meaning; and the keys that have an effect.

Settings that begin with ``upstream.`` are those of a Kafka client towards the upstream. Those of the listener and of
its logins have the names and the meanings of the broker's configs.
"""

from __future__ import annotations

import functools
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from klamm.client_configs.definitions import SETTABLE, Switch
from klamm.configs.definitions import (
    ALLOWED_CLIENT_CONFIGS,
    CLIENT_CONFIG_ENFORCEMENT,
    POLICY_RELOAD_INTERVAL_MS,
    POLICY_RULES_FILE,
    POLICY_TIMEOUT_MS,
    base_name,
    broker_configs,
    find_broker_config,
)
from klamm.configs.definitions import UPSTREAM as UPSTREAM_KEY
from klamm.lazy_dataclass import dataclass
from klamm.policy.kinds import GATEWAY_KINDS
from klamm.properties import (
    SettingsError,
    did_you_mean,
    parse_bool,
    parse_int,
    parse_list,
    split_address,
    split_servers,
)
from klamm.server.listeners import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Value = TypeVar("Value")
Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"

UPSTREAM_PREFIX: Final = "upstream."
MIN_SESSION: Final = "group.min.session.timeout.ms"
MAX_SESSION: Final = "group.max.session.timeout.ms"
MIN_INTERVAL: Final = "group.consumer.min.heartbeat.interval.ms"
MAX_INTERVAL: Final = "group.consumer.max.heartbeat.interval.ms"


@dataclass(frozen=True, slots=True)
class GatewaySetting(Generic[Value]):
    """One setting."""

    key: str
    parse: Callable[[str, str], Value]
    """Converts the value, given the key. Raises ``SettingsError`` for a wrong value."""
    default: Value
    doc: str

    def read(self, configs: Mapping[str, str]) -> Value:
        """Return the value among some settings.

        Raises:
            SettingsError: The value is not allowed. The message names the key and what is allowed.
        """
        return self.default if self.key not in configs else self.parse(self.key, configs[self.key])


def _servers(key: str, value: str) -> tuple[str, ...]:
    servers = split_servers(value)
    for server in servers:
        if split_address(server) is None:
            raise SettingsError(f"{key}={server}: expected HOST:PORT")
    return servers


def _text(_: str, value: str) -> str:
    return value


def _directory(key: str, value: str) -> Path:
    path = Path(value)
    existing = next((each for each in (path, *path.parents) if each.exists()), None)
    if existing is not None and not existing.is_dir():
        raise SettingsError(f"{key}={value}: {existing} is not a directory")
    return path


def _integer(*, at_least: int) -> Callable[[str, str], int]:
    return functools.partial(parse_int, at_least=at_least)


def _seconds(key: str, value: str, *, at_least: int = 1) -> float:
    """Return the seconds of a value in milliseconds."""
    return parse_int(key, value, at_least=at_least) / 1000


def _address(key: str, value: str) -> Address | None:
    if not value.strip():
        return None
    address = split_address(value.strip())
    if address is None:
        raise SettingsError(f"{key}={value.strip()}: expected HOST:PORT")
    return Address(host=address[0], port=address[1])


def _networks(key: str, value: str) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(part) for part in parse_list(value))
    except ValueError as error:
        raise SettingsError(
            f"{key}={value}: expected addresses of load balancers, such as 10.0.0.0/8,192.168.1.7"
        ) from error


def _list(_: str, value: str) -> tuple[str, ...]:
    return parse_list(value)


def _switch(key: str, value: str) -> bool:
    text = value.strip().lower()
    if text not in {Switch.ON, Switch.OFF}:
        raise SettingsError(f"{key}={text}: expected on or off")
    return text == Switch.ON


def _allowed_keys(key: str, value: str) -> frozenset[str] | None:
    keys = frozenset(parse_list(value))
    if unknown := keys - set(SETTABLE):
        raise SettingsError(
            f"{key}={value}: {', '.join(sorted(unknown))} cannot be set for clients;"
            f" expected some of {', '.join(SETTABLE)}"
        )
    return keys


UPSTREAM: Final[GatewaySetting[tuple[str, ...]]] = GatewaySetting(
    UPSTREAM_KEY, _servers, (), "Bootstrap servers of the upstream cluster."
)
START_TIMEOUT: Final = GatewaySetting(
    "upstream.start.timeout.ms", _seconds, 60.0, "Time that a first start waits for the upstream."
)
METRICS_LISTEN: Final[GatewaySetting[Address | None]] = GatewaySetting(
    "metrics.listen", _address, None, "Address of the metrics page."
)
ADMIN_ONLY: Final = GatewaySetting("admin.only", parse_bool, False, "Whether Produce and Fetch are left out.")
DATA_DIR: Final = GatewaySetting("data.dir", _directory, Path("./klamm-gateway"), "Directory that keeps the topology.")
TOPOLOGY_INTERVAL: Final = GatewaySetting(
    "topology.refresh.interval.ms", _seconds, 10.0, "Interval between requests for the brokers of the upstream."
)
SHUTDOWN_GRACE: Final = GatewaySetting(
    "shutdown.grace.ms", _seconds, 10.0, "Time that requests in flight may take after SIGTERM."
)
MAX_FRAME: Final = GatewaySetting("socket.request.max.bytes", _integer(at_least=1024), 104_857_600, "Largest request.")
PRINCIPAL_CLAIM: Final = GatewaySetting(
    "sasl.oauthbearer.sub.claim.name", _text, "sub", "Claim of a token that names the user."
)
BROKER_HOSTS: Final = GatewaySetting(
    "broker.host.pattern", _text, "", "Host name of each broker on one TLS port. Empty: a port for each broker."
)
PROXY_NETWORKS: Final[GatewaySetting[tuple[Network, ...]]] = GatewaySetting(
    "proxy.protocol.networks", _networks, (), "Addresses of load balancers that send a PROXY header."
)
PROCESSES: Final = GatewaySetting("processes", _integer(at_least=1), 1, "Number of processes that serve connections.")
BYPASS_INTERVAL: Final = GatewaySetting(
    "bypass.check.interval.ms",
    functools.partial(_seconds, at_least=0),
    60.0,
    "Interval between checks for clients that bypass the gateway; 0 means never.",
)
GATEWAY_HOSTS: Final[GatewaySetting[tuple[str, ...]]] = GatewaySetting(
    "bypass.known.hosts", _list, (), "Addresses of other gateways, as the brokers see them."
)
REUSE_PORT: Final = GatewaySetting(
    "socket.reuse.port", parse_bool, False, "Whether another gateway may listen on the same ports."
)
CHANGE_HISTORY: Final = GatewaySetting(
    "change.history.enable", parse_bool, False, "Whether to record what clients change."
)
CLIENT_CONFIGS: Final = GatewaySetting("client.configs.enable", parse_bool, False, "Whether to serve client configs.")
ENFORCEMENT: Final = GatewaySetting(
    CLIENT_CONFIG_ENFORCEMENT, _switch, False, "Whether clients are held to their configs."
)
ALLOWED_KEYS: Final[GatewaySetting[frozenset[str] | None]] = GatewaySetting(
    ALLOWED_CLIENT_CONFIGS, _allowed_keys, None, "Client configs that may be set; None means all."
)
LIMITS: Final[tuple[GatewaySetting[int | None], ...]] = tuple(
    GatewaySetting(key, _integer(at_least=1), None, doc)
    for key, doc in (
        (MIN_SESSION, "Lower limit of enforced session timeouts; None means that of the brokers."),
        (MAX_SESSION, "Upper limit of enforced session timeouts; None means that of the brokers."),
        (MIN_INTERVAL, "Lower limit of enforced heartbeat intervals; None means that of the brokers."),
        (MAX_INTERVAL, "Upper limit of enforced heartbeat intervals; None means that of the brokers."),
    )
)
SETTINGS: Final[Mapping[str, GatewaySetting[object]]] = {
    setting.key: setting for setting in (*LIMITS, *globals().values()) if isinstance(setting, GatewaySetting)
}
"""All settings of the gateway by key, except those of policies, of the listener and of clients towards the upstream."""
_OF_POLICIES: Final = frozenset(
    {
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


def has_effect(key: str) -> bool:
    """Return whether a setting has an effect in a gateway, even if no policy reads it."""
    if key in SETTINGS or key in _OF_POLICIES or key.startswith(_PROVIDERS):
        return True
    if key.startswith(UPSTREAM_PREFIX):
        of_client = key.removeprefix(UPSTREAM_PREFIX)
        return of_client in _OF_CLIENTS or of_client.startswith(("ssl.", "sasl."))
    return find_broker_config(key) is not None and base_name(key).startswith(_OF_LISTENERS)


def describe_unknown(key: str) -> str:
    """Return an error message about a setting without an effect, with the most similar key that has one."""
    keys = {
        *SETTINGS,
        *_OF_POLICIES,
        *filter(has_effect, broker_configs()),
        *(f"{UPSTREAM_PREFIX}{each}" for each in _OF_CLIENTS),
    }
    return f"setting {key} has no effect in a gateway{did_you_mean(key, keys)}"
