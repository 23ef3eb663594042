"""ListConfigResources (key 74), v0-1, KIP-1142.

Lists all topics and brokers (also as loggers), and the groups and client metrics subscriptions with dynamic configs.
The cluster default is not listed. No types in the request means all types; a type that cannot be listed gets
UNSUPPORTED_VERSION. v0 lists client metrics subscriptions only. Both versions are flexible.
Requires DESCRIBE_CONFIGS on the cluster.
Not implemented: groups whose last config was removed, which Kafka continues to list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import may_cluster
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from klamm.protocol.types import RESOURCE_TYPES, ResourceType
from klamm.security.acls import AclOperation
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.LIST_CONFIG_RESOURCES, min_version=0, max_version=1)

_ALL: Final = RESOURCE_TYPES


async def handle(request: ListConfigResourcesRequest, context: RequestContext) -> ListConfigResourcesResponse:
    """Return all resources of the requested types."""
    if not may_cluster(context, AclOperation.DESCRIBE_CONFIGS):
        return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted = {ResourceType.CLIENT_METRICS} if context.api_version == 0 else set(request.resource_types or _ALL)
    if not wanted <= set(_ALL):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    names = [(name, kind) for kind in _ALL if kind in wanted for name in context.services.configs.resource_names(kind)]
    return ListConfigResourcesResponse(
        config_resources=await context.time_slice.listed(
            ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind) for name, kind in names
        )
    )


ROUTE: Final = Route(api=API, request=ListConfigResourcesRequest, handle=handle)
