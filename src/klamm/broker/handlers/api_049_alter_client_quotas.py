"""AlterClientQuotas (key 49), v0-1 (KIP-546).

Sets and removes quotas in one durable commit, each entity completely or not at all. An entity that occurs twice gets an
error in both entries. Requires ALTER_CONFIGS on the cluster. v1 is flexible.
A request with many entities is decided in time slices and applied in one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import MAX_QUOTA_ENTRIES, check_count
from klamm.configs.quotas import QuotaChange
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ClusterAuthorizationError, ErrorCode
from klamm.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from klamm.security.acls import CLUSTER_NAME, AclOperation, AclResourceType
from klamm.server.attempt import ApiError, attempt
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext
    from klamm.protocol.errors import KafkaApiError

API: Final = Api(key=ApiKey.ALTER_CLIENT_QUOTAS, min_version=0, max_version=1)


async def handle(request: AlterClientQuotasRequest, context: RequestContext) -> AlterClientQuotasResponse:
    """Return one entry per entity."""

    async def alter() -> list[KafkaApiError | None]:
        services = context.services
        if not services.authorizer.is_allowed(
            context.session, AclOperation.ALTER_CONFIGS, AclResourceType.CLUSTER, CLUSTER_NAME
        ):
            raise ClusterAuthorizationError
        slices = context.time_slice
        for entry in request.entries:
            check_count(entry.entity, MAX_QUOTA_ENTRIES, "parts of one entity")
            check_count(entry.ops, MAX_QUOTA_ENTRIES, "quotas of one entity")
        alterations = [
            (
                await slices.listed((part.entity_type, part.entity_name) for part in entry.entity),
                await slices.listed(
                    QuotaChange(name=op.key, value=None if op.remove else op.value) for op in entry.ops
                ),
            )
            async for entry in slices.over(request.entries)
        ]
        return await services.quotas.alter(
            alterations, author=context.author, validate_only=request.validate_only, time_slice=slices
        )

    outcomes, failure = await attempt(alter, api=API.key)
    return AlterClientQuotasResponse(
        entries=await context.time_slice.listed(
            _answer(entry, failure if outcomes is None else _error(outcomes[index]))
            for index, entry in enumerate(request.entries)
        )
    )


def _error(outcome: KafkaApiError | None) -> ApiError:
    if outcome is None:
        return ApiError(ErrorCode.NONE, None)
    return ApiError(outcome.error_code, outcome.error_message)


def _answer(entry: AlterClientQuotasRequest.EntryData, error: ApiError) -> AlterClientQuotasResponse.EntryData:
    return AlterClientQuotasResponse.EntryData(
        error_code=error.error_code,
        error_message=error.error_message,
        entity=[
            AlterClientQuotasResponse.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
            for part in entry.entity[:MAX_QUOTA_ENTRIES]  # if there are more, the first ones identify the entity
        ],
    )


ROUTE: Final = Route(api=API, request=AlterClientQuotasRequest, handle=handle)
