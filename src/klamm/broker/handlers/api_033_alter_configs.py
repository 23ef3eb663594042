"""AlterConfigs (key 33), v0-2: replaces all dynamic configs of a resource. Deprecated by KIP-339.

Resource types: topic (2), broker (4, the id that was asked or "" for the cluster default), client metrics (16), group
(32). Configs that the request does not name are removed. Atomic per resource, not across resources. A resource that
occurs twice gets an error in both entries, where Kafka does not respond at all. v2 is flexible.
Requires ALTER_CONFIGS on the topic or the group, for other types on the cluster. This is checked first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.configs.decider import ResourceAlteration
from klamm.broker.part_limits import MOST_CONFIGS, too_many
from klamm.broker.route import MOST_ELEMENTS_OF_CONFIGS, Route
from klamm.broker.security.checks import config_denials
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from klamm.security.acls import AclOperation

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.ALTER_CONFIGS, min_version=0, max_version=2)


async def handle(request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
    """Return one entry per resource. An error does not affect other resources."""
    denied = await config_denials(context, AclOperation.ALTER_CONFIGS, request.resources)
    denied = [
        error if error is not None else too_many(resource.configs, MOST_CONFIGS, "configs of one resource")
        for resource, error in zip(request.resources, denied, strict=True)
    ]
    allowed = [resource for resource, error in zip(request.resources, denied, strict=True) if error is None]
    altered = iter(
        await context.services.configs.alter(
            [_alteration(resource) async for resource in context.time_slice.over(allowed)],
            node_id=context.node_id,
            author=context.author,
            validate_only=request.validate_only,
        )
    )
    outcomes = [next(altered) if error is None else error for error in denied]
    return AlterConfigsResponse(
        responses=[
            _answer(resource, outcome)
            async for resource, outcome in context.time_slice.over(zip(request.resources, outcomes, strict=True))
        ]
    )


def _alteration(resource: AlterConfigsRequest.AlterConfigsResource) -> ResourceAlteration:
    return ResourceAlteration(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        operations=None,
        replacement=tuple((config.name, config.value) for config in resource.configs),
    )


def _answer(
    resource: AlterConfigsRequest.AlterConfigsResource, outcome: KafkaApiError | None
) -> AlterConfigsResponse.AlterConfigsResourceResponse:
    return AlterConfigsResponse.AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if outcome is None else outcome.error_code,
        error_message=None if outcome is None else outcome.error_message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


ROUTE: Final = Route(api=API, request=AlterConfigsRequest, handle=handle, most_elements=MOST_ELEMENTS_OF_CONFIGS)
