"""Configs of the target's brokers that klamm's listener has to fit: the way in which brokers connect to each other."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.errors import CLUSTER_ERRORS, ConnectionLostError, error_text
from klamm.properties import parse_list
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.types import ResourceType
from klamm.server.listeners import PROTOCOL_MAP, parse_protocol_map, setting_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.mirror.copy.equal_offsets import ReplicaSettings

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 15.0
_LISTENER: Final = "inter.broker.listener.name"
_PROTOCOL: Final = "security.inter.broker.protocol"
"""Name of the listener if there is no ``inter.broker.listener.name``."""
_MECHANISM: Final = "sasl.mechanism.inter.broker.protocol"
_AUTHORIZER: Final = "authorizer.class.name"
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The authorizer whose ACLs are in the metadata log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterBrokerConfigs:
    """Configs of one broker, which should be the same on all."""

    listener: str
    """Name of the listener with which brokers connect, in upper case."""
    protocol: str | None = None
    """Security protocol of this listener. None: it is not known."""
    mechanism: str | None = None
    """SASL mechanism with which brokers log in. None: it is not known."""
    authorizer: str | None = None
    """Class of the authorizer. Empty: there is none. None: it is not known."""

    def mismatch(self, replica: ReplicaSettings) -> str:
        """Return why brokers could not connect to klamm, or an empty text."""
        protocols = {each.name: each.security_protocol for each in replica.listeners}
        names, name = ",".join(protocols), self.listener
        if name not in protocols:
            return (
                f"klamm.replica.listeners={names}: expected a listener {name}, because the target's brokers have "
                f"{_LISTENER}={name}"
            )
        if self.protocol not in (None, protocols[name]):
            return (
                f"klamm.replica.{PROTOCOL_MAP}: listener {name} is {protocols[name]}: expected {name}:{self.protocol}, "
                "because the target's brokers connect with it"
            )
        mechanisms = parse_list(setting_of(replica.configs, name, "sasl.enabled.mechanisms") or "")
        if protocols[name].startswith("SASL_") and self.mechanism and self.mechanism not in mechanisms:
            return (
                f"klamm.replica.sasl.enabled.mechanisms={','.join(mechanisms)}: expected {self.mechanism}, with which "
                f"the target's brokers log in at listener {name} ({_MECHANISM})"
            )
        return ""


def inter_broker_configs(cluster: Cluster, replica: ReplicaSettings) -> InterBrokerConfigs:
    """Return the configs of one broker of the target.

    They need DESCRIBE_CONFIGS on the cluster. Without it, klamm's first listener counts as that of the brokers.

    Raises:
        ConnectionLostError: No broker responds.
        SettingsError: The brokers have a security protocol that does not exist.
    """
    # A plan also reports a broker that has klamm's id, which may be the only one.
    node_id = min(cluster.node_ids - {replica.node_id} or cluster.node_ids, default=None)
    if node_id is None:
        raise ConnectionLostError("no broker of the target is alive")
    configs = _configs(cluster, node_id, (_LISTENER, _PROTOCOL, _MECHANISM, _AUTHORIZER, PROTOCOL_MAP))
    own = replica.listeners[0].name
    if configs is None:
        return InterBrokerConfigs(listener=own)
    listener = (configs.get(_LISTENER) or configs.get(_PROTOCOL) or own).upper()
    return InterBrokerConfigs(
        listener=listener,
        protocol=_protocol(listener, configs.get(PROTOCOL_MAP)),
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
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=ResourceType.BROKER, resource_name=str(node_id), configuration_keys=list(names)
    )
    request = DescribeConfigsRequest(resources=[resource])
    response = cluster.connection(node_id).call(request, DescribeConfigsResponse, timeout_s=_TIMEOUT_S)
    (result,) = response.results
    return None if result.error_code else {config.name: config.value for config in result.configs}


def _protocol(listener: str, protocol_map: str | None) -> str | None:
    protocol = parse_protocol_map(protocol_map or None).get(listener)
    return None if protocol is None else protocol.value
