"""Check whether klamm can become a broker of the target. Nothing is written."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from klamm.configs.names import CLUSTER_METADATA
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.errors import ConnectionLostError
from klamm.kraft.controllers import ControllerChannel
from klamm.kraft.errors import ClusterActionDeniedError
from klamm.kraft.member import CORDON_LEVEL
from klamm.mirror.copy.settings import replica_settings
from klamm.mirror.replica.inter_broker import STANDARD_AUTHORIZER, inter_broker_configs
from klamm.mirror.replica.state import TopicStateStore
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from klamm.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.security.acls import CLUSTER_NAME, AclOperation, AclPermission, AclResourceType, PatternType

if TYPE_CHECKING:
    from collections.abc import Collection

    from klamm.mirror.settings.flow import FlowSettings

_TIMEOUT_S: Final = 10.0
_FEATURE: Final = "metadata.version"
_QUORUM: Final = DescribeQuorumRequest(
    topics=[
        DescribeQuorumRequest.TopicData(
            topic_name=CLUSTER_METADATA, partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)]
        )
    ]
)


def obstacles(flow: FlowSettings, topics: Collection[str] = ()) -> dict[str, str]:
    """Return why klamm cannot lead or promote remote topics. The key is empty for a reason that concerns all topics.

    Args:
        flow: Settings of the flow.
        topics: Remote topics, also some that do not exist yet.

    Raises:
        ConnectionLostError: The target is unavailable.
    """
    with contextlib.closing(connect(flow)) as cluster:
        reasons = [
            _quorum_obstacle(flow, cluster),
            _controllers_obstacle(flow),
            _listener_obstacle(flow, cluster),
            _node_id_obstacle(flow, cluster),
        ]
        unreadable = _unreadable(cluster, topics)
    text = "; ".join(filter(None, reasons))
    return ({"": text} if text else {}) | unreadable


def target_obstacle(flow: FlowSettings) -> str:
    """Return why klamm must not become a broker of the target with its id, or an empty text.

    With the id of a controller, klamm's fetches of the metadata log would count as those of this voter.

    Raises:
        ConnectionLostError: The target is unavailable.
    """
    with contextlib.closing(connect(flow)) as cluster:
        return _quorum_obstacle(flow, cluster)


def _quorum_obstacle(flow: FlowSettings, cluster: Cluster) -> str:
    cluster.refresh([])
    level = finalized_features(cluster).get(_FEATURE, 0)
    quorum = cluster.connection(min(cluster.node_ids)).call(_QUORUM, DescribeQuorumResponse, timeout_s=_TIMEOUT_S)
    voters = {
        voter.replica_id
        for topic in quorum.topics
        for partition in topic.partitions
        for voter in partition.current_voters
    }
    if flow.replica is not None and flow.replica.node_id in voters:
        return f"klamm.replica.node.id={flow.replica.node_id}: a controller of cluster {flow.target.alias} has this id"
    if not voters:
        return f"cluster {flow.target.alias} does not name its controllers (DescribeQuorum): expected DESCRIBE on it"
    if level >= CORDON_LEVEL:
        return ""
    return (
        f"cluster {flow.target.alias} has {_FEATURE}={level}: expected {CORDON_LEVEL} (4.3) or more, because it would "
        "place partitions of other topics on klamm, which stores nothing. Upgrade it, or set klamm.offsets.by=replay"
    )


def finalized_features(cluster: Cluster) -> dict[str, int]:
    """Return the finalized feature levels of a cluster.

    Raises:
        ConnectionLostError: It is unavailable.
    """
    request = ApiVersionsRequest(client_software_name="klamm", client_software_version="1")
    connection = cluster.connection(min(cluster.node_ids))
    response = connection.call(request, ApiVersionsResponse, timeout_s=_TIMEOUT_S)
    return {each.name: each.max_version_level for each in response.finalized_features}


def _connection(flow: FlowSettings) -> ConnectionSettings:
    return ConnectionSettings.of(flow.target.bootstrap_servers, flow.clients["target.producer"], "klamm-plan")


def connect(flow: FlowSettings) -> Cluster:
    """Return connections to the target of a flow. The caller closes them."""
    return Cluster(_connection(flow), BufferPool(max_free_bytes=0))


def _controllers_obstacle(flow: FlowSettings) -> str:
    settings = replica_settings(flow)
    if settings is None:
        return ""
    key = f"{flow.target.alias}.bootstrap.controllers={','.join(flow.target.bootstrap_controllers)}"
    channel = ControllerChannel(settings.controllers)
    try:
        channel.connection()
    except ClusterActionDeniedError:
        return f"the principal lacks CLUSTER_ACTION on cluster {flow.target.alias}, which brokers need"
    except ConnectionLostError as error:
        return f"{key}: {error}"
    finally:
        channel.close()
    return ""


def _listener_obstacle(flow: FlowSettings, cluster: Cluster) -> str:
    """Return why brokers could not fetch from klamm's listener."""
    settings = replica_settings(flow)
    if settings is None:
        return ""
    configs = inter_broker_configs(cluster, settings)
    if reason := configs.mismatch(settings):
        return reason
    if configs.authorizer == "" or settings.super_users or settings.allows_without_acl:
        return ""
    remedy = "expected klamm.replica.super.users with the principals of the brokers"
    if configs.authorizer not in (None, STANDARD_AUTHORIZER):
        return f"klamm does not know the rules of {configs.authorizer}: {remedy}"
    own = {settings.controllers.security.principal, _connection(flow).security.principal}
    if _has_brokers(cluster, own):
        return ""
    return (
        f"no ACL allows the brokers of cluster {flow.target.alias} CLUSTER_ACTION on it, which fetching from klamm "
        f"needs: {remedy}, if these are super users"
    )


