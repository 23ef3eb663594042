"""Owner of all client configs, and the planning and description of many of them without blocking the event loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING

from klamm.client_configs.description import DescribedEntity, in_order, merge_compatibility
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.plan import EntryPlan, parse_entry, plan_entry
from klamm.client_configs.resolution import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from klamm.client_config_runtime.registration_log import RegistrationLog
    from klamm.client_config_runtime.skipped_records import SkippedRecords
    from klamm.client_configs.definitions import BrokerLimits
    from klamm.client_configs.description import Compatibility, EntityFilter
    from klamm.client_configs.plan import AlterEntry
    from klamm.client_configs.registrations import Registration
    from klamm.history.change import Author
    from klamm.server.time_slice import TimeSlice


class ClientConfigSource(ABC):
    """Owner of the configs of users and client ids, and of the registrations of clients. Used on the event loop only.

    Args:
        registrations: Registrations of clients.
        skipped: Stored configs that cannot be used.
    """

    def __init__(self, registrations: RegistrationLog, skipped: SkippedRecords) -> None:
        self._registrations = registrations
        self._skipped = skipped
        self._configs: dict[ClientConfigEntity, dict[str, str]] = {}
        self._listeners: list[Callable[[], None]] = []

    @property
    def configs(self) -> Mapping[ClientConfigEntity, Mapping[str, str]]:
        """Configs of every entity that has any."""
        return self._configs

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every change of configs."""
        self._listeners.append(listener)

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    @abstractmethod
    async def alter(
        self,
        entries: Sequence[AlterEntry],
        *,
        validate_only: bool,
        author: Author,
        slices: TimeSlice,
    ) -> Sequence[EntryPlan]:
        """Apply each entry completely or not at all; return when the changes are durable.

        Args:
            entries: Entries of the request, in its order.
            validate_only: Whether to plan without applying.
            author: Author of the request, for the change history.
            slices: Time slice of the request.

        Raises:
            KafkaApiError: The changes cannot be written.
        """

    def check_loaded(self, *, with_registrations: bool) -> None:  # noqa: B027 - optional: most owners start loaded
        """Check that the configs are complete. An owner that loads them while clients are connected overrides this.

        Args:
            with_registrations: Whether the registrations must be complete as well.

        Raises:
            KafkaApiError: COORDINATOR_LOAD_IN_PROGRESS: they are being loaded.
        """

    @property
    def registered(self) -> Mapping[ClientConfigEntity, Compatibility]:
        """Supported keys by client information, for each ``<user, client-id>``."""
        return self._registrations.image

    @property
    def skipped(self) -> Sequence[str]:
        """Reason of each stored config and registration that cannot be used."""
        return [*self._skipped.reasons, *self._registrations.skipped.reasons]

    def resolve(self, entity: ClientConfigEntity) -> dict[str, str]:
        """Return the configs that apply to the application ``<user, client-id>``."""
        return resolve(self.configs, entity)

    async def register(self, registered: Registration) -> None:
        """Record which configs an application supports.

        Raises:
            KafkaApiError: The record cannot be written.
        """
        await self._registrations.register(registered)


async def describe(
    entity_filter: EntityFilter,
    configs: Mapping[ClientConfigEntity, Mapping[str, str]],
    registered: Mapping[ClientConfigEntity, Compatibility],
    slices: TimeSlice,
) -> list[DescribedEntity]:
    """Return the entities that match the filter and have configs or registrations, in a fixed order.

    A user's compatibility is the union over all client ids that registered under this user.
    """
    values: dict[ClientConfigEntity, tuple[tuple[str, str], ...]] = {}
    matching: dict[ClientConfigEntity, dict[str, dict[str, None]]] = {}
    async for entity, own in slices.over(list(configs.items())):
        if own and entity_filter.accepts(entity):
            values[entity], matching[entity] = tuple(sorted(own.items())), {}
    async for entity, compatibility in slices.over(list(registered.items())):
        for owner in (entity, ClientConfigEntity.of_user(entity.user)):
            if entity_filter.accepts(owner):
                merge_compatibility(matching.setdefault(owner, {}), compatibility)
    return [
        DescribedEntity(entity=entity, values=values.get(entity, ()), compatibility=in_order(matching[entity]))
        async for entity in slices.over(await slices.sorted(matching, key=attrgetter("sort_key")))
    ]


async def plan_entries(
    entries: Sequence[AlterEntry],
    current: Mapping[ClientConfigEntity, Mapping[str, str]],
    limits: BrokerLimits,
    slices: TimeSlice,
) -> list[EntryPlan]:
    """Plan each entry of a request independently, in its order.

    An entity that appears in several entries fails in all of them. A key that appears twice fails its entry.

    Args:
        entries: Entries of the request.
        current: Configs that are currently set, by entity.
        limits: Limits for values.
        slices: Time slice of the request.
    """
    parsed = await slices.listed(map(parse_entry, entries))
    appearances = Counter(entity for entity in parsed if isinstance(entity, ClientConfigEntity))
    return [
        plan_entry(entry, entity, appearances, current, limits)
        async for entry, entity in slices.over(zip(entries, parsed, strict=True))
    ]
