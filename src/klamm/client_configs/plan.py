"""Planning of AlterClientConfigs requests: per entity either all changes or an error, independent of other entities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.client_configs.definitions import BrokerLimits, check_value
from klamm.client_configs.entities import ClientConfigEntity, alterable_entity
from klamm.client_configs.rollout import PREFIX, parse_rollout, rollout_key
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import InvalidRequestError, KafkaApiError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_OPS: Final = 1_000
"""Maximum number of ops of one entity. They are planned without a pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterOp:
    """One op of an entry, as received."""

    key: str
    value: str
    """Value of the op. Ignored if ``remove`` is true."""
    remove: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterEntry:
    """One entry of the request, as received."""

    components: tuple[tuple[str, str | None], ...]
    """Entity type and name. The name None means the default of its type."""
    ops: tuple[AlterOp, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfigChange:
    """Change of one config of one entity: set or removed."""

    entity: ClientConfigEntity
    name: str
    old: str | None
    """Previous value. None means that the config was not set."""
    new: str | None
    """New value. None means that the config is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPlan:
    """Outcome of one entry: changes, or the error that prevents all of them."""

    changes: tuple[ClientConfigChange, ...] = ()
    """Changes of the entry, including those that keep a value: a repeated request also waits for the commit of that
    value.
    """
    error: KafkaApiError | None = None


def parse_entry(entry: AlterEntry) -> ClientConfigEntity | KafkaApiError:
    """Return the entity of an entry, or the error if it is invalid."""
    try:
        return alterable_entity(entry.components)
    except KafkaApiError as error:
        return error.with_traceback(None)  # its traceback would refer to the list that keeps it


def plan_entry(
    entry: AlterEntry,
    entity: ClientConfigEntity | KafkaApiError,
    appearances: Mapping[ClientConfigEntity, int],
    current: Mapping[ClientConfigEntity, Mapping[str, str]],
    limits: BrokerLimits,
) -> EntryPlan:
    """Plan one entry.

    Args:
        entry: Entry of the request.
        entity: Result of ``parse_entry`` for it.
        appearances: Number of entries per entity in the request.
        current: Configs that are currently set, by entity.
        limits: The broker's limits.
    """
    if isinstance(entity, KafkaApiError):
        return EntryPlan(error=entity)
    try:
        if len(entry.ops) > MAX_OPS:
            raise InvalidRequestError(f"Configs of {entity}: at most {MAX_OPS} are allowed at once")
        if appearances[entity] > 1:
            raise InvalidRequestError(f"The entity {entity} appears {appearances[entity]} times in the request")
        return EntryPlan(changes=_changes(entity, entry.ops, current.get(entity, {}), limits))
    except KafkaApiError as error:
        return EntryPlan(error=error.with_traceback(None))


def _changes(
    entity: ClientConfigEntity, ops: Iterable[AlterOp], configs: Mapping[str, str], limits: BrokerLimits
) -> tuple[ClientConfigChange, ...]:
    changes: dict[str, ClientConfigChange] = {}
    for op in ops:
        if op.key in changes:
            raise InvalidRequestError(f"Duplicate configuration key {op.key} for {entity}")
        new = None if op.remove else check_value(op.key, op.value, limits)
        if new is not None and op.key.startswith(PREFIX) and entity.has_client_id:
            raise InvalidRequestError(
                f"{op.key}: a staged roll-out is possible only for a user without a client id, not for {entity}"
            )
        changes[op.key] = ClientConfigChange(entity=entity, name=op.key, old=configs.get(op.key), new=new)
    for key in tuple(changes):
        # Setting or removing a config without a percentage applies to all clients, so it ends any staged roll-out of
        # it.
        rollout = rollout_key(key)
        if rollout in configs and rollout not in changes:
            changes[rollout] = ClientConfigChange(entity=entity, name=rollout, old=configs[rollout], new=None)
    for change in tuple(changes.values()):
        key = change.name.removeprefix(PREFIX)
        final = _replaced_by_next(change)
        if final is not None and key not in changes:
            changes[key] = ClientConfigChange(entity=entity, name=key, old=configs.get(key), new=final)
    return tuple(changes.values())


def _replaced_by_next(change: ClientConfigChange) -> str | None:
    """Return the value of a complete roll-out that a roll-out of another value replaces; None for other changes.

    All clients have that value. It becomes the plain value of the config. Otherwise the clients outside the new
    roll-out would fall back to the value before both roll-outs.
    """
    if not change.name.startswith(PREFIX) or change.old is None or change.new is None:
        return None
    before, after = (parse_rollout(change.name, text) for text in (change.old, change.new))
    return before.value if before.is_complete and before.value != after.value else None
