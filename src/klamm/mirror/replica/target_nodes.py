"""Nodes of the target for a client that does not follow its metadata log: controllers, brokers with storage, klamms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.configs.names import CLUSTER_METADATA
from klamm.kafka_client.errors import ConnectionLostError, DeniedError, api_error, error_text
from klamm.kraft.log_dirs import is_without_storage
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.data.cluster import Cluster

_TIMEOUT_S: Final = 10.0
_QUORUM: Final = DescribeQuorumRequest(
    topics=[
        DescribeQuorumRequest.TopicData(
            topic_name=CLUSTER_METADATA, partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)]
        )
    ]
)


class TargetNodes(NamedTuple):
    """Node ids of a cluster."""

    controllers: frozenset[int]
    """Voters of the metadata log."""
    brokers: frozenset[int]
    """Live brokers with storage, at least one."""
    klamms: Mapping[int, UUID]
    """Log directories of the brokers without storage that are live, or were some minutes ago, by node id."""

    @property
    def broker(self) -> int:
        """Broker for a request that any broker with storage answers."""
        return min(self.brokers)

    def connection(self, cluster: Cluster) -> Connection:
        """Return the connection to ``broker``.

        Raises:
            ConnectionLostError: It is unreachable.
        """
        return cluster.connection(self.broker)


def target_nodes(cluster: Cluster) -> TargetNodes:
    """Return the nodes of the target, after a refresh of its metadata.

    The controllers name all who fetch the metadata log, with the ids of their log directories (DescribeQuorum).

    Raises:
        DeniedError: The principal lacks DESCRIBE on the cluster.
        ConnectionLostError: No broker responds, none with storage is live, or the controllers have no leader or do not
            know a live broker yet, as after an election among them. It could be a klamm.
    """
    quorum = _describe_quorum(cluster)
    if quorum.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        raise DeniedError("the target does not name its controllers (DescribeQuorum): expected DESCRIBE on the cluster")
    partitions = [each for topic in quorum.topics for each in topic.partitions]
    controllers = frozenset(voter.replica_id for each in partitions for voter in each.current_voters)
    if not controllers:  # no leader, or one that was elected at this moment
        codes = {quorum.error_code, *(each.error_code for each in partitions)} - {ErrorCode.NONE}
        names = ", ".join(error_text(api_error(code)) for code in sorted(codes))
        raise ConnectionLostError(f"the target does not name its controllers (DescribeQuorum): {names or 'no voters'}")
    observers = [observer for each in partitions for observer in each.observers]
    log_dirs = {each.replica_id: each.replica_directory_id for each in observers}
    klamms = {node_id: log_dir for node_id, log_dir in log_dirs.items() if is_without_storage(log_dir)}
    if unknown := cluster.node_ids - controllers - log_dirs.keys():
        raise ConnectionLostError(f"the controllers of the target do not know yet whether broker {min(unknown)} is one")
    brokers = cluster.node_ids - klamms.keys()
    if not brokers:
        raise ConnectionLostError("the target has no live broker with storage")
    return TargetNodes(controllers, brokers, klamms)


def _describe_quorum(cluster: Cluster) -> DescribeQuorumResponse:
    """Return the response of one broker. A klamm whose listeners have logins closes the connection instead."""
    reason = ConnectionLostError("the target has no live broker")
    for node_id in sorted(cluster.node_ids):
        try:
            return cluster.connection(node_id).call(_QUORUM, DescribeQuorumResponse, timeout_s=_TIMEOUT_S)
        except ConnectionLostError as error:
            reason = error
    raise reason
