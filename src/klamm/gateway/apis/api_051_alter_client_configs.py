"""AlterClientConfigs (key 51), v0 (KIP-649), answered by the gateway.

The SCRAM request with the same key, AlterUserScramCredentials, goes upstream and is recorded in the history. Passwords
are never recorded. An operator's request needs ALTER_CONFIGS on the cluster, as in the broker.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from klamm.client_config_runtime.messages import alter_entry, altered_entry, check_parts, outcome_of
from klamm.gateway.apis.cluster_rights import may, require
from klamm.gateway.history.before import described_credentials
from klamm.gateway.history.recorded_api import Change, Outcomes, RecordedApi
from klamm.gateway.relay.api import RelayedApi
from klamm.gateway.relay.filter import Filter
from klamm.history.change import SCRAM_RESOURCE, UNKNOWN, shown_credential
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.alter_client_configs import AlterClientConfigsRequest, AlterClientConfigsResponse
from klamm.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from klamm.protocol.shapes import is_client_configs_request
from klamm.security.acls import AclOperation
from klamm.security.scram import ScramMechanism
from klamm.server.attempt import attempt
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from klamm.admin import ScramCredentialInfo
    from klamm.client_configs.plan import EntryPlan
    from klamm.gateway.client_configs.service import UpstreamClientConfigs
    from klamm.gateway.relay.filter import FilterContext
    from klamm.server.attempt import ApiError


async def alter(
    service: UpstreamClientConfigs, request: AlterClientConfigsRequest, context: FilterContext
) -> AlterClientConfigsResponse:
    """Return the outcome of each entry."""
    is_allowed = await may(AclOperation.ALTER_CONFIGS, context)
    slices = TimeSlice()
    entries = await slices.listed(alter_entry(entry) for entry in request.entries)

    async def step() -> tuple[EntryPlan, ...]:
        require(is_allowed=is_allowed)
        async for entry in slices.over(request.entries):
            check_parts(entry.entity, "components of one entity")
            check_parts(entry.ops, "configs of one entity")
        return await service.store.alter(entries, validate_only=request.validate_only, author=context.author)

    plans, error = await attempt(step, api=ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    outcomes: list[ApiError] = [error] * len(entries) if plans is None else [outcome_of(plan) for plan in plans]
    return AlterClientConfigsResponse(
        entries=await slices.listed(
            altered_entry(entry, outcome) for entry, outcome in zip(entries, outcomes, strict=True)
        )
    )


async def _read_credentials(
    request: AlterUserScramCredentialsRequest, context: FilterContext
) -> Mapping[str, tuple[ScramCredentialInfo, ...] | KafkaApiError]:
    """Return the present credentials of the users."""
    users = [each.name for each in request.deletions] + [each.name for each in request.upsertions]
    return await described_credentials(context.admin, users)


def credential_changes(
    request: AlterUserScramCredentialsRequest,
    response: AlterUserScramCredentialsResponse | None,
    before: Mapping[str, tuple[ScramCredentialInfo, ...] | KafkaApiError],
) -> Iterator[Change]:
    """Yield each credential that is deleted or set."""
    outcomes = Outcomes(None if response is None else response.results, attrgetter("user"))
    news: list[tuple[Any, str | None]] = [(each, None) for each in request.deletions]
    news += [(each, shown_credential(each.iterations)) for each in request.upsertions]
    for each, new in news:
        is_confirmed = outcomes.confirmed(each.name)
        if is_confirmed is not None:
            mechanism = ScramMechanism.from_wire(each.mechanism)
            old = _old_credential(before.get(each.name), mechanism)
            yield Change(f"{SCRAM_RESOURCE}:{each.name}", mechanism.mechanism_name, old, new, is_confirmed)


def _old_credential(
    credentials: tuple[ScramCredentialInfo, ...] | KafkaApiError | None, mechanism: ScramMechanism
) -> str | None:
    if isinstance(credentials, KafkaApiError) and credentials.error_code == ErrorCode.RESOURCE_NOT_FOUND:
        return None
    if credentials is None or isinstance(credentials, KafkaApiError):
        return UNKNOWN
    return next((shown_credential(info.iterations) for info in credentials if info.mechanism is mechanism), None)


def client_config_filter(service: UpstreamClientConfigs) -> Filter:
    """Return the filter that answers requests for client configs."""
    return Filter.serving(
        AlterClientConfigsRequest,
        AlterClientConfigsResponse,
        partial(alter, service),
        partial(is_client_configs_request, ApiKey.ALTER_USER_SCRAM_CREDENTIALS),
    )


RECORDED: Final = RecordedApi(
    request=AlterUserScramCredentialsRequest,
    response=AlterUserScramCredentialsResponse,
    read=_read_credentials,
    changes=credential_changes,
    claims=lambda rest: not is_client_configs_request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, rest),
)
API: Final = RelayedApi(key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions=(0, 0), has_two_requests=True)
