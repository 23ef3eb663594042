"""Changes of configs for the history, by AlterConfigs (key 33) and IncrementalAlterConfigs (key 44).

Levels of loggers are left out, as in the broker. Configs that the request names are recorded even if their values stay
the same: the broker that was asked for the values before may not have known the latest change. A client could
otherwise hide the last of several quick changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.configs.definitions import is_secret
from klamm.gateway.apis.altered_configs import CONFIGURED, config_decision, resource_key
from klamm.gateway.history.before import described_configs
from klamm.gateway.history.recorded_api import Change, Outcomes, RecordedApi
from klamm.history.change import HIDDEN, UNKNOWN
from klamm.protocol.errors import KafkaApiError
from klamm.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.types import ConfigOperation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from klamm.admin import ConfigEntry
    from klamm.gateway.apis.altered_configs import AlterConfigsApi
    from klamm.gateway.relay.filter import FilterContext

Request: TypeAlias = AlterConfigsRequest | IncrementalAlterConfigsRequest
Resource: TypeAlias = "AlterConfigsRequest.AlterConfigsResource | IncrementalAlterConfigsRequest.AlterConfigsResource"
Values: TypeAlias = "Iterable[tuple[str, str | None, str | None]]"
"""Name, old and new value of changed configs."""
_OF_LISTS: Final = frozenset({ConfigOperation.APPEND, ConfigOperation.SUBTRACT})


async def read(request: Request, context: FilterContext) -> Mapping[tuple[int, str], Mapping[str, ConfigEntry]]:
    """Return the present configs of the resources, as far as the request can change them."""
    wanted: dict[tuple[int, str], Collection[str] | None] = {}
    include_synonyms = False
    for resource in request.resources:
        if resource.resource_type not in CONFIGURED:
            continue
        names = None
        if isinstance(resource, IncrementalAlterConfigsRequest.AlterConfigsResource):
            names = [config.name for config in resource.configs]
            include_synonyms |= any(config.config_operation in _OF_LISTS for config in resource.configs)
        wanted[resource_key(resource)] = names
    return await described_configs(context.admin, wanted, include_synonyms=include_synonyms)


def changes(
    request: Request,
    response: AlterConfigsResponse | IncrementalAlterConfigsResponse | None,
    before: Mapping[tuple[int, str], Mapping[str, ConfigEntry]],
) -> Iterator[Change]:
    """Yield each config that a request names, and those that a replacement removes."""
    outcomes = Outcomes(None if response is None else response.responses, resource_key)
    for resource in request.resources:
        key = resource_key(resource)
        is_confirmed = outcomes.confirmed(key)
        if resource.resource_type in CONFIGURED and is_confirmed is not None:
            values = _values(resource, before.get(key))
            yield from config_changes(key, values, before.get(key, {}), is_confirmed=is_confirmed)


def config_changes(
    key: tuple[int, str], values: Values, described: Mapping[str, ConfigEntry], *, is_confirmed: bool
) -> Iterator[Change]:
    """Yield the changes of a resource, without its secrets.

    Args:
        key: Type and name of the resource.
        values: Changed configs.
        described: Configs of the resource before the change, as far as they are known.
        is_confirmed: Whether the upstream has reported that it made the changes.
    """
    kind = ResourceType(key[0])
    for name, old, new in values:
        entry = described.get(name)
        if (kind is ResourceType.BROKER and is_secret(name)) or (entry is not None and entry.is_sensitive):
            yield Change(f"{kind.name}:{key[1]}", name, old and HIDDEN, new and HIDDEN, is_confirmed)
        else:
            yield Change(f"{kind.name}:{key[1]}", name, old, new, is_confirmed)


def _values(resource: Resource, described: Mapping[str, ConfigEntry] | None) -> Values:
    if described is None:
        return _values_from_unknown(resource)
    try:
        decision = config_decision(resource, described)
    except KafkaApiError:  # the rules of the upstream differ from those known here
        return _values_from_unknown(resource)
    result = decision.result
    names = [*(config.name for config in resource.configs), *(change.name for change in decision.changes)]
    return [(name, decision.before.get(name), result.get(name)) for name in dict.fromkeys(names)]


def _values_from_unknown(resource: Resource) -> Values:
    """Yield what a resource's part of a request says, without the values before."""
    for config in resource.configs:
        operation = getattr(config, "config_operation", ConfigOperation.SET)
        new = UNKNOWN if operation in _OF_LISTS else None if operation == ConfigOperation.DELETE else config.value
        yield config.name, UNKNOWN, new


def recorded_of(api: AlterConfigsApi) -> RecordedApi:
    """Return how the history records one of the two APIs."""
    return RecordedApi(request=api.request, response=api.response, read=read, changes=changes)
