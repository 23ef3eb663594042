"""AlterClientConfigs (key 51), v0 (KIP-649), answered by the gateway.

The SCRAM request with the same key, AlterUserScramCredentials, goes upstream and is recorded in the history. Passwords
are never recorded. An operator's request needs ALTER_CONFIGS on the cluster, as in the broker.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from klamm.client_config_runtime.messages import alter_client_configs
from klamm.gateway.apis.cluster_rights import may
from klamm.gateway.history.before import described_credentials
from klamm.gateway.history.recorded_api import IN_DOUBT, Change, Outcomes, RecordedApi
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
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from klamm.admin import ScramCredentialInfo
    from klamm.client_config_runtime.source import ClientConfigSource
    from klamm.gateway.relay.filter import FilterContext

_IN_DOUBT_IF_EXISTING: Final = IN_DOUBT | {ErrorCode.RESOURCE_NOT_FOUND}
"""Errors after which the changes of a user may have been made, if all credentials to delete existed."""


async def alter(
    source: ClientConfigSource, request: AlterClientConfigsRequest, context: FilterContext
) -> AlterClientConfigsResponse:
    """Return the outcome of each entry."""
    return await alter_client_configs(
        source,
        request,
        author=context.author,
        is_allowed=await may(AclOperation.ALTER_CONFIGS, context),
        slices=TimeSlice(),
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
    missing = {each.name for each in request.deletions if _credential_before(each, before) in {None, UNKNOWN}}
    news: list[tuple[Any, str | None]] = [(each, None) for each in request.deletions]
    news += [(each, shown_credential(each.iterations)) for each in request.upsertions]
    for each, new in news:
        is_confirmed = outcomes.confirmed(
            each.name, in_doubt=IN_DOUBT if each.name in missing else _IN_DOUBT_IF_EXISTING
        )
        if is_confirmed is not None:
            mechanism = ScramMechanism.from_wire(each.mechanism).mechanism_name
            old = _credential_before(each, before)
            yield Change(f"{SCRAM_RESOURCE}:{each.name}", mechanism, old, new, is_confirmed)


def _credential_before(each: Any, before: Mapping[str, tuple[ScramCredentialInfo, ...] | KafkaApiError]) -> str | None:
    """Return the previous credential of a deletion or an upsertion."""
    credentials, mechanism = before.get(each.name), ScramMechanism.from_wire(each.mechanism)
    if isinstance(credentials, KafkaApiError) and credentials.error_code == ErrorCode.RESOURCE_NOT_FOUND:
        return None
    if credentials is None or isinstance(credentials, KafkaApiError):
        return UNKNOWN
    return next((shown_credential(info.iterations) for info in credentials if info.mechanism is mechanism), None)


def client_config_filter(source: ClientConfigSource) -> Filter:
    """Return the filter that answers requests for client configs."""
    return Filter.serving(
        AlterClientConfigsRequest,
        AlterClientConfigsResponse,
        partial(alter, source),
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
