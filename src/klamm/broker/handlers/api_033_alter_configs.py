"""AlterConfigs (key 33), v0-2: replaces all dynamic configs of a resource. Deprecated by KIP-339.

Resource types: topic (2), broker (4, the id that was asked or "" for the cluster default), client metrics (16), group
(32). Configs that the request does not name are removed. Atomic per resource, not across resources. A resource that
occurs twice gets an error in both entries, where Kafka does not respond at all. v2 is flexible.
Requires ALTER_CONFIGS on the topic or the group, for other types on the cluster. This is checked first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.configs.rules import ResourceAlteration
from klamm.broker.requests.alterations import alter_resources
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from klamm.server.route import MAX_CONFIG_ELEMENTS, Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.ALTER_CONFIGS, min_version=0, max_version=2)


async def handle(request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
    """Return one entry per resource. An error does not affect other resources."""
    return AlterConfigsResponse(
        responses=await alter_resources(
            request.resources,
            context,
            to_alteration=_alteration,
            to_entry=AlterConfigsResponse.AlterConfigsResourceResponse,
            validate_only=request.validate_only,
        )
    )


def _alteration(resource: AlterConfigsRequest.AlterConfigsResource) -> ResourceAlteration:
    return ResourceAlteration(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        operations=None,
        replacement=tuple((config.name, config.value) for config in resource.configs),
    )


ROUTE: Final = Route(api=API, request=AlterConfigsRequest, handle=handle, most_elements=MAX_CONFIG_ELEMENTS)
