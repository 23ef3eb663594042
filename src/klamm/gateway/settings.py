"""Start settings of a gateway: command line flags, and a properties file with Kafka's names for the listener.

Settings that begin with ``upstream.`` are those of a Kafka client towards the upstream. All others are the gateway's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.config_providers import resolve
from klamm.gateway import definitions as table
from klamm.gateway.definitions import UPSTREAM_PREFIX
from klamm.gateway.upstream.topology import BrokerHosts
from klamm.gateway.upstream.upstream import CLIENT_ID
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.lazy_dataclass import dataclass
from klamm.policy.kinds import GATEWAY_KINDS, names_policy
from klamm.properties import SettingsError, merged_properties, with_prefix
from klamm.server.arguments import CommandParser
from klamm.server.listeners import Listener, parse_listeners, setting_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.gateway.definitions import Network
    from klamm.server.listeners import Address

DEFAULT_LISTEN: Final = "127.0.0.1:19092"
CLIENT_AUTH: Final = "ssl.client.auth"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfigSettings:
    """Settings of client configs."""

    is_enforced: bool
    allowed_keys: frozenset[str] | None
    """Keys that may be set. None means that all are allowed."""
    own_limits: Mapping[str, int]
    """Limits for enforced values, by the broker's config. They narrow those of the upstream brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """All settings of a gateway."""

    upstream: ConnectionSettings
    upstream_properties: Mapping[str, str]
    """Properties of a client towards the upstream, without the prefix."""
    listener: Listener
    advertised: Address | None
    """Host and base port that clients connect to; None means those of the listener."""
    data_dir: Path
    metrics: Address | None
    """Address of the metrics page; None means no such page."""
    admin_only: bool
    configs: Mapping[str, str]
    """Settings of the properties file and of ``--set`` without those of the upstream, unparsed."""
    topology_interval_s: float
    start_timeout_s: float
    """Time to wait for the upstream at a first start, when its brokers are not known from the file."""
    shutdown_grace_s: float
    max_frame_bytes: int
    principal_claim: str
    terminates: bool
    """Whether logins of clients end at the gateway, which then uses its own credentials at the upstream."""
    broker_hosts: BrokerHosts | None
    """Host names of the brokers on one TLS port; None for a port of each broker."""
    proxy_networks: tuple[Network, ...]
    """Addresses of load balancers whose connections begin with a PROXY header."""
    bypass_interval_s: float
    """Time between two checks for clients that go past the gateway; 0 means that there are none."""
    known_hosts: tuple[str, ...]
    """Addresses of other gateways, as the brokers see them."""
    processes: int
    """Number of processes that serve connections. With more than one, this process only accepts them."""
    records_history: bool
    """Whether the changes that clients make are recorded."""
    client_configs: ClientConfigSettings | None
    """None if client configs are off."""
    reuses_ports: bool
    """Whether another gateway may listen on the same ports, for restarts without a gap."""


def parse_arguments(arguments: Sequence[str]) -> GatewaySettings:
    """Parse the command line of ``klamm gateway``.

    Raises:
        SettingsError: A value is not allowed. The message names the setting and the allowed values.
        SystemExit: ``--help`` was given, or argparse rejects a flag and has printed why.
    """
    parsed = _parser().parse_args(arguments)
    flags = {
        table.UPSTREAM.key: ("--upstream", parsed.upstream),
        "listeners": ("--listen", parsed.listen),
        "advertised.listeners": ("--advertise", parsed.advertise),
        table.METRICS_LISTEN.key: ("--metrics", parsed.metrics),
        table.DATA_DIR.key: ("--data-dir", parsed.data_dir),
        table.ADMIN_ONLY.key: ("--admin-only", "true" if parsed.admin_only else None),
    }
    by_flag = {name: value for name, (_, value) in flags.items() if value is not None}
    configs = merged_properties(parsed.config, parsed.set, {name: flags[name][0] for name in by_flag})
    return read_settings(resolve(configs) | by_flag)


def read_settings(configs: Mapping[str, str]) -> GatewaySettings:
    """Read the settings of a gateway.

    Raises:
        SettingsError: A value is not allowed. The message names the setting and the allowed values.
    """
    servers = table.UPSTREAM.read(configs)
    if not servers:
        raise SettingsError(
            f"--upstream (or {table.UPSTREAM.key}) is required: the bootstrap servers of the upstream cluster"
        )
    properties = {
        name: value
        for name, value in with_prefix(configs, UPSTREAM_PREFIX).items()
        if f"{UPSTREAM_PREFIX}{name}" not in table.SETTINGS
    }
    own = {name: value for name, value in configs.items() if not name.startswith(UPSTREAM_PREFIX)}
    listener = _listener(own)
    try:
        upstream = ConnectionSettings.of(servers, properties, CLIENT_ID)
    except SettingsError as error:
        raise SettingsError(f"{UPSTREAM_PREFIX}{error}") from error
    terminates = _terminates(listener, own)
    _check_identities(terminates=terminates, upstream=upstream)
    advertised = None if listener.advertise is None else listener.advertise[0]
    return GatewaySettings(
        upstream=upstream,
        upstream_properties=properties,
        listener=listener,
        advertised=advertised,
        data_dir=table.DATA_DIR.read(own),
        metrics=table.METRICS_LISTEN.read(own),
        admin_only=table.ADMIN_ONLY.read(own),
        configs=own,
        topology_interval_s=table.TOPOLOGY_INTERVAL.read(own),
        start_timeout_s=table.START_TIMEOUT.read(configs),
        shutdown_grace_s=table.SHUTDOWN_GRACE.read(own),
        max_frame_bytes=table.MAX_FRAME.read(own),
        principal_claim=table.PRINCIPAL_CLAIM.read(own),
        terminates=terminates,
        broker_hosts=_broker_hosts(own, listener),
        proxy_networks=table.PROXY_NETWORKS.read(own),
        bypass_interval_s=table.BYPASS_INTERVAL.read(own),
        known_hosts=table.GATEWAY_HOSTS.read(own),
        processes=table.PROCESSES.read(own),
        records_history=table.CHANGE_HISTORY.read(own),
        client_configs=_client_configs(own),
        reuses_ports=table.REUSE_PORT.read(own),
    )


