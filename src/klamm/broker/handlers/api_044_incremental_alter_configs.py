"""IncrementalAlterConfigs (key 44), v0-1, KIP-339.

Resource types: topic (2), broker (4, the id that was asked or "" for the cluster default), broker logger (8), client
metrics (16), group (32). Atomic per resource, not across resources: an error does not affect other resources. The
response is sent when all changes of the request are durable, in the order of the request. v1 is flexible.
Requires ALTER_CONFIGS on the topic or the group, for other types on the cluster. This is checked first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.configs.rules import ResourceAlteration
from klamm.broker.requests.alterations import alter_resources
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.server.route import MAX_CONFIG_ELEMENTS, Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.INCREMENTAL_ALTER_CONFIGS, min_version=0, max_version=1)


async def handle(request: IncrementalAlterConfigsRequest, context: RequestContext) -> IncrementalAlterConfigsResponse:
    """Return one entry per resource. An error does not affect other resources."""
    return IncrementalAlterConfigsResponse(
        responses=await alter_resources(
            request.resources,
            context,
            to_alteration=_alteration,
            to_entry=IncrementalAlterConfigsResponse.AlterConfigsResourceResponse,
            validate_only=request.validate_only,
        )
    )


def _alteration(resource: IncrementalAlterConfigsRequest.AlterConfigsResource) -> ResourceAlteration:
    return ResourceAlteration(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        operations=resource.configs,
    )


ROUTE: Final = Route(api=API, request=IncrementalAlterConfigsRequest, handle=handle, most_elements=MAX_CONFIG_ELEMENTS)
