"""Check whether klamm can become a broker of the target. Nothing is written."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.acls import describe_acls_request, described_acls
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.errors import ConnectionLostError, DeniedError, error_text
from klamm.kraft.controllers import ControllerChannel
from klamm.kraft.errors import ClusterActionDeniedError
from klamm.kraft.log_dirs import log_dir_of
from klamm.kraft.member import CORDON_LEVEL
from klamm.mirror.copy.settings import replica_settings
from klamm.mirror.replica.inter_broker import STANDARD_AUTHORIZER, inter_broker_configs
from klamm.mirror.replica.rights import ReplicaRights
from klamm.mirror.replica.state import owner_of
from klamm.mirror.replica.target_nodes import target_nodes
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.describe_acls import DescribeAclsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    AclFilter,
    AclOperation,
    AclResourceType,
    PatternType,
)
from klamm.security.authorization import EVERYBODY
from klamm.security.principals import ANONYMOUS
from klamm.server.listeners import setting_of

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager

    from klamm.kafka_client.connection.connection import Connection
    from klamm.mirror.copy.equal_offsets import ReplicaSettings
    from klamm.mirror.replica.inter_broker import InterBrokerConfigs
    from klamm.mirror.replica.target_nodes import TargetNodes
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.security.acls import Acl

_TIMEOUT_S: Final = 10.0
_ANY_USER: Final = "User:"
"""Principal of a broker that no ACL and no super user names."""
_FEATURE: Final = "metadata.version"


def obstacles(flow: FlowSettings, topics: Collection[str] = ()) -> dict[str, str]:
    """Return why klamm cannot lead or promote remote topics. The key is empty for a reason that concerns all topics.

    Args:
        flow: Settings of the flow.
        topics: Remote topics, also some that do not exist yet.

    Raises:
        ConnectionLostError: The target is unavailable.
    """
    if (settings := replica_settings(flow)) is None:
        return {}
    with connected(flow) as cluster:
        try:
            nodes = target_nodes(cluster)
        except DeniedError as error:
            reasons = [error_text(error), _controllers_obstacle(flow, settings)]
            broker = cluster.connection(min(cluster.node_ids))
        else:
            reasons = [
                _target_obstacle(flow, settings.node_id, cluster, nodes),
                _controllers_obstacle(flow, settings),
                _listener_obstacle(flow, settings, cluster, nodes),
                _node_id_obstacle(flow, settings.node_id, cluster, nodes),
            ]
            broker = nodes.connection(cluster)
        unreadable = _unreadable(broker, topics)
    text = "; ".join(filter(None, reasons))
    return ({"": text} if text else {}) | unreadable


def target_obstacle(flow: FlowSettings) -> str:
    """Return why klamm must not become a broker of the target with its id, or an empty text.

    With the id of a controller, klamm's fetches of the metadata log would count as those of this voter.

    Raises:
        ConnectionLostError: The target is unavailable, or another live broker has the id.
    """
    if (replica := flow.replica) is None:
        return ""
    with connected(flow) as cluster:
        try:
            nodes = target_nodes(cluster)
        except DeniedError as error:
            return error_text(error)
        if reason := _target_obstacle(flow, replica.node_id, cluster, nodes):
            return reason
        if reason := _node_id_obstacle(flow, replica.node_id, cluster, nodes):
            raise ConnectionLostError(reason)
        return ""


def _target_obstacle(flow: FlowSettings, node_id: int, cluster: Cluster, nodes: TargetNodes) -> str:
    if node_id in nodes.controllers:
        return f"klamm.replica.node.id={node_id}: a controller of cluster {flow.target.alias} has this id"
    level = finalized_features(nodes.connection(cluster)).get(_FEATURE, 0)
    if level >= CORDON_LEVEL:
        return ""
    return (
        f"cluster {flow.target.alias} has {_FEATURE}={level}: expected {CORDON_LEVEL} (4.3) or more, because it would "
        "place partitions of other topics on klamm, which stores nothing. Upgrade it, or set klamm.offsets.by=replay"
    )


def finalized_features(broker: Connection) -> dict[str, int]:
    """Return the finalized feature levels of a broker's cluster.

    Raises:
        ConnectionLostError: It does not respond.
    """
    request = ApiVersionsRequest(client_software_name="klamm", client_software_version="1")
    response = broker.call(request, ApiVersionsResponse, timeout_s=_TIMEOUT_S)
    return {each.name: each.max_version_level for each in response.finalized_features}


def _connection(flow: FlowSettings) -> ConnectionSettings:
    return ConnectionSettings.of(flow.target.bootstrap_servers, flow.clients["target.producer"], "klamm-plan")


def connected(flow: FlowSettings) -> AbstractContextManager[Cluster]:
    """Return connections to the target of a flow, as ``Cluster.connected`` does."""
    return Cluster.connected(_connection(flow))


def _controllers_obstacle(flow: FlowSettings, settings: ReplicaSettings) -> str:
    with contextlib.closing(ControllerChannel(settings.controllers)) as channel:
        try:
            channel.connection()
        except ClusterActionDeniedError:
            return f"the principal lacks CLUSTER_ACTION on cluster {flow.target.alias}, which brokers need"
        except ConnectionLostError as error:
            controllers = ",".join(flow.target.bootstrap_controllers)
            return f"{flow.target.alias}.bootstrap.controllers={controllers}: {error}"
    return ""


def _listener_obstacle(flow: FlowSettings, settings: ReplicaSettings, cluster: Cluster, nodes: TargetNodes) -> str:
    """Return why brokers could not fetch from klamm's listener."""
    configs = inter_broker_configs(cluster, settings, nodes.broker)
    if reason := configs.mismatch(settings):
        return reason
    own = {settings.controllers.security.principal, _connection(flow).security.principal}
    return _rights_obstacle(flow.target.alias, settings, configs, (cluster, nodes), own)


