"""DescribeClientConfigs (key 50), v0 (KIP-649), answered by the gateway.

The SCRAM request with the same key, DescribeUserScramCredentials, goes upstream. An operator's request needs
DESCRIBE_CONFIGS on the cluster, as in the broker.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from klamm.client_config_runtime.messages import check_parts, components_of, described_entry, resolved_entry
from klamm.client_configs.description import parse_filter
from klamm.client_configs.registrations import client_information, registration
from klamm.client_configs.resolution import asking_entity
from klamm.gateway.apis.cluster_rights import may, require
from klamm.gateway.relay.api import RelayedApi
from klamm.gateway.relay.filter import Filter
from klamm.protocol.api import ApiKey
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from klamm.protocol.shapes import is_client_configs_request
from klamm.security.acls import AclOperation
from klamm.server.attempt import attempt
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from klamm.gateway.client_configs.service import UpstreamClientConfigs
    from klamm.gateway.client_configs.watch import WatchedClient
    from klamm.gateway.relay.filter import FilterContext


async def describe(
    service: UpstreamClientConfigs, request: DescribeClientConfigsRequest, context: FilterContext
) -> DescribeClientConfigsResponse:
    """Return the configs for an operator, or for an application that requests its own and thereby registers."""
    is_allowed = request.resolve_entity or await may(AclOperation.DESCRIBE_CONFIGS, context)

    async def step() -> list[DescribeClientConfigsResponse.EntryData]:
        if request.resolve_entity:
            return [await _resolve(service, request, context)]
        require(is_allowed=is_allowed)
        check_parts(request.components, "components of a filter")
        matching = service.describe(parse_filter(components_of(request), strict=request.strict))
        return await TimeSlice().listed(described_entry(described) for described in matching)

    entries, error = await attempt(step, api=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)
    return DescribeClientConfigsResponse(
        error_code=error.error_code, error_message=error.error_message, entries=entries
    )


async def _resolve(
    service: UpstreamClientConfigs, request: DescribeClientConfigsRequest, context: FilterContext
) -> DescribeClientConfigsResponse.EntryData:
    watch: WatchedClient | Any = context.watch
    session = watch.session
    entity = asking_entity(
        components_of(request), principal_name=session.principal_name, header_client_id=context.author.client_id
    )
    if request.supported_configs is not None:
        information = client_information(session.software_name, session.software_version)
        await service.register(registration(entity, information, request.supported_configs))
    values = tuple(service.resolve(entity).items())
    session.fetched_configs, session.fetched_at_ms = tuple(sorted(values)), session.last_seen_ms
    return resolved_entry(entity, values)


def client_config_filter(service: UpstreamClientConfigs) -> Filter:
    """Return the filter that answers requests for client configs."""
    return Filter.serving(
        DescribeClientConfigsRequest,
        DescribeClientConfigsResponse,
        partial(describe, service),
        partial(is_client_configs_request, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS),
    )


API: Final = RelayedApi(key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions=(0, 0), has_two_requests=True)
