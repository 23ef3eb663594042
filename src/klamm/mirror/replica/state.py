"""State of the broker without storage that survives its process, in the topic of the flow's source offsets.

The record's key has klamm's connector name, so MirrorMaker and Connect ignore it.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Final
from uuid import UUID

from klamm.clock import wall_clock_ms
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.errors import ConnectionLostError
from klamm.kafka_client.internal_topic import read_newest, write_records
from klamm.kraft.errors import MembershipError
from klamm.kraft.member import BrokerMember, MemberSettings, MembershipState
from klamm.mirror.records.source_offsets import own_key
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.partitioner import partition_for_key
from klamm.protocol.records import Record
from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.mirror.copy.equal_offsets import ReplicaSettings
    from klamm.mirror.copy.settings import CopySettings

_ATTEMPTS: Final = 40
_TIMEOUT_S: Final = 15.0
_LISTENER_CONFIG: Final = "inter.broker.listener.name"
_PROTOCOL_CONFIG: Final = "security.inter.broker.protocol"
"""Name of the listener if there is no ``inter.broker.listener.name``."""


class TopicStateStore:
    """Store of the state of one broker id. Calls block; each opens connections of its own.

    Args:
        target: Connection to the target.
        topic: Compacted topic that holds the state.
        source_alias: Alias of the source cluster.
        node_id: Broker id.
    """

    def __init__(self, target: ConnectionSettings, *, topic: str, source_alias: str, node_id: int) -> None:
        self._target = target
        self._topic = topic
        self._key = own_key({"cluster": source_alias, "node_id": node_id})

    def load(self) -> MembershipState | None:
        """Return the stored state. None: there is none, or it is damaged.

        Raises:
            ConnectionLostError: The topic cannot be read now.
        """
        with self._cluster() as cluster:
            return self.read(cluster)

    def read(self, cluster: Cluster) -> MembershipState | None:
        """Return the stored state, as ``load`` does, with a client that has the metadata of the topic."""
        newest, _ = read_newest(cluster, self._topic, attempts=_ATTEMPTS)
        record = newest.get(self._key)
        return None if record is None or record.value is None else _parsed(bytes(record.value))

    def save(self, state: MembershipState | None) -> None:
        """Store the state, or remove it (None), and wait until that is acknowledged.

        Raises:
            ConnectionLostError: The topic cannot be written now.
        """
        record = Record(key=self._key, value=_encoded(state), timestamp=wall_clock_ms())
        with self._cluster() as cluster:
            partition = partition_for_key(self._key, len(cluster.topics[self._topic].partitions))
            write_records(cluster, self._topic, {partition: [record]}, timeout_s=_TIMEOUT_S)

    @contextlib.contextmanager
    def _cluster(self) -> Iterator[Cluster]:
        with contextlib.closing(Cluster(self._target, BufferPool(max_free_bytes=0))) as cluster:
            cluster.refresh([self._topic])
            if self._topic not in cluster.topics:
                raise ConnectionLostError(f"{self._topic} does not exist yet on the target")
            yield cluster


def _encoded(state: MembershipState | None) -> bytes | None:
    if state is None:
        return None
    fields = {
        "cluster_id": state.cluster_id,
        "incarnation_id": str(state.incarnation_id),
        "previous_broker_epoch": state.previous_broker_epoch,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _parsed(value: bytes) -> MembershipState | None:
    try:
        match json.loads(value):
            case {
                "cluster_id": str(cluster_id),
                "incarnation_id": str(incarnation_id),
                "previous_broker_epoch": int(broker_epoch),
            }:
                return MembershipState(
                    cluster_id=cluster_id, incarnation_id=UUID(incarnation_id), previous_broker_epoch=broker_epoch
                )
    except ValueError:
        pass
    return None


def new_member(settings: CopySettings, replica: ReplicaSettings) -> BrokerMember:
    """Return the membership of a flow's broker, with its stored state.

    Raises:
        ConnectionLostError: The state cannot be read now.
    """
    store = TopicStateStore(
        settings.target,
        topic=settings.source_offsets_topic,
        source_alias=settings.source_alias,
        node_id=replica.node_id,
    )
    with contextlib.closing(Cluster(settings.target, BufferPool(max_free_bytes=0))) as cluster:
        cluster.refresh([])
        listener = _inter_broker_listener(cluster, replica)
    member = MemberSettings(
        node_id=replica.node_id,
        cluster_id=cluster.cluster_id,
        listeners=replica.listeners,
        controllers=replica.controllers,
        inter_broker_listener=listener,
    )
    return BrokerMember(member, store)


def _inter_broker_listener(cluster: Cluster, replica: ReplicaSettings) -> str:
    """Return the name of the listener with which brokers connect to each other.

    Without DESCRIBE_CONFIGS on the cluster, which a broker's configs need, it is the first one of klamm.

    Raises:
        ConnectionLostError: No broker responds.
        MembershipError: klamm has no listener with this name.
    """
    names = [each.name for each in replica.listeners]
    node_id = min(cluster.node_ids - {replica.node_id}, default=None)
    if node_id is None:
        raise ConnectionLostError("no broker of the target is alive")
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=ResourceType.BROKER,
        resource_name=str(node_id),
        configuration_keys=[_LISTENER_CONFIG, _PROTOCOL_CONFIG],
    )
    request = DescribeConfigsRequest(resources=[resource])
    response = cluster.connection(node_id).call(request, DescribeConfigsResponse, timeout_s=_TIMEOUT_S)
    configs = {config.name: config.value for result in response.results for config in result.configs}
    name = (configs.get(_LISTENER_CONFIG) or configs.get(_PROTOCOL_CONFIG) or names[0]).upper()
    if name not in names:
        raise MembershipError(
            f"klamm.replica.listeners={','.join(names)}: expected a listener {name}, because the target's brokers have "
            f"{_LISTENER_CONFIG}={name}"
        )
    return name
