"""Brokers that are registered for a moment and never live, as replicas that are in no ISR.

Kafka gives added partitions as many replicas as the topic's first partition has, and takes all live ones into the ISR
(``ReplicationControlManager.createPartitions``). With real brokers there, one with an empty log would lead the
partition if klamm were fenced in this moment.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from klamm.kafka_client.errors import raise_for_code
from klamm.kraft.controllers import ControllerChannel
from klamm.kraft.log_dirs import log_dir_of
from klamm.kraft.registration import registration_request
from klamm.mirror.replica.obstacles import finalized_features
from klamm.mirror.replica.target_nodes import target_nodes
from klamm.protocol.messages.broker_registration import BrokerRegistrationResponse
from klamm.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.kafka_client.data.cluster import Cluster
    from klamm.mirror.copy.equal_offsets import ReplicaSettings

_MAX_ID: Final = 2**31 - 1


@contextlib.contextmanager
def fenced_brokers(replica: ReplicaSettings, target: Cluster, count: int) -> Iterator[tuple[int, ...]]:
    """Register brokers with the largest node ids for the duration of the context. They send no heartbeats.

    What a process that died has left is replaced by the next call, and removed at its end.

    Args:
        replica: Settings of klamm as a broker.
        target: Connections to the target, whose finalized feature levels they support.
        count: Number of brokers.

    Raises:
        ConnectionLostError: The target, or an active controller, is not reachable.
        KafkaApiError: The controller rejects a registration.
    """
    broker = target_nodes(target).connection(target)
    features = {name: (level, level) for name, level in finalized_features(broker).items()}
    ids = tuple(range(_MAX_ID, _MAX_ID - count, -1))
    with contextlib.closing(ControllerChannel(replica.controllers)) as controller:
        try:
            for node_id in ids:
                request = registration_request(
                    node_id=node_id,
                    cluster_id=target.cluster_id,
                    incarnation_id=uuid4(),
                    log_dir=log_dir_of(target.cluster_id, node_id),
                    listeners=replica.listeners,
                    features=features,
                )
                raise_for_code(controller.call(request, BrokerRegistrationResponse).error_code)
            yield ids
        finally:
            for node_id in ids:
                controller.call(UnregisterBrokerRequest(broker_id=node_id), UnregisterBrokerResponse)
