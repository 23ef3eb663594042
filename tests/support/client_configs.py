"""Planning of a whole AlterClientConfigs request in one step, and clients that a broker has seen."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from klamm.client_configs.definitions import ClientKind
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.plan import parse_entry, plan_entry
from klamm.server.client_registry import SeenClient

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


def seen_client(**facts: Any) -> SeenClient:
    """Return a client that is connected, with the given facts."""
    defaults: dict[str, Any] = {
        "principal": "User:alice",
        "client_id": "app",
        "software_name": "klamm-kafka-python",
        "software_version": "1.0",
        "host": "10.0.0.1",
        "connections": 1,
        "last_seen_ms": 5,
        "kinds": frozenset({ClientKind.PRODUCER}),
    }
    return SeenClient(**(defaults | facts))
