"""Configs of the target's brokers that klamm's listeners have to fit, above all how brokers connect to each other."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import field
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.described import describe_configs_request, described_configs
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_text
from klamm.kraft.errors import MembershipError
from klamm.lazy_dataclass import dataclass
from klamm.properties import parse_list
from klamm.protocol.messages.describe_configs import DescribeConfigsResponse
from klamm.protocol.types import ResourceType
from klamm.server.listeners import PROTOCOL_MAP, parse_protocol_map, setting_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.kraft.image import BrokerImage
    from klamm.mirror.copy.equal_offsets import ReplicaSettings

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 15.0
_LISTENER: Final = "inter.broker.listener.name"
_PROTOCOL: Final = "security.inter.broker.protocol"
"""Name of the listener if there is no ``inter.broker.listener.name``."""
_MECHANISM: Final = "sasl.mechanism.inter.broker.protocol"
_LISTENERS: Final = ("advertised.listeners", "listeners")
"""Configs that name the listeners of a broker, the first of which counts."""
_AUTHORIZER: Final = "authorizer.class.name"
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The authorizer whose ACLs are in the metadata log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterBrokerConfigs:
    """Configs of one broker, which should be the same on all."""

    listener: str
    """Name of the listener with which brokers connect, in upper case."""
    protocols: Mapping[str, str] = field(default_factory=dict)
    """Security protocol of each listener, by name in upper case. Empty: they are not known."""
    mechanism: str | None = None
    """SASL mechanism with which brokers log in. None: it is not known."""
    authorizer: str | None = None
    """Class of the authorizer. Empty: there is none. None: it is not known."""

    def mismatch(self, replica: ReplicaSettings) -> str:
        """Return why klamm's listeners are not those of the brokers, or an empty text."""
        protocols = {each.name: each.security_protocol for each in replica.listeners}
        names, name = ",".join(protocols), self.listener
        if name not in protocols:
            return (
                f"klamm.replica.listeners={names}: expected a listener {name}, because the target's brokers have "
                f"{_LISTENER}={name}"
            )
        if reason := _listener_mismatch(replica, {key: {value} for key, value in self.protocols.items()}):
            return reason
        mechanisms = parse_list(setting_of(replica.configs, name, "sasl.enabled.mechanisms") or "")
        if protocols[name].startswith("SASL_") and self.mechanism and self.mechanism not in mechanisms:
            return (
                f"klamm.replica.sasl.enabled.mechanisms={','.join(mechanisms)}: expected {self.mechanism}, with which "
                f"the target's brokers log in at listener {name} ({_MECHANISM})"
            )
        return ""


def check_registrations(replica: ReplicaSettings, brokers: Iterable[BrokerImage]) -> None:
    """Check that brokers have klamm's listeners, by their registrations.

    Args:
        replica: Listeners of klamm.
        brokers: Live brokers of the target with storage.

    Raises:
        MembershipError: A listener of klamm has another security protocol, or is none of the brokers'.
    """
    protocols: dict[str, set[str]] = {}
    for broker in brokers:
        for endpoint in broker.endpoints:
            protocols.setdefault(endpoint.name, set()).add(endpoint.security_protocol)
    if reason := _listener_mismatch(replica, protocols):
        raise MembershipError(reason)


def _listener_mismatch(replica: ReplicaSettings, protocols: Mapping[str, Collection[str]]) -> str:
    """Return which listener of klamm the brokers do not have, or an empty text.

    Args:
        replica: Listeners of klamm.
        protocols: Security protocols of the brokers' listeners, by name. Several while an operator changes it, broker
            by broker. Empty: they are not known.
    """
    for name, protocol in ((each.name, each.security_protocol) for each in replica.listeners if protocols):
        expected = protocols.get(name)
        if expected is None:
            return (
                f"klamm.replica.listeners={','.join(each.name for each in replica.listeners)}: the target's brokers "
                f"have no listener {name}: expected some of {','.join(sorted(protocols))}"
            )
        if protocol not in expected:
            return (
                f"klamm.replica.{PROTOCOL_MAP}: listener {name} is {protocol}: expected "
                f"{' or '.join(f'{name}:{each}' for each in sorted(expected))}, as on the target's brokers"
            )
    return ""


def inter_broker_configs(cluster: Cluster, replica: ReplicaSettings, node_id: int) -> InterBrokerConfigs:
    """Return the configs of one broker of the target.

    They need DESCRIBE_CONFIGS on the cluster. Without it, klamm's first listener counts as that of the brokers.

    Args:
        cluster: Connections to the target.
        replica: Listeners of klamm.
        node_id: Node id of a live broker with storage.

    Raises:
        ConnectionLostError: It does not respond.
        SettingsError: The brokers have a security protocol that does not exist.
    """
    configs = _configs(cluster, node_id, (_LISTENER, _PROTOCOL, _MECHANISM, _AUTHORIZER, PROTOCOL_MAP, *_LISTENERS))
    own = replica.listeners[0].name
    if configs is None:
        return InterBrokerConfigs(listener=own)
    listener = (configs.get(_LISTENER) or configs.get(_PROTOCOL) or own).upper()
    return InterBrokerConfigs(
        listener=listener,
        protocols=_protocols(configs),
        mechanism=configs.get(_MECHANISM),
        authorizer=configs.get(_AUTHORIZER),
    )


def read_authorizers(target: ConnectionSettings, node_ids: Collection[int]) -> Mapping[int, str]:
    """Return the class of the authorizer of brokers, by node id. Empty: a broker has none. Blocks.

    Brokers that do not respond, or do not name it because klamm lacks DESCRIBE_CONFIGS, are left out.
    """
    authorizers: dict[int, str] = {}
    with contextlib.closing(Cluster(target, BufferPool(max_free_bytes=0))) as cluster:
        for node_id in node_ids:
            try:
                if node_id not in cluster.node_ids:
                    cluster.refresh([])
                value = (_configs(cluster, node_id, (_AUTHORIZER,)) or {}).get(_AUTHORIZER)
            except CLUSTER_ERRORS as error:
                logger.info("Broker %d does not name its %s: %s", node_id, _AUTHORIZER, error_text(error))
                continue
            if value is not None:
                authorizers[node_id] = value
    return authorizers


def _configs(cluster: Cluster, node_id: int, names: Sequence[str]) -> Mapping[str, str | None] | None:
    """Return configs of a broker. None: it rejects the request."""
    request = describe_configs_request(ResourceType.BROKER, [node_id], names)
    response = cluster.connection(node_id).call(request, DescribeConfigsResponse, timeout_s=_TIMEOUT_S)
    return next(iter(described_configs(response).values()), None)


def _protocols(configs: Mapping[str, str | None]) -> Mapping[str, str]:
    """Return the security protocols of a broker's listeners. Of all listeners in the map, if it does not name them."""
    addresses = next(filter(None, map(configs.get, _LISTENERS)), "")
    names = {address.partition("://")[0].strip().upper() for address in parse_list(addresses)}
    protocols = parse_protocol_map(configs.get(PROTOCOL_MAP) or None)
    return {name: protocol.value for name, protocol in protocols.items() if not names or name in names}
