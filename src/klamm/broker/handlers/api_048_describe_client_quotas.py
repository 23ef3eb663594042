"""DescribeClientQuotas (key 48), v0-1 (KIP-546).

Returns the quotas of users, client ids and addresses that match a filter. Requires DESCRIBE_CONFIGS on the cluster.
Client configs (KIP-649) are separate and never appear here. v1 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import MAX_QUOTA_ENTRIES, check_count
from klamm.configs.quotas import QuotaComponent
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ClusterAuthorizationError
from klamm.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from klamm.security.acls import CLUSTER_NAME, AclOperation, AclResourceType
from klamm.server.attempt import attempt
from klamm.server.route import Route

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.broker.context import RequestContext
    from klamm.configs.quotas import QuotaEntity

API: Final = Api(key=ApiKey.DESCRIBE_CLIENT_QUOTAS, min_version=0, max_version=1)


async def handle(request: DescribeClientQuotasRequest, context: RequestContext) -> DescribeClientQuotasResponse:
    """Return the matching quotas, or the error of the filter."""

    async def describe() -> list[DescribeClientQuotasResponse.EntryData]:
        services = context.services
        if not services.authorizer.is_allowed(
            context.session, AclOperation.DESCRIBE_CONFIGS, AclResourceType.CLUSTER, CLUSTER_NAME
        ):
            raise ClusterAuthorizationError
        check_count(request.components, MAX_QUOTA_ENTRIES, "components of a filter")
        components = [
            QuotaComponent(entity_type=part.entity_type, match_type=part.match_type, match=part.match)
            for part in request.components
        ]
        quotas = services.quotas.describe(components, strict=request.strict)
        return [_entry(entity, values) async for entity, values in context.time_slice.over(quotas)]

    entries, error = await attempt(describe, api=API.key)
    message = "" if entries is not None else error.error_message  # as in Kafka, which sends null in other responses
    return DescribeClientQuotasResponse(error_code=error.error_code, error_message=message, entries=entries)


def _entry(entity: QuotaEntity, values: Mapping[str, float]) -> DescribeClientQuotasResponse.EntryData:
    return DescribeClientQuotasResponse.EntryData(
        entity=[
            DescribeClientQuotasResponse.EntityData(entity_type=entity_type, entity_name=name)
            for entity_type, name in entity
        ],
        values=[DescribeClientQuotasResponse.ValueData(key=key, value=value) for key, value in values.items()],
    )


ROUTE: Final = Route(api=API, request=DescribeClientQuotasRequest, handle=handle)