def unknown_names(settings: GatewaySettings) -> tuple[str, ...]:
    """Return the names of settings without an effect, sorted."""
    of_upstream = {f"{UPSTREAM_PREFIX}{name}" for name in settings.upstream_properties}
    return tuple(sorted(name for name in {*settings.configs, *of_upstream} if not table.has_effect(name)))


def reject_unknown(settings: GatewaySettings) -> None:
    """Reject settings that would have no effect.

    Raises:
        SettingsError: A setting has no effect in a gateway, and no policy is configured that may read it.
    """
    if not names_policy(settings.configs, GATEWAY_KINDS) and (unknown := unknown_names(settings)):
        raise SettingsError("; ".join(map(table.describe_unknown, unknown)))


def _client_configs(configs: Mapping[str, str]) -> ClientConfigSettings | None:
    limits = {setting.key: setting.read(configs) for setting in table.LIMITS}
    settings = ClientConfigSettings(
        is_enforced=table.ENFORCEMENT.read(configs),
        allowed_keys=table.ALLOWED_KEYS.read(configs),
        own_limits={key: limit for key, limit in limits.items() if limit is not None},
    )
    if table.CLIENT_CONFIGS.key not in configs:
        for key in (table.ENFORCEMENT.key, table.ALLOWED_KEYS.key, *limits):
            if key in configs:
                raise SettingsError(f"{key}: no effect without {table.CLIENT_CONFIGS.key}=true")
    return settings if table.CLIENT_CONFIGS.read(configs) else None


def _listener(configs: Mapping[str, str]) -> Listener:
    listeners = parse_listeners(
        configs.get("listeners", DEFAULT_LISTEN),
        advertised=configs.get("advertised.listeners"),
        configs=configs,
        count=1,
        flag="--listen",
    )
    if len(listeners) != 1:
        raise SettingsError("--listen: expected one [NAME://]HOST:PORT; a gateway has one listener")
    return listeners[0]


def _terminates(listener: Listener, configs: Mapping[str, str]) -> bool:
    """Return whether clients log in at the gateway itself, by SASL or with a certificate.

    Raises:
        SettingsError: Clients may show a certificate, but need not.
    """
    if listener.protocol.uses_sasl:
        return True
    client_auth = (setting_of(configs, listener.name, CLIENT_AUTH) or "none").strip().lower()
    if client_auth not in {"none", "required"}:
        raise SettingsError(
            f"{CLIENT_AUTH}={client_auth}: expected none or required; a client without a certificate would act with"
            f" the gateway's own credentials"
        )
    return client_auth == "required" and listener.protocol.uses_tls


def _check_identities(*, terminates: bool, upstream: ConnectionSettings) -> None:
    """Reject a certificate of the gateway with which clients without a login would act upstream.

    Raises:
        SettingsError: The gateway's certificate would name all clients upstream.
    """
    security = upstream.security
    has_certificate = any(name.startswith("ssl.keystore.") for name in security.tls)
    if has_certificate and not (security.uses_sasl or terminates):
        raise SettingsError(
            f"{UPSTREAM_PREFIX}ssl.keystore.*: all clients would act with the gateway's certificate; let clients log in"
            f" at the gateway (SASL_SSL:// in --listen, or ssl.client.auth=required), or use SASL_SSL, by which each"
            f" client logs in with its own credentials"
        )


def _broker_hosts(configs: Mapping[str, str], listener: Listener) -> BrokerHosts | None:
    key, pattern = table.BROKER_HOSTS.key, table.BROKER_HOSTS.read(configs).strip()
    if not pattern:
        return None
    if not listener.protocol.uses_tls:
        raise SettingsError(
            f"{key}={pattern}: brokers are distinguished by host names of TLS; use SSL:// or SASL_SSL://"
        )
    return BrokerHosts(pattern, key)


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="klamm gateway",
        description="Run a gateway in front of a Kafka cluster: clients connect to it instead of the brokers.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--upstream",
        metavar="HOST:PORT,...",
        help=f"bootstrap servers of the upstream cluster, instead of the config {table.UPSTREAM.key}",
    )
    parser.add_argument(
        "--listen",
        metavar="[NAME://]HOST:PORT",
        help=f"address for bootstrap, and the base of the ports: the broker with node id N is served on PORT + N"
        f" (default {DEFAULT_LISTEN}); SSL://HOST:PORT for TLS",
    )
    parser.add_argument(
        "--advertise",
        metavar="HOST:PORT",
        help="host and base port that clients connect to (default: the listen address)",
    )
    parser.add_argument(
        "--admin-only",
        action="store_true",
        help="serve no Produce and no Fetch: applications keep talking to the brokers",
    )
    parser.add_argument(
        "--data-dir", metavar="DIR", help=f"directory that keeps the topology (default ./{table.DATA_DIR.default})"
    )
    parser.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        help="address of the Prometheus page /metrics, of /ready and /live, and of a page for browsers (default: none)",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings of the gateway, as a properties file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one setting; outranks the file"
    )
    return parser
