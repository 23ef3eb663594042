"""Start settings of a gateway: command line flags, and a properties file with Kafka's names for the listener.

Settings that begin with ``upstream.`` are those of a Kafka client towards the upstream. All others are the gateway's.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.config_providers import resolve
from klamm.configs.definitions import UPSTREAM
from klamm.gateway.upstream.broker_hosts import BrokerHosts
from klamm.gateway.upstream.upstream import CLIENT_ID
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.properties import (
    SettingsError,
    merged_properties,
    parse_bool,
    parse_int,
    parse_list,
    split_address,
    split_servers,
    with_prefix,
)
from klamm.server.arguments import CommandParser
from klamm.server.listeners import Address, Listener, parse_listeners, setting_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_LISTEN: Final = "127.0.0.1:19092"
DEFAULT_DATA_DIR: Final = "./klamm-gateway"
UPSTREAM_PREFIX: Final = "upstream."
METRICS_LISTEN: Final = "metrics.listen"
ADMIN_ONLY: Final = "admin.only"
DATA_DIR: Final = "data.dir"
TOPOLOGY_INTERVAL: Final = "topology.refresh.interval.ms"
START_TIMEOUT: Final = "upstream.start.timeout.ms"
SHUTDOWN_GRACE: Final = "shutdown.grace.ms"
MAX_FRAME: Final = "socket.request.max.bytes"
PRINCIPAL_CLAIM: Final = "sasl.oauthbearer.sub.claim.name"
BROKER_HOSTS: Final = "broker.host.pattern"
PROXY_NETWORKS: Final = "proxy.protocol.networks"
PROCESSES: Final = "processes"
BYPASS_INTERVAL: Final = "bypass.check.interval.ms"
GATEWAY_HOSTS: Final = "bypass.known.hosts"
REUSE_PORT: Final = "socket.reuse.port"
CLIENT_AUTH: Final = "ssl.client.auth"

Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"


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
    reuses_ports: bool
    """Whether another gateway may listen on the same ports, for restarts without a gap."""


def parse_arguments(arguments: Sequence[str]) -> GatewaySettings:
    """Parse the command line.

    Raises:
        SettingsError: A value is not allowed. The message names the setting and the allowed values.
        SystemExit: ``--help`` was given, or argparse rejects a flag and has printed why.
    """
    parsed = _parser().parse_args(arguments)
    flags = {
        UPSTREAM: ("--upstream", parsed.upstream),
        "listeners": ("--listen", parsed.listen),
        "advertised.listeners": ("--advertise", parsed.advertise),
        METRICS_LISTEN: ("--metrics", parsed.metrics),
        DATA_DIR: ("--data-dir", parsed.data_dir),
        ADMIN_ONLY: ("--admin-only", "true" if parsed.admin_only else None),
    }
    by_flag = {name: value for name, (_, value) in flags.items() if value is not None}
    configs = merged_properties(parsed.config, parsed.set, {name: flags[name][0] for name in by_flag})
    return read_settings(resolve(configs) | by_flag)


def read_settings(configs: Mapping[str, str]) -> GatewaySettings:
    """Read the settings of a gateway.

    Raises:
        SettingsError: A value is not allowed. The message names the setting and the allowed values.
    """
    servers = split_servers(configs.get(UPSTREAM, ""))
    if not servers:
        raise SettingsError(f"--upstream (or {UPSTREAM}) is required: the bootstrap servers of the upstream cluster")
    for server in servers:
        if split_address(server) is None:
            raise SettingsError(f"{UPSTREAM}={server}: expected HOST:PORT")
    properties = {
        name: value
        for name, value in with_prefix(configs, UPSTREAM_PREFIX).items()
        if f"{UPSTREAM_PREFIX}{name}" not in (UPSTREAM, START_TIMEOUT)
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
        data_dir=Path(own.get(DATA_DIR, DEFAULT_DATA_DIR)),
        metrics=_metrics_address(own.get(METRICS_LISTEN, "").strip()),
        admin_only=parse_bool(ADMIN_ONLY, own.get(ADMIN_ONLY, "false")),
        configs=own,
        topology_interval_s=_milliseconds(own, TOPOLOGY_INTERVAL, 10_000),
        start_timeout_s=_milliseconds(configs, START_TIMEOUT, 60_000),
        shutdown_grace_s=_milliseconds(own, SHUTDOWN_GRACE, 10_000),
        max_frame_bytes=parse_int(MAX_FRAME, own.get(MAX_FRAME, "104857600"), at_least=1024),
        principal_claim=own.get(PRINCIPAL_CLAIM, "sub"),
        terminates=terminates,
        broker_hosts=_broker_hosts(own, listener),
        proxy_networks=_networks(own.get(PROXY_NETWORKS, "")),
        bypass_interval_s=parse_int(BYPASS_INTERVAL, own.get(BYPASS_INTERVAL, "60000"), at_least=0) / 1000,
        known_hosts=parse_list(own.get(GATEWAY_HOSTS, "")),
        processes=parse_int(PROCESSES, own.get(PROCESSES, "1"), at_least=1),
        reuses_ports=parse_bool(REUSE_PORT, own.get(REUSE_PORT, "false")),
    )


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
    pattern = configs.get(BROKER_HOSTS, "").strip()
    if not pattern:
        return None
    if not listener.protocol.uses_tls:
        raise SettingsError(
            f"{BROKER_HOSTS}={pattern}: brokers are distinguished by host names of TLS; use SSL:// or SASL_SSL://"
        )
    return BrokerHosts(pattern, BROKER_HOSTS)


def _networks(text: str) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(part) for part in parse_list(text))
    except ValueError as error:
        raise SettingsError(
            f"{PROXY_NETWORKS}={text}: expected addresses of load balancers, such as 10.0.0.0/8,192.168.1.7"
        ) from error


def _metrics_address(text: str) -> Address | None:
    found = split_address(text) if text else None
    if text and found is None:
        raise SettingsError(f"{METRICS_LISTEN}={text}: expected HOST:PORT")
    return None if found is None else Address(host=found[0], port=found[1])


def _milliseconds(configs: Mapping[str, str], name: str, default: int) -> float:
    return parse_int(name, configs.get(name, str(default)), at_least=1) / 1000


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="klamm gateway",
        description="Run a gateway in front of a Kafka cluster: clients connect to it instead of the brokers.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--upstream",
        metavar="HOST:PORT,...",
        help=f"bootstrap servers of the upstream cluster, instead of the config {UPSTREAM}",
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
        "--data-dir", metavar="DIR", help=f"directory that keeps the topology (default {DEFAULT_DATA_DIR})"
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
