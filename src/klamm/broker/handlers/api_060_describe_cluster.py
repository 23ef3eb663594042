"""DescribeCluster (key 60), v0-2.

Returns cluster id, controller and brokers. Only broker endpoints are served: as by a Kafka broker, a request for
controller endpoints (KIP-919) gets MISMATCHED_ENDPOINT_TYPE.
No ACL is required; authorized operations are returned on request. No broker is ever fenced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import OPERATIONS_OMITTED, cluster_operations
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.DESCRIBE_CLUSTER, min_version=0, max_version=2)
_BROKERS: Final = 1
_CONTROLLERS: Final = 2


async def handle(request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
    """Return the brokers."""
    if request.endpoint_type != _BROKERS:
        is_controllers = request.endpoint_type == _CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_controllers else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of the wrong type."
            if is_controllers
            else f"Unsupported endpoint type {request.endpoint_type}",
            endpoint_type=_BROKERS,
        )
    cluster = context.services.cluster
    has_operations = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        error_message=None,
        cluster_authorized_operations=cluster_operations(context) if has_operations else OPERATIONS_OMITTED,
        endpoint_type=_BROKERS,
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack
            )
            for node in cluster.nodes_at(context.session.listener)
        ],
    )


ROUTE: Final = Route(api=API, request=DescribeClusterRequest, handle=handle)
