"""Brokers that are registered for a moment and never live, as replicas that are in no ISR.

Kafka gives added partitions as many replicas as the topic's first partition has, and takes all live ones into the ISR
(``ReplicationControlManager.createPartitions``). With real brokers there, one with an empty log would lead the
partition if klamm were fenced in this moment.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from klamm.kafka_client.connection.security import PROTOCOLS
from klamm.kafka_client.errors import raise_for_code
from klamm.kraft.controllers import ControllerChannel
from klamm.mirror.replica.obstacles import finalized_features
from klamm.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from klamm.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    target.refresh([])
    features = finalized_features(target)
    ids = tuple(range(_MAX_ID, _MAX_ID - count, -1))
    with contextlib.closing(ControllerChannel(replica.controllers)) as controller:
        try:
            for node_id in ids:
                request = _registration(replica, target.cluster_id, features, node_id)
                raise_for_code(controller.call(request, BrokerRegistrationResponse).error_code)
            yield ids
        finally:
            for node_id in ids:
                controller.call(UnregisterBrokerRequest(broker_id=node_id), UnregisterBrokerResponse)


def _registration(
    replica: ReplicaSettings, cluster_id: str, features: Mapping[str, int], node_id: int
) -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest(
        broker_id=node_id,
        cluster_id=cluster_id,
        incarnation_id=uuid4(),
        listeners=[
            BrokerRegistrationRequest.Listener(
                name=each.name,
                host=each.host,
                port=each.port,
                security_protocol=PROTOCOLS.index(each.security_protocol),
            )
            for each in replica.listeners
        ],
        features=[
            BrokerRegistrationRequest.Feature(name=name, min_supported_version=level, max_supported_version=level)
            for name, level in features.items()
        ],
        rack=None,
        log_dirs=[uuid4()],
    )
