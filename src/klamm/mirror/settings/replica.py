"""Settings of a flow whose mirror is a broker of the target (``klamm.offsets.by=replica``)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
from klamm.mirror.settings.definitions import (
    OFFSETS,
    OFFSETS_BY,
    REPLICA_ADVERTISED,
    REPLICA_EXPERIMENTAL,
    REPLICA_LISTENERS,
    REPLICA_NODE_ID,
    REPLICATION_FACTOR,
    USE_INCREMENTAL_ALTER_CONFIGS,
    IncrementalAlterConfigs,
    OffsetsBy,
)
from klamm.mirror.settings.listener_configs import PREFIX, check_listener_configs, read_listener_configs
from klamm.properties import SettingsError, parse_list, split_address
from klamm.server.listeners import (
    ANY_HOSTS,
    DEFAULT_LISTENER,
    PROTOCOL_MAP,
    Address,
    SecurityProtocol,
    parse_protocol_map,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.mirror.settings.clients import ClusterSettings
    from klamm.mirror.settings.definitions import Setting
    from klamm.mirror.settings.key_reader import KeyReader

_LISTENER: Final = re.compile(r"(?:(?P<name>[A-Za-z0-9._-]+)://)?(?P<address>.*)")
_READ_ONLY: Final = "remote topics are read-only until klamm mirror promote"
_FORM: Final = "[NAME://]HOST:PORT[,...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaBroker:
    """Broker id and listeners of a flow."""

    node_id: int
    """``klamm.replica.node.id``."""
    listen: Mapping[str, Address]
    """Address to listen on, by the name of the listener (``klamm.replica.listeners``)."""
    advertised: Mapping[str, Address]
    """Address at which brokers and clients connect (``klamm.replica.advertised.listeners``), for the same names."""
    protocols: Mapping[str, SecurityProtocol]
    """Security protocol (``klamm.replica.listener.security.protocol.map``), for the same names."""
    configs: Mapping[str, str]
    """Configs for TLS, SASL and super users, as in ``server.properties``, without ``klamm.replica.``."""


def parse_replica(
    reader: KeyReader, target: ClusterSettings, *, preserves_offsets: bool
) -> tuple[ReplicaBroker | None, tuple[str, ...]]:
    """Return the broker of a flow, and warnings. None: the flow has another way to keep offsets, or keeps none.

    Raises:
        SettingsError: A value is wrong or missing, or contradicts another one.
    """
    node_id = reader.get(REPLICA_NODE_ID)
    listen = _listeners(reader, REPLICA_LISTENERS)
    advertised = _listeners(reader, REPLICA_ADVERTISED)
    configs = read_listener_configs(reader)
    way = f"{OFFSETS_BY.key}={OffsetsBy.REPLICA}"
    if reader.get(OFFSETS_BY) is not OffsetsBy.REPLICA:
        wanted = (REPLICA_NODE_ID, REPLICA_LISTENERS, REPLICA_ADVERTISED)
        keys = [*(setting.key for setting in wanted), *(PREFIX + name for name in configs)]
        set_keys = [entry[0] for key in keys if (entry := reader.find(key)) is not None]
        return None, (f"{', '.join(set_keys)}: no effect without {way}",) if set_keys else ()
    _check_allowed(reader, preserves_offsets=preserves_offsets)
    if node_id is None:
        raise SettingsError(f"{REPLICA_NODE_ID.key}: expected an id that no node of {target.alias} has, for {way}")
    if not listen:
        raise SettingsError(f"{REPLICA_LISTENERS.key}: expected {_FORM} on this machine, for {way}")
    if not target.bootstrap_controllers:
        raise SettingsError(f"{target.alias}.bootstrap.controllers: expected host:port[,host:port...], for {way}")
    if reader.get(REPLICATION_FACTOR) < 1:
        raise SettingsError(f"{REPLICATION_FACTOR.key}=-1 with {way}: expected a number from 1, because klamm chooses "
                            "the brokers")  # fmt: skip
    if reader.get(USE_INCREMENTAL_ALTER_CONFIGS) is IncrementalAlterConfigs.NEVER:
        raise SettingsError(
            f"{USE_INCREMENTAL_ALTER_CONFIGS.key}=never with {way}: expected requested or required; AlterConfigs would "
            "reset unclean.leader.election.enable=false, which keeps shorter replicas from becoming leader"
        )
    _check_names(listen, advertised)
    check_listener_configs(reader, configs, listen)
    addresses = {name: advertised.get(name, address) for name, address in listen.items()}
    for name, address in addresses.items():
        if address.host in ANY_HOSTS:
            raise SettingsError(
                f"{REPLICA_ADVERTISED.key}: expected {name}://HOST:{address.port} with an address of this machine that "
                f"the brokers of {target.alias} can connect to, because {REPLICA_LISTENERS.key} has {address.host}"
            )
    broker = ReplicaBroker(
        node_id=node_id,
        listen=listen,
        advertised=addresses,
        protocols=_protocols(listen, configs),
        configs=configs,
    )
    return broker, (f"{way}: {_READ_ONLY}",)


def _protocols(listen: Mapping[str, Address], configs: Mapping[str, str]) -> dict[str, SecurityProtocol]:
    """Return the security protocol of each listener."""
    key = PREFIX + PROTOCOL_MAP
    protocols = parse_protocol_map(configs.get(PROTOCOL_MAP), key)
    if missing := next((name for name in listen if name not in protocols), None):
        expected = ", ".join(f"{missing}:{protocol.value}" for protocol in SecurityProtocol)
        raise SettingsError(
            f"{key}: expected the security protocol of the listener {missing}, as the brokers have it: {expected}"
        )
    return {name: protocols[name] for name in listen}


def _check_allowed(reader: KeyReader, *, preserves_offsets: bool) -> None:
    """Check that the mode fits to the flow, and that the user knows its state."""
    way = f"{OFFSETS_BY.key}={OffsetsBy.REPLICA}"
    if not preserves_offsets:
        raise SettingsError(f"{way} without {OFFSETS.key}=preserve: expected both, or none of them")
    if not reader.get(REPLICA_EXPERIMENTAL):
        raise SettingsError(
            f"{way} is experimental and not for clusters in production: expected {REPLICA_EXPERIMENTAL.key}=true to "
            "try it; docs/equal-offsets.md says what is missing"
        )


def _listeners(reader: KeyReader, setting: Setting[str]) -> dict[str, Address]:
    """Return addresses by the name of the listener in upper case."""
    entry = reader.find(setting.key, setting.place)
    if entry is None:
        return {}
    key, value = entry
    out: dict[str, Address] = {}
    for part in parse_list(value):
        match = _LISTENER.fullmatch(part)
        address = None if match is None else split_address(match["address"])
        if match is None or address is None:
            raise SettingsError(f"{key}={value}: expected {_FORM}, {part} is not one")
        name = (match["name"] or DEFAULT_LISTENER).upper()
        if name in out:
            raise SettingsError(f"{key}={value}: expected each listener once, {name} is there twice")
        out[name] = Address(host=address[0], port=address[1])
    return out


def _check_names(listen: Mapping[str, Address], advertised: Mapping[str, Address]) -> None:
    if unknown := sorted(advertised.keys() - listen.keys()):
        raise SettingsError(
            f"{REPLICA_ADVERTISED.key}: expected listeners of {REPLICA_LISTENERS.key}: {', '.join(unknown)} is not one"
        )
