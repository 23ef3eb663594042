"""DescribeCluster (key 60), v0-2, in the gateway: the addresses of all brokers are replaced."""

from __future__ import annotations

from typing import Final

from klamm.gateway.frames.addresses import AddressCarrier
from klamm.gateway.relay.api import RelayedApi
from klamm.protocol.api import ApiKey
from klamm.protocol.messages.describe_cluster import DescribeClusterResponse

API: Final = RelayedApi(
    key=ApiKey.DESCRIBE_CLUSTER,
    versions=(0, 2),
    addresses=AddressCarrier(
        response=DescribeClusterResponse,
        addressed=lambda response: [(broker.broker_id, broker) for broker in response.brokers],
    ),
)
