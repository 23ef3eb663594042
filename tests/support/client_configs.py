"""Planning and description of client configs in one step, and clients that a broker has seen."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from klamm.client_config_runtime import source
from klamm.client_config_runtime.source import plan_entries
from klamm.client_configs.definitions import ClientKind
from klamm.server.client_registry import SeenClient
from klamm.server.time_slice import TimeSlice, run_at_once

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.client_configs.definitions import BrokerLimits
    from klamm.client_configs.description import Compatibility, DescribedEntity, EntityFilter
    from klamm.client_configs.entities import ClientConfigEntity
    from klamm.client_configs.plan import AlterEntry, EntryPlan


def plan_alter(
    entries: Sequence[AlterEntry],
    current: Mapping[ClientConfigEntity, Mapping[str, str]],
    limits: BrokerLimits,
) -> Sequence[EntryPlan]:
    """Plan each entry independently, in the order of the request."""
    return run_at_once(plan_entries(entries, current, limits, TimeSlice(math.inf)))


def describe(
    entity_filter: EntityFilter,
    configs: Mapping[ClientConfigEntity, Mapping[str, str]],
    registered: Mapping[ClientConfigEntity, Compatibility],
) -> Sequence[DescribedEntity]:
    """Return the entities that match the filter."""
    return run_at_once(source.describe(entity_filter, configs, registered, TimeSlice(math.inf)))


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
