"""DescribeClientConfigs (key 50), v0 (KIP-649), answered by the gateway.

The SCRAM request with the same key, DescribeUserScramCredentials, goes upstream. An operator's request needs
DESCRIBE_CONFIGS on the cluster, as in the broker.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from klamm.client_config_runtime.messages import describe_client_configs
from klamm.gateway.apis.cluster_rights import may
from klamm.gateway.relay.api import RelayedApi
from klamm.gateway.relay.filter import Filter
from klamm.protocol.api import ApiKey
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from klamm.protocol.shapes import is_client_configs_request
from klamm.security.acls import AclOperation
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from klamm.client_config_runtime.source import ClientConfigSource
    from klamm.gateway.client_configs.watch import WatchedClient
    from klamm.gateway.relay.filter import FilterContext


async def describe(
    source: ClientConfigSource, request: DescribeClientConfigsRequest, context: FilterContext
) -> DescribeClientConfigsResponse:
    """Return the configs for an operator, or for an application that requests its own and thereby registers."""
    watch: WatchedClient | Any = context.watch
    return await describe_client_configs(
        source,
        request,
        watch.session,
        client_id=context.author.client_id,
        is_allowed=request.resolve_entity or await may(AclOperation.DESCRIBE_CONFIGS, context),
        slices=TimeSlice(),
    )


def client_config_filter(source: ClientConfigSource) -> Filter:
    """Return the filter that answers requests for client configs."""
    return Filter.serving(
        DescribeClientConfigsRequest,
        DescribeClientConfigsResponse,
        partial(describe, source),
        partial(is_client_configs_request, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS),
    )


API: Final = RelayedApi(key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions=(0, 0), has_two_requests=True)
