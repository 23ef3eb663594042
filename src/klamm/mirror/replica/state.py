"""State of the broker without storage that survives its process, in the topic of the flow's source offsets.

The record's key has klamm's connector name, so MirrorMaker and Connect ignore it.
"""

from __future__ import annotations

import contextlib
import json
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from klamm.clock import wall_clock_ms
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.errors import ConnectionLostError
from klamm.kafka_client.internal_topic import read_newest, write_records
from klamm.kraft.errors import MembershipError
from klamm.kraft.member import BrokerMember, MemberSettings, MembershipState
from klamm.mirror.records.source_offsets import own_key
from klamm.mirror.replica.inter_broker import check_registrations, inter_broker_configs, read_authorizers
from klamm.mirror.replica.target_nodes import target_nodes
from klamm.protocol.partitioner import partition_for_key
from klamm.protocol.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.mirror.copy.equal_offsets import ReplicaSettings
    from klamm.mirror.copy.settings import CopySettings
    from klamm.mirror.settings.flow import FlowSettings

_ATTEMPTS: Final = 40
_TIMEOUT_S: Final = 15.0


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
        with Cluster.connected(self._target, [self._topic]) as cluster:
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


def owner_of(flow: CopySettings | FlowSettings) -> str:
    """Return the name by which a flow's broker without storage differs from those of other flows."""
    return f"{flow.source_offsets_topic}/{flow.source_alias}"


def new_member(settings: CopySettings, replica: ReplicaSettings) -> BrokerMember:
    """Return the membership of a flow's broker, with its stored state.

    Raises:
        ConnectionLostError: The state, or the configs of the target's brokers, cannot be read now.
        MembershipError: The target's brokers could not connect to klamm's listeners.
    """
    store = TopicStateStore(
        settings.target,
        topic=settings.source_offsets_topic,
        source_alias=settings.source_alias,
        node_id=replica.node_id,
    )
    with Cluster.connected(settings.target) as cluster:
        configs = inter_broker_configs(cluster, replica, target_nodes(cluster).broker)
    if reason := configs.mismatch(replica):
        raise MembershipError(reason)
    member = MemberSettings(
        node_id=replica.node_id,
        cluster_id=cluster.cluster_id,
        owner=owner_of(settings),
        listeners=replica.listeners,
        controllers=replica.controllers,
        inter_broker_listener=configs.listener,
        read_authorizers=partial(read_authorizers, settings.target),
        check_brokers=partial(check_registrations, replica),
    )
    return BrokerMember(member, store)
