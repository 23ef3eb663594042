"""Requests of the promotion and the demotion of topics to the brokers of the target."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.kafka_client.data.cluster import LATEST
from klamm.kafka_client.described import describe_producers_request
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.replica.producer_ids import next_producer_id
from klamm.protocol.errors import ErrorCode, error_name
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from klamm.protocol.messages.describe_producers import DescribeProducersResponse
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from klamm.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from klamm.protocol.types import TopicPartition, by_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.data.cluster import Cluster

ProducerState = DescribeProducersResponse.ProducerState

_TIMEOUT_S: Final = 10.0
_MARKERS_VERSION: Final = 1
"""Highest version of WriteTxnMarkers in use. It follows the rules of transaction version 0."""


class TargetBrokers:
    """Requests to the brokers of the target. Confined to the thread of ``cluster``; calls block.

    Args:
        cluster: Connections to the target.
        node_id: Node id of klamm, which is not one of them.
        live_brokers: Returns the node ids of the live brokers with storage.
    """

    def __init__(self, cluster: Cluster, node_id: int, live_brokers: Callable[[], Collection[int]]) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._live_brokers = live_brokers

    def refresh(self, topics: Collection[str]) -> None:
        """Find the brokers, and the leaders of topics.

        Raises:
            ConnectionLostError: No broker responds.
        """
        self._cluster.refresh(topics)

    def leader(self, partition: TopicPartition) -> tuple[int, int]:
        """Return node id and epoch of the leader of a partition.

        Raises:
            ConnectionLostError: It has none at present.
        """
        leader = self._cluster.leader(*partition)
        if leader is None:
            raise ConnectionLostError(f"{partition.name} has no leader on the target")
        return leader, self._cluster.leader_epoch(*partition)

    def producers(self, places: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Sequence[ProducerState]]:
        """Return the producers of partitions, each as a broker that replicates it knows them (DescribeProducers).

        Raises:
            ConnectionLostError: A broker does not respond, or does not replicate its partitions now.
        """
        by_node = defaultdict[int, list[TopicPartition]](list)
        for partition, node_id in places.items():
            by_node[node_id].append(partition)
        out: dict[TopicPartition, Sequence[ProducerState]] = {}
        for node_id, partitions in by_node.items():
            request = describe_producers_request(partitions)
            response = self._cluster.connection(node_id).call(request, DescribeProducersResponse, timeout_s=_TIMEOUT_S)
            for topic in response.topics:
                for each in topic.partitions:
                    what = f"broker {node_id} does not name the producers of {topic.name}-{each.partition_index}"
                    _check(each.error_code, what)
                    out[TopicPartition(topic.name, each.partition_index)] = each.active_producers
        return out

    def transactional_ids(self, producer_ids: Collection[int]) -> Mapping[int, str]:
        """Return the transactional ids of the target that have some of these producer ids (ListTransactions).

        Those that the principal may not describe are missing.

        Raises:
            ConnectionLostError: A broker does not respond, or rejects the request.
        """
        out = dict[int, str]()
        if not producer_ids:  # no filter means all
            return out
        request = ListTransactionsRequest(producer_id_filters=sorted(producer_ids))
        for node_id in self._brokers():
            response = self._cluster.connection(node_id).call(request, ListTransactionsResponse, timeout_s=_TIMEOUT_S)
            _check(response.error_code, f"broker {node_id} does not name its transactional ids")
            out |= {each.producer_id: each.transactional_id for each in response.transaction_states}
        return out

    def givers_of_producer_ids(self) -> Sequence[Callable[[], int]]:
        """Return functions that return a new producer id of each live broker with storage.

        Raises:
            ConnectionLostError: One cannot be reached, or there is none.
        """
        return [partial(next_producer_id, node_id, self._cluster.connection(node_id)) for node_id in self._brokers()]

    def abort(self, partition: TopicPartition, producers: Sequence[ProducerState]) -> None:
        """Abort the open transactions of producers in a partition, by markers that its leader writes.

        Raises:
            ConnectionLostError: The leader does not respond, or rejects the request.
        """
        topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic(
            name=partition.topic, partition_indexes=[partition.partition]
        )
        markers = [
            WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                transaction_result=False,
                topics=[topic],
                coordinator_epoch=max(0, each.coordinator_epoch),
            )
            for each in producers
        ]
        leader, _ = self.leader(partition)
        connection = self._cluster.connection(leader)
        version = connection.version_of(WriteTxnMarkersRequest, at_most=_MARKERS_VERSION)
        request = WriteTxnMarkersRequest(markers=markers)
        response = connection.call(request, WriteTxnMarkersResponse, version=version, timeout_s=_TIMEOUT_S)
        what = f"broker {leader} does not abort the open transactions of {partition.name}"
        for marker in response.markers:
            for each in (each for topic in marker.topics for each in topic.partitions):
                _check(each.error_code, what)

    # --- demotion -----------------------------------------------------------------------------------------------------

    def log_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the high watermarks of partitions.

        Raises:
            ConnectionLostError: A leader does not respond.
        """
        ends = self._cluster.list_offsets(list(partitions), LATEST)
        if missing := [partition for partition in partitions if partition not in ends]:
            raise ConnectionLostError(f"the leader of {missing[0].name} does not name its log end")
        return {partition: ends[partition] for partition in partitions}

    def reassign(self, replicas: Mapping[TopicPartition, Sequence[int]]) -> None:
        """Let brokers be the replicas of partitions (AlterPartitionReassignments).

        Raises:
            ConnectionLostError: No broker responds, or the controller rejects it for a partition.
        """
        request = AlterPartitionReassignmentsRequest(
            topics=[
                AlterPartitionReassignmentsRequest.ReassignableTopic(
                    name=name,
                    partitions=[
                        AlterPartitionReassignmentsRequest.ReassignablePartition(
                            partition_index=index, replicas=list(replicas[TopicPartition(name, index)])
                        )
                        for index in indexes
                    ],
                )
                for name, indexes in by_topic(replicas).items()
            ]
        )
        response = self._any().call(request, AlterPartitionReassignmentsResponse, timeout_s=_TIMEOUT_S)
        _check(response.error_code, "the controller reassigns no partition")
        for topic in response.responses:
            for each in topic.partitions:
                _check(each.error_code, f"the controller does not reassign {topic.name}-{each.partition_index}")

    def elect_preferred(self, partitions: Collection[TopicPartition]) -> None:
        """Let the controller elect the first replica of partitions (ElectLeaders).

        Raises:
            ConnectionLostError: No broker responds, or the controller elects another leader.
        """
        topics = [
            ElectLeadersRequest.TopicPartitions(topic=name, partitions=indexes)
            for name, indexes in by_topic(partitions).items()
        ]
        request = ElectLeadersRequest(topic_partitions=topics, timeout_ms=int(_TIMEOUT_S * 1000))
        response = self._any().call(request, ElectLeadersResponse, timeout_s=_TIMEOUT_S)
        _check(response.error_code, "the controller elects no leader")
        for topic in response.replica_election_results:
            for each in topic.partition_result:
                if each.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                    _check(
                        each.error_code, f"the controller does not elect klamm for {topic.topic}-{each.partition_id}"
                    )

    def fetch_as_replica(
        self, partitions: Mapping[tuple[UUID, int], ReplicaFetch], broker_epoch: int
    ) -> Mapping[tuple[UUID, int], FetchResponse.PartitionData]:
        """Fetch from leaders as their replica, so that they take klamm into the ISR if it ends where they do.

        Args:
            partitions: Leaders and offsets by topic id and partition number.
            broker_epoch: Broker epoch of klamm.

        Raises:
            ConnectionLostError: A leader does not respond.
        """
        by_leader: dict[int, dict[UUID, list[FetchRequest.FetchPartition]]] = defaultdict(lambda: defaultdict(list))
        for (topic_id, index), each in partitions.items():
            by_leader[each.leader][topic_id].append(
                FetchRequest.FetchPartition(
                    partition=index,
                    current_leader_epoch=each.leader_epoch,
                    fetch_offset=each.offset,
                    log_start_offset=each.offset,
                    partition_max_bytes=1,
                )
            )
        answers = {}
        for leader, topics in by_leader.items():
            request = FetchRequest(
                replica_state=FetchRequest.ReplicaState(replica_id=self._node_id, replica_epoch=broker_epoch),
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1,
                topics=[FetchRequest.FetchTopic(topic_id=each, partitions=topics[each]) for each in topics],
            )
            response = self._cluster.connection(leader).call(request, FetchResponse, timeout_s=_TIMEOUT_S)
            _check(response.error_code, f"broker {leader} rejects klamm as a replica")
            for topic in response.responses:
                for answer in topic.partitions:
                    answers[topic.topic_id, answer.partition_index] = answer
        return answers

    def _any(self) -> Connection:
        known = [node_id for node_id in self._brokers() if node_id in self._cluster.node_ids]
        if not known:
            raise ConnectionLostError("the brokers of the target are not found yet")
        return self._cluster.connection(known[0])

    def _brokers(self) -> Sequence[int]:
        node_ids = sorted(self._live_brokers())
        if not node_ids:
            raise ConnectionLostError("the target has no live broker with storage")
        return node_ids


class ReplicaFetch(NamedTuple):
    """Fetch of a partition by a replica that has everything before an offset."""

    leader: int
    leader_epoch: int
    offset: int


def _check(error_code: int, what: str) -> None:
    if error_code != ErrorCode.NONE:
        needs = "; it needs ALTER on the cluster" if error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED else ""
        raise ConnectionLostError(f"{what}: {error_name(error_code)}{needs}")
