"""AlterClientQuotas (key 49), v0-1, in the gateway: forwarded and recorded in the history."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from klamm.configs.quotas import ENTITY_TYPES, quota_resource, quota_text
from klamm.gateway.history.before import described_quotas
from klamm.gateway.history.recorded_api import IN_DOUBT, Change, Outcomes, RecordedApi
from klamm.gateway.relay.api import RelayedApi
from klamm.history.change import UNKNOWN
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from klamm.configs.quotas import QuotaEntity
    from klamm.gateway.relay.filter import FilterContext


_IN_DOUBT_IF_REPEATED: Final = IN_DOUBT | {ErrorCode.INVALID_REQUEST}
"""Errors after which a change of an entity that the request names twice may have been made: Kafka makes the first one,
and then reports that it ignores the duplicate entity.
"""


def _entity(parts: Iterable[Any]) -> QuotaEntity:
    """Return the entity of a request or a response in its stored form, without a check."""
    names = {part.entity_type: part.entity_name for part in parts}
    # other types are kept: the upstream rejects them, and this is not the outcome of the entity without them
    return tuple((kind, names[kind]) for kind in dict.fromkeys((*ENTITY_TYPES, *sorted(names))) if kind in names)


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
    counts = Counter(_entity(entry.entity) for entry in request.entries)
    for entry in request.entries:
        entity = _entity(entry.entity)
        is_confirmed = outcomes.confirmed(entity, in_doubt=_IN_DOUBT_IF_REPEATED if counts[entity] > 1 else IN_DOUBT)
        if is_confirmed is None:
            continue
        for op in entry.ops:
            old = UNKNOWN if before is None else quota_text(before.get(entity, {}).get(op.key))
            new = None if op.remove else quota_text(op.value)
            yield Change(quota_resource(entity), op.key, old, new, is_confirmed)


RECORDED: Final = RecordedApi(
    request=AlterClientQuotasRequest,
    response=AlterClientQuotasResponse,
    read=_read_quotas,
    changes=quota_changes,
)
API: Final = RelayedApi(key=ApiKey.ALTER_CLIENT_QUOTAS, versions=(0, 1))
