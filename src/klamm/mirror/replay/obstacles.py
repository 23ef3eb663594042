"""Check of the target of a flow that keeps offsets, for ``klamm mirror --plan``. Nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.errors import ConnectionLostError, DeniedError
from klamm.kafka_client.internal_topic import log_bounds
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.copy.settings import copy_settings
from klamm.mirror.replay.tails import TailReader, foreign_offset, tail_of
from klamm.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from klamm.protocol.types import CoordinatorType
from klamm.security.acls import AclOperation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.admin import ConfigEntry
    from klamm.mirror.copy.equal_offsets import ReplaySettings
    from klamm.mirror.settings.flow import FlowSettings

_TIMEOUT_S: Final = 10.0
_WANTED_CONFIGS: Final = {
    "message.timestamp.type": ("CreateTime", "its records would get other timestamps"),
    "compression.type": ("producer", "the target would compress each batch again"),
}
"""Value that a remote topic needs for a config, and what happens otherwise."""


def obstacles(
    flow: FlowSettings, selected: Mapping[str, int], configs: Mapping[str, Mapping[str, ConfigEntry]]
) -> dict[str, str]:
    """Return why offsets cannot be kept, by remote topic. The key is empty for a reason that concerns all topics.

    Args:
        flow: Settings of the flow.
        selected: Partition counts of the mirrored source topics.
        configs: Configs of the remote topics that exist and can be described.

    Raises:
        ConnectionLostError: The target is unavailable.
    """
    settings = copy_settings(flow)
    if (replay := settings.replay) is None:
        return {}
    reasons: dict[str, str] = {}
    connection = ConnectionSettings.of(flow.target.bootstrap_servers, flow.clients["target.producer"], "klamm-plan")
    with Cluster.connected(connection, map(flow.remote_topic, selected)) as cluster:
        if not _may_alter_cluster(cluster, replay):
            reasons[""] = "the principal lacks ALTER on the cluster, which markers in gaps need"
        for topic in selected:
            remote = flow.remote_topic(topic)
            if (reason := _config_obstacle(configs.get(remote, {}))) or (
                remote in cluster.topics and (reason := _foreign(cluster, replay, topic, remote))
            ):
                reasons[remote] = reason
    return reasons


def _may_alter_cluster(cluster: Cluster, replay: ReplaySettings) -> bool:
    try:
        cluster.coordinator(f"{replay.id_prefix}-plan", CoordinatorType.TRANSACTION)
    except DeniedError:
        raise
    except ConnectionLostError:  # a cluster creates the topic of transactions when it is asked for the first time
        pass
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = cluster.connection(min(cluster.node_ids)).call(request, DescribeClusterResponse, timeout_s=_TIMEOUT_S)
    return bool(response.cluster_authorized_operations & 1 << AclOperation.ALTER)


def _config_obstacle(entries: Mapping[str, ConfigEntry]) -> str:
    for name, (wanted, effect) in _WANTED_CONFIGS.items():
        entry = entries.get(name)
        if entry is not None and entry.value != wanted:
            return f"{name}={entry.value}: expected {wanted}; {effect}"
    return ""


def _foreign(cluster: Cluster, replay: ReplaySettings, topic: str, remote: str) -> str:
    tails = {partition: tail_of(offsets) for partition, offsets in log_bounds(cluster, remote).items()}
    reader = TailReader(cluster, tails)
    for fetched in reader.read():
        for (_, number), batches in fetched.items():
            producer_id = replay.producer_id(PartitionId(topic, number, remote))
            if (offset := foreign_offset(batches, tails[remote, number], producer_id)) is not None:
                return (
                    f"offset {offset} of partition {number} was written by another producer. Delete the topic, or "
                    "choose another name for remote topics"
                )
    return next(iter(reader.errors.values()), "")
