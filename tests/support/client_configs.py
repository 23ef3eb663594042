"""Planning of a whole AlterClientConfigs request in one step."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.plan import parse_entry, plan_entry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.client_configs.definitions import BrokerLimits
    from klamm.client_configs.plan import AlterEntry, EntryPlan


def plan_alter(
    entries: Sequence[AlterEntry],
    current: Mapping[ClientConfigEntity, Mapping[str, str]],
    limits: BrokerLimits,
) -> tuple[EntryPlan, ...]:
    """Plan each entry independently, in the order of the request.

    An entity that appears in several entries fails in all of them. A key that appears twice fails its entry.
    """
    parsed = [parse_entry(entry) for entry in entries]
    appearances = Counter(entity for entity in parsed if isinstance(entity, ClientConfigEntity))
    return tuple(
        plan_entry(entry, entity, appearances, current, limits) for entry, entity in zip(entries, parsed, strict=True)
    )
