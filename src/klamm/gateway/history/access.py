"""Changes that AlterClientQuotas (key 49) and AlterUserScramCredentials (key 51) make. Passwords are never recorded."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from klamm.configs.quotas import ENTITY_TYPES, quota_resource, quota_text
from klamm.gateway.history.before import described_credentials, described_quotas
from klamm.gateway.history.recorded_api import Change, Outcomes, RecordedApi
from klamm.history.change import SCRAM_RESOURCE, UNKNOWN, shown_credential
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from klamm.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from klamm.protocol.shapes import ALTER_KEY, is_client_configs_request
from klamm.security.scram import ScramMechanism

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from klamm.admin import ScramCredentialInfo
    from klamm.configs.quotas import QuotaEntity
    from klamm.gateway.relay.filter import FilterContext


def _entity(parts: Iterable[Any]) -> QuotaEntity:
    """Return the entity of a request or a response in its stored form, without a check."""
    names = {part.entity_type: part.entity_name for part in parts}
    return tuple((kind, names[kind]) for kind in ENTITY_TYPES if kind in names)


async def _read_quotas(
    request: AlterClientQuotasRequest, context: FilterContext
) -> Mapping[QuotaEntity, Mapping[str, float]] | None:
    """Return the present quotas of the entities."""
    return await described_quotas(context.admin, {_entity(entry.entity) for entry in request.entries})


def quota_changes(
    request: AlterClientQuotasRequest,
    response: AlterClientQuotasResponse | None,
    before: Mapping[QuotaEntity, Mapping[str, float]] | None,
) -> Iterator[Change]:
    """Yield each quota that a request names."""
    outcomes = Outcomes(None if response is None else response.entries, lambda entry: _entity(entry.entity))
    for entry in request.entries:
        entity = _entity(entry.entity)
        is_confirmed = outcomes.confirmed(entity)
        if is_confirmed is None:
            continue
        for op in entry.ops:
            old = UNKNOWN if before is None else quota_text(before.get(entity, {}).get(op.key))
            new = None if op.remove else quota_text(op.value)
            yield Change(quota_resource(entity), op.key, old, new, is_confirmed)


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
    known: tuple[ScramCredentialInfo, ...] | KafkaApiError | None, mechanism: ScramMechanism
) -> str | None:
    if isinstance(known, KafkaApiError) and known.error_code == ErrorCode.RESOURCE_NOT_FOUND:
        return None
    if known is None or isinstance(known, KafkaApiError):
        return UNKNOWN
    return next((shown_credential(info.iterations) for info in known if info.mechanism is mechanism), None)


APIS: Final = (
    RecordedApi(
        request=AlterClientQuotasRequest,
        response=AlterClientQuotasResponse,
        read=_read_quotas,
        changes=quota_changes,
    ),
    RecordedApi(
        request=AlterUserScramCredentialsRequest,
        response=AlterUserScramCredentialsResponse,
        read=_read_credentials,
        changes=credential_changes,
        claims=lambda rest: not is_client_configs_request(ALTER_KEY, rest),
    ),
)
