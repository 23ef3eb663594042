"""Start settings of a gateway: command line flags, and a properties file with Kafka's names for the listener.

Settings that begin with ``upstream.`` are those of a Kafka client towards the upstream. All others are the gateway's.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.client.transport import ConnectionSettings
from klamm.gateway.upstream import CLIENT_ID
from klamm.properties import SettingsError, merged_properties, parse_int, split_address, with_prefix
from klamm.server.listeners import Address, Listener, parse_listeners, setting_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_LISTEN: Final = "127.0.0.1:19092"
DEFAULT_DATA_DIR: Final = "./klamm-gateway"
UPSTREAM_PREFIX: Final = "upstream."
UPSTREAM: Final = "upstream.bootstrap.servers"
METRICS_LISTEN: Final = "metrics.listen"
ADMIN_ONLY: Final = "admin.only"
DATA_DIR: Final = "data.dir"
TOPOLOGY_INTERVAL: Final = "topology.refresh.interval.ms"
START_TIMEOUT: Final = "upstream.start.timeout.ms"
SHUTDOWN_GRACE: Final = "shutdown.grace.ms"
MAX_FRAME: Final = "socket.request.max.bytes"
PRINCIPAL_CLAIM: Final = "sasl.oauthbearer.sub.claim.name"


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


def parse_arguments(arguments: Sequence[str]) -> GatewaySettings:
    """Parse the command line.

    Raises:
        SettingsError: A value is not allowed. The message names the setting and the allowed values.
        SystemExit: ``--help`` was given, or argparse rejects a flag and has printed why.
    """
    parsed = _parser().parse_args(arguments)
    configs = merged_properties(parsed.config, parsed.set)
    flags = {UPSTREAM: parsed.upstream, "listeners": parsed.listen, "advertised.listeners": parsed.advertise}
    flags |= {METRICS_LISTEN: parsed.metrics, DATA_DIR: parsed.data_dir}
    configs |= {name: value for name, value in flags.items() if value is not None}
    if parsed.admin_only:
        configs[ADMIN_ONLY] = "true"
    return read_settings(configs)


def read_settings(configs: Mapping[str, str]) -> GatewaySettings:
    """Read the settings of a gateway.

    Raises:
        SettingsError: A value is not allowed. The message names the setting and the allowed values.
    """
    servers = tuple(server.strip() for server in configs.get(UPSTREAM, "").split(",") if server.strip())
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
    upstream = ConnectionSettings.of(servers, properties, CLIENT_ID)
    _check_identities(listener, own, upstream)
    advertised = None if listener.advertise is None else listener.advertise[0]
    return GatewaySettings(
        upstream=upstream,
        upstream_properties=properties,
        listener=listener,
        advertised=advertised,
        data_dir=Path(own.get(DATA_DIR, DEFAULT_DATA_DIR)),
        metrics=_metrics_address(own.get(METRICS_LISTEN, "").strip()),
        admin_only=_boolean(ADMIN_ONLY, own.get(ADMIN_ONLY, "false")),
        configs=own,
        topology_interval_s=_milliseconds(own, TOPOLOGY_INTERVAL, 10_000),
        start_timeout_s=_milliseconds(configs, START_TIMEOUT, 60_000),
        shutdown_grace_s=_milliseconds(own, SHUTDOWN_GRACE, 10_000),
        max_frame_bytes=parse_int(MAX_FRAME, own.get(MAX_FRAME, "104857600"), at_least=1024),
        principal_claim=own.get(PRINCIPAL_CLAIM, "sub"),
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
    if listeners[0].protocol.uses_sasl:
        raise SettingsError(
            f"--listen: the listener {listeners[0].name} has its own SASL logins, which the gateway does not serve;"
            " logins of clients pass through to the upstream: use PLAINTEXT:// or SSL://"
        )
    return listeners[0]


def _check_identities(listener: Listener, configs: Mapping[str, str], upstream: ConnectionSettings) -> None:
    """Reject settings by which certificates would name clients: a client's certificate cannot pass the gateway.

    Raises:
        SettingsError: Clients have to send certificates, or the gateway's certificate would name all clients
            upstream.
    """
    client_auth = setting_of(configs, listener.name, "ssl.client.auth") or "none"
    if client_auth.strip().lower() != "none":
        raise SettingsError(
            f"ssl.client.auth={client_auth}: certificates of clients cannot pass the gateway;"
            f" let clients log in by SASL"
        )
    security = upstream.security
    has_certificate = any(name.startswith("ssl.keystore.") for name in security.tls)
    if has_certificate and not security.uses_sasl:
        raise SettingsError(
            f"{UPSTREAM_PREFIX}ssl.keystore.*: all clients would act with the gateway's certificate; use SASL_SSL, by"
            f" which each client logs in with its own credentials"
        )


def _metrics_address(text: str) -> Address | None:
    found = split_address(text) if text else None
    if text and found is None:
        raise SettingsError(f"{METRICS_LISTEN}={text}: expected HOST:PORT")
    return None if found is None else Address(host=found[0], port=found[1])


def _boolean(name: str, text: str) -> bool:
    if text.strip().lower() not in {"true", "false"}:
        raise SettingsError(f"{name}={text}: expected true or false")
    return text.strip().lower() == "true"


def _milliseconds(configs: Mapping[str, str], name: str, default: int) -> float:
    return parse_int(name, configs.get(name, str(default)), at_least=1) / 1000


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
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
        help="address of the Prometheus page /metrics and of /ready and /live (default: no such pages)",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings of the gateway, as a properties file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one setting; outranks the file"
    )
    return parser
