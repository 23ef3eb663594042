"""DescribeCluster (key 60), v0-2, in the gateway: the addresses of all brokers are replaced.

Brokers for which the gateway has no port are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.gateway.frames.addresses import AddressCarrier
from klamm.gateway.relay.api import RelayedApi
from klamm.protocol.api import ApiKey
from klamm.protocol.messages.describe_cluster import DescribeClusterResponse

if TYPE_CHECKING:
    from collections.abc import Collection


def _leave_out(response: DescribeClusterResponse, left: Collection[int]) -> None:
    response.brokers = [broker for broker in response.brokers if broker.broker_id not in left]


API: Final = RelayedApi(
    key=ApiKey.DESCRIBE_CLUSTER,
    versions=(0, 2),
    addresses=AddressCarrier(
        response=DescribeClusterResponse,
        addressed=lambda response: [(broker.broker_id, broker) for broker in response.brokers],
        leave_out=_leave_out,
    ),
)