def _has_brokers(cluster: Cluster, own: Collection[str]) -> bool:
    """Return whether an ACL allows others than klamm's own principals to act as brokers, or it is not known."""
    request = DescribeAclsRequest(
        resource_type_filter=AclResourceType.CLUSTER,
        resource_name_filter=CLUSTER_NAME,
        pattern_type_filter=PatternType.MATCH,
        principal_filter=None,
        host_filter=None,
        operation=AclOperation.ANY,
        permission_type=AclPermission.ALLOW,
    )
    response = cluster.connection(min(cluster.node_ids)).call(request, DescribeAclsResponse, timeout_s=_TIMEOUT_S)
    return bool(response.error_code) or any(
        acl.operation in (AclOperation.CLUSTER_ACTION, AclOperation.ALL) and acl.principal not in own
        for resource in response.resources
        for acl in resource.acls
    )


def _unreadable(cluster: Cluster, topics: Collection[str]) -> dict[str, str]:
    """Return why topics could not be promoted, for those that exist."""
    if not topics:
        return {}
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    response = cluster.connection(min(cluster.node_ids)).call(request, MetadataResponse, timeout_s=_TIMEOUT_S)
    return {
        topic.name: "the principal lacks READ on it, which klamm mirror promote needs (DescribeProducers)"
        for topic in response.topics
        if topic.name and not topic.error_code and not topic.topic_authorized_operations & 1 << AclOperation.READ
    }


def _node_id_obstacle(flow: FlowSettings, cluster: Cluster) -> str:
    """Return whether a live broker that is not klamm's has the broker id."""
    broker = flow.replica
    if broker is None:
        return ""
    cluster.refresh([flow.source_offsets_topic])
    is_taken = broker.node_id in cluster.node_ids
    if is_taken and flow.source_offsets_topic in cluster.topics:
        store = TopicStateStore(
            _connection(flow),
            topic=flow.source_offsets_topic,
            source_alias=flow.source_alias,
            node_id=broker.node_id,
        )
        is_taken = store.read(cluster) is None
    if not is_taken:
        return ""
    return f"klamm.replica.node.id={broker.node_id}: another broker of cluster {flow.target.alias} has this id"
