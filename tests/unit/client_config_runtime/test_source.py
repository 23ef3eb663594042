"""Description of client configs beside other requests."""

from __future__ import annotations

from typing import Any

from klamm.client_config_runtime.source import describe
from klamm.client_configs.description import EntityFilter, FilterComponent
from klamm.client_configs.entities import ClientConfigEntity, EntityType
from klamm.server.time_slice import TimeSlice

EVERY_USER = EntityFilter(components=(FilterComponent.of_entity_type(EntityType.USER),), strict=False)
CLIENTS = [ClientConfigEntity.of_client(f"user-{at % 7}", f"client-{at}") for at in range(500)]


class InterruptedSlice(TimeSlice):
    """Time slice with a pause before each item. In one pause, another request removes everything."""

    def __init__(self, at: int, *removed: dict[ClientConfigEntity, Any]) -> None:
        super().__init__(0)
        self._at = at
        self._removed = removed

    async def give_way(self) -> None:
        """Pause."""
        await super().give_way()
        if self.pauses == self._at:
            for each in self._removed:
                each.clear()


async def test_description_of_many_clients_pauses_and_is_sorted() -> None:
    configs = {client: {"acks": "all"} for client in CLIENTS}
    registered = {client: {"a/1": ("acks",)} for client in CLIENTS}
    slices = InterruptedSlice(len(CLIENTS) + 2, configs, registered)

    described = await describe(EVERY_USER, configs, registered, slices)

    assert not configs
    assert slices.pauses > 3 * len(CLIENTS)
    entities = [entry.entity for entry in described]
    assert entities == sorted(entities, key=lambda entity: entity.sort_key)
    assert set(CLIENTS) < set(entities)
    assert all(entry.values == (("acks", "all"),) for entry in described if entry.entity.has_client_id)
