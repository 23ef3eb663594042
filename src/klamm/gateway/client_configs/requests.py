"""DescribeClientConfigs (key 50) and AlterClientConfigs (key 51), both v0 (KIP-649), answered by the gateway.

The SCRAM requests with the same keys go upstream. An operator's request needs DESCRIBE_CONFIGS or ALTER_CONFIGS on the
cluster, as in the broker. The gateway has no ACLs; it asks the upstream, over the client's own connection, which
operations on the cluster the client may perform (KIP-430).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from klamm.client_config_runtime.messages import (
    alter_entry,
    altered_entry,
    check_parts,
    components_of,
    described_entry,
    outcome_of,
    resolved_entry,
)
from klamm.client_configs.description import parse_filter
from klamm.client_configs.registrations import client_information, registration
from klamm.client_configs.resolution import asking_entity
from klamm.gateway.relay.filter import Filter
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ClusterAuthorizationError, ErrorCode
from klamm.protocol.messages.alter_client_configs import AlterClientConfigsRequest, AlterClientConfigsResponse
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from klamm.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.shapes import ALTER_KEY, DESCRIBE_KEY, is_client_configs_request
from klamm.protocol.types import ResourceType
from klamm.security.acls import AclOperation
from klamm.server.attempt import ApiError, attempt
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.client_configs.plan import EntryPlan
    from klamm.gateway.client_configs.service import UpstreamClientConfigs
    from klamm.gateway.client_configs.watch import WatchedClient
    from klamm.gateway.relay.filter import FilterContext

_DENIED: Final = "Cluster authorization failed."
_ALL_BROKERS: Final = ""
"""Name of the resource with the default configs of all brokers."""
_SOME_CONFIG: Final = "log.retention.ms"
_AUTHORIZED: Final = frozenset({ErrorCode.NONE, ErrorCode.POLICY_VIOLATION})


class ClientConfigRequests:
    """Filters of the two APIs.

    Args:
        service: Configs and registrations.
    """

    def __init__(self, service: UpstreamClientConfigs) -> None:
        self._service = service

    @property
    def filters(self) -> Mapping[int, Filter]:
        """The filter of each API."""
        return {
            DESCRIBE_KEY: Filter.serving(
                DescribeClientConfigsRequest,
                DescribeClientConfigsResponse,
                self.describe,
                partial(is_client_configs_request, DESCRIBE_KEY),
            ),
            ALTER_KEY: Filter.serving(
                AlterClientConfigsRequest,
                AlterClientConfigsResponse,
                self.alter,
                partial(is_client_configs_request, ALTER_KEY),
            ),
        }

    async def describe(
        self, request: DescribeClientConfigsRequest, context: FilterContext
    ) -> DescribeClientConfigsResponse:
        """Return the configs for an operator, or for an application that requests its own and thereby registers."""
        is_allowed = request.resolve_entity or await _may(AclOperation.DESCRIBE_CONFIGS, context)

        async def step() -> list[DescribeClientConfigsResponse.EntryData]:
            if request.resolve_entity:
                return [await self._resolve(request, context)]
            _require(is_allowed=is_allowed)
            check_parts(request.components, "components of a filter")
            found = self._service.describe(parse_filter(components_of(request), strict=request.strict))
            return await TimeSlice().listed(described_entry(described) for described in found)

        entries, error = await attempt(step, api=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)
        return DescribeClientConfigsResponse(
            error_code=error.error_code, error_message=error.error_message, entries=entries
        )

    async def _resolve(
        self, request: DescribeClientConfigsRequest, context: FilterContext
    ) -> DescribeClientConfigsResponse.EntryData:
        watch: WatchedClient | Any = context.watch
        session = watch.session
        entity = asking_entity(
            components_of(request), principal_name=session.principal_name, header_client_id=context.author.client_id
        )
        if request.supported_configs is not None:
            information = client_information(session.software_name, session.software_version)
            await self._service.register(registration(entity, information, request.supported_configs))
        values = tuple(self._service.resolve(entity).items())
        session.fetched_configs, session.fetched_at_ms = tuple(sorted(values)), session.last_seen_ms
        return resolved_entry(entity, values)

    async def alter(self, request: AlterClientConfigsRequest, context: FilterContext) -> AlterClientConfigsResponse:
        """Return the outcome of each entry."""
        is_allowed = await _may(AclOperation.ALTER_CONFIGS, context)
        slices = TimeSlice()
        entries = await slices.listed(alter_entry(entry) for entry in request.entries)

        async def step() -> tuple[EntryPlan, ...]:
            _require(is_allowed=is_allowed)
            async for entry in slices.over(request.entries):
                check_parts(entry.entity, "components of one entity")
                check_parts(entry.ops, "configs of one entity")
            return await self._service.store.alter(entries, validate_only=request.validate_only, author=context.author)

        plans, error = await attempt(step, api=ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
        outcomes: list[ApiError] = [error] * len(entries) if plans is None else [outcome_of(plan) for plan in plans]
        return AlterClientConfigsResponse(
            entries=await slices.listed(
                altered_entry(entry, outcome) for entry, outcome in zip(entries, outcomes, strict=True)
            )
        )


async def _may(operation: AclOperation, context: FilterContext) -> bool:
    """Return whether the upstream authorizes the client's principal for an operation on the cluster.

    Kafka reports the authorized operations only to principals that may DESCRIBE the cluster. For all others, a request
    that needs just this operation and changes nothing shows it.
    """
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = await context.call(request, DescribeClusterResponse)
    if response.error_code == ErrorCode.NONE:
        operations = response.cluster_authorized_operations
        if operations >> operation & 1:
            return True
        if operations >> AclOperation.DESCRIBE & 1:
            return False
    if operation is AclOperation.DESCRIBE_CONFIGS:
        return await _may_describe_brokers(context)
    return await _may_alter_brokers(context)


async def _may_describe_brokers(context: FilterContext) -> bool:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=ResourceType.BROKER, resource_name=_ALL_BROKERS, configuration_keys=[_SOME_CONFIG]
            )
        ]
    )
    results = (await context.call(request, DescribeConfigsResponse)).results
    return [result.error_code for result in results] == [ErrorCode.NONE]


async def _may_alter_brokers(context: FilterContext) -> bool:
    """Return whether an empty alteration is accepted. A policy of the upstream is asked after the authorization."""
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=ResourceType.BROKER, resource_name=_ALL_BROKERS, configs=[]
            )
        ],
        validate_only=True,
    )
    responses = (await context.call(request, IncrementalAlterConfigsResponse)).responses
    return bool(responses) and {each.error_code for each in responses} <= _AUTHORIZED


def _require(*, is_allowed: bool) -> None:
    if not is_allowed:
        raise ClusterAuthorizationError(_DENIED)
