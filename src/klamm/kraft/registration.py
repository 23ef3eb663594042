"""Registration of a broker without storage: the request, and the feature ranges of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.kafka_client.connection.security import PROTOCOLS
from klamm.protocol.messages.broker_registration import BrokerRegistrationRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from klamm.kraft.image import BrokerEndpoint, BrokerImage

MIN_MOMENTARY_ID: Final = 2**31 - 1000
"""Lowest node id of brokers that klamm registers for a moment, which never live."""


def registration_request(
    *,
    node_id: int,
    cluster_id: str,
    incarnation_id: UUID,
    log_dir: UUID,
    listeners: Iterable[BrokerEndpoint],
    features: Mapping[str, tuple[int, int]],
    previous_broker_epoch: int = -1,
) -> BrokerRegistrationRequest:
    """Return the registration of a broker with a log directory that stores nothing, and without a rack.

    Args:
        node_id: Node id.
        cluster_id: Cluster id as the brokers report it.
        incarnation_id: Id of the incarnation of the broker.
        log_dir: Id of the log directory (``log_dirs``).
        listeners: Listeners as brokers and clients reach them.
        features: Lowest and highest supported level of each feature.
        previous_broker_epoch: Broker epoch of the incarnation before, if it was shut down in a controlled way. -1: not.
    """
    return BrokerRegistrationRequest(
        broker_id=node_id,
        cluster_id=cluster_id,
        incarnation_id=incarnation_id,
        listeners=[
            BrokerRegistrationRequest.Listener(
                name=endpoint.name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=PROTOCOLS.index(endpoint.security_protocol),
            )
            for endpoint in listeners
        ],
        features=[
            BrokerRegistrationRequest.Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in features.items()
        ],
        rack=None,
        log_dirs=[log_dir],
        previous_broker_epoch=previous_broker_epoch,
    )


def common_features(brokers: Iterable[BrokerImage]) -> Mapping[str, tuple[int, int]]:
    """Return the feature ranges that all brokers with storage support.

    A member that registers with them never blocks an upgrade that the other brokers could follow. Those without storage
    do not count: their ranges follow these ones.
    """
    ranges = [broker.features for broker in brokers if broker.has_storage]
    names = set.intersection(*map(set, ranges)) if ranges else set[str]()
    return {
        name: (max(each[name][0] for each in ranges), min(each[name][1] for each in ranges)) for name in sorted(names)
    }