def _rights_obstacle(
    alias: str,
    settings: ReplicaSettings,
    configs: InterBrokerConfigs,
    target: tuple[Cluster, TargetNodes],
    own: Collection[str],
) -> str:
    """Return why brokers could not fetch from klamm's listener although they log in."""
    if configs.authorizer == "":
        return ""
    cluster, nodes = target
    broker = nodes.connection(cluster)
    acls = _cluster_acls(broker) if configs.authorizer in (None, STANDARD_AUTHORIZER) else ()
    if acls is None:
        return ""  # no authorizer, or a right that is missing
    rights = ReplicaRights(settings, configs.authorizer, acls)
    principals = _broker_principals(settings, configs.listener, acls, own)
    remedy = "expected klamm.replica.super.users with the principals of the brokers"
    for host, addresses in _broker_addresses(broker, nodes.brokers).items():
        if any(rights.allow_broker(principal, address) for principal in principals for address in addresses):
            continue
        if configs.authorizer not in (None, STANDARD_AUTHORIZER):
            return f"klamm does not know the rules of {configs.authorizer}: {remedy}"
        client = "" if host == WILDCARD else f" from {host}"
        if ANONYMOUS in principals:
            client += f" as {ANONYMOUS}"
        return (
            f"no ACL allows the brokers of cluster {alias} CLUSTER_ACTION on it{client}, which fetching from klamm "
            f"needs: {remedy}, if these are super users"
        )
    return ""


def _broker_principals(
    settings: ReplicaSettings, listener: str, acls: Collection[Acl], own: Collection[str]
) -> frozenset[str]:
    """Return the principals that brokers may have at klamm's listener. They are not readable where brokers log in.

    Then these are all users with an ACL and all super users, but klamm's own, and one without any right of its own.
    """
    protocol = next(each.security_protocol for each in settings.listeners if each.name == listener)
    has_certificates = (setting_of(settings.configs, listener, "ssl.client.auth") or "none") != "none"
    if protocol == "PLAINTEXT" or (protocol == "SSL" and not has_certificates):
        return frozenset({ANONYMOUS})
    named = {acl.principal for acl in acls} | settings.super_users
    return frozenset(named - {EVERYBODY, *own} | {_ANY_USER})


def _broker_addresses(broker: Connection, node_ids: Collection[int]) -> dict[str, Collection[str]]:
    """Return the IP addresses of brokers, by host. ``*`` stands for one that is not known."""
    request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    response = broker.call(request, MetadataResponse, timeout_s=_TIMEOUT_S)
    addresses: dict[str, Collection[str]] = {}
    for host in {each.host for each in response.brokers if each.node_id in node_ids} or {WILDCARD}:
        try:
            addresses[host] = {str(address[4][0]) for address in socket.getaddrinfo(host, None)}
        except OSError:
            addresses[host] = {WILDCARD}
    return addresses


def _cluster_acls(broker: Connection) -> tuple[Acl, ...] | None:
    """Return the ACLs of the target that concern the cluster. None: the brokers do not return them."""
    request = describe_acls_request(
        AclFilter(resource_type=AclResourceType.CLUSTER, resource_name=CLUSTER_NAME, pattern_type=PatternType.MATCH)
    )
    response = broker.call(request, DescribeAclsResponse, timeout_s=_TIMEOUT_S)
    return None if response.error_code else described_acls(response)


def _unreadable(broker: Connection, topics: Collection[str]) -> dict[str, str]:
    """Return why topics could not be promoted or read with ``read_committed``, for those that exist."""
    if not topics:
        return {}
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    response = broker.call(request, MetadataResponse, timeout_s=_TIMEOUT_S)
    return {
        topic.name: "the principal lacks READ on it, which klamm mirror promote needs (DescribeProducers), and "
        "consumers with read_committed that look up offsets (Fetch)"
        for topic in response.topics
        if topic.name and not topic.error_code and not topic.topic_authorized_operations & 1 << AclOperation.READ
    }


def _node_id_obstacle(flow: FlowSettings, node_id: int, cluster: Cluster, nodes: TargetNodes) -> str:
    """Return whether a live broker that is not this flow's has the broker id."""
    if node_id not in cluster.node_ids:
        return ""
    log_dir = nodes.klamms.get(node_id)
    if log_dir == log_dir_of(cluster.cluster_id, node_id, owner_of(flow)):
        return ""
    who = "another broker" if log_dir is None else "another flow's broker"
    return f"klamm.replica.node.id={node_id}: {who} of cluster {flow.target.alias} has this id"
