"""Service for client configs (KIP-649): decide, apply in memory, write, then respond."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from klamm.client_config_runtime.source import SkippedRecords
from klamm.client_configs.definitions import usable_configs
from klamm.client_configs.description import DescribedEntity, describe
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.plan import (
    AlterEntry,
    ClientConfigChange,
    EntryPlan,
    parse_entry,
    plan_entry,
)
from klamm.client_configs.resolution import resolve
from klamm.history.change import RecordedChange
from klamm.policy_runtime.decision import Revision
from klamm.server.time_slice import TimeSlice, decide_in_slices
from klamm.storage.metadata.changes import PutClientConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from klamm.client_config_runtime.registration_log import RegistrationLog
    from klamm.client_configs.definitions import BrokerLimits
    from klamm.client_configs.description import Compatibility, EntityFilter
    from klamm.client_configs.registrations import Registration
    from klamm.storage.metadata.changes import Change
    from klamm.storage.metadata.store import MetadataStore


class ClientConfigService:
    """Owner of the configs of users and client ids, in memory and in the metadata store. Used on the event loop only.

    Args:
        store: Metadata store.
        registrations: Registrations of clients.
        limits: Function that returns the broker's current limits for values.
        now_ms: Wall clock, in milliseconds since the epoch.
    """

    def __init__(
        self,
        *,
        store: MetadataStore,
        registrations: RegistrationLog,
        limits: Callable[[], BrokerLimits],
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._registrations = registrations
        self._limits = limits
        self._now_ms = now_ms
        self._configs: dict[ClientConfigEntity, dict[str, str]] = {}
        self._skipped = SkippedRecords("Metadata")
        self._revision = Revision()
        self._listeners: list[Callable[[], None]] = []
        self.load()

    def load(self) -> None:
        """Load the configs from the metadata store: at start, and after a failed commit."""
        self._revision.roll_back()
        self._configs.clear()
        self._skipped.begin()
        for row in self._store.load_client_configs():
            entity = ClientConfigEntity(user=row.user, client_id=row.client_id, has_client_id=row.has_client_id)
            configs, reasons = usable_configs({} if row.value is None else {row.name: row.value})
            if configs:
                self._configs.setdefault(entity, {}).update(configs)
            self._skipped.put((entity, row.name), "".join(f"{entity}: {reason}" for reason in reasons))
        self._notify()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` immediately after every change, before the change is durable."""
        self._listeners.append(listener)

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    @property
    def configs(self) -> Mapping[ClientConfigEntity, Mapping[str, str]]:
        """Configs of every entity that has any."""
        return self._configs

    def describe(self, entity_filter: EntityFilter) -> tuple[DescribedEntity, ...]:
        """Return the entities that match a filter, with their configs and registrations."""
        return describe(entity_filter, self._configs, self._registrations.image)

    def resolve(self, entity: ClientConfigEntity) -> dict[str, str]:
        """Return the configs that apply to the application ``<user, client-id>``."""
        return resolve(self._configs, entity)

    @property
    def registered(self) -> Mapping[ClientConfigEntity, Compatibility]:
        """Supported keys by client information, for each ``<user, client-id>``."""
        return self._registrations.image

    @property
    def skipped(self) -> Sequence[str]:
        """Reason of each stored config and registration that cannot be used."""
        return [*self._skipped.reasons, *self._registrations.skipped.reasons]

    async def register(self, registered: Registration) -> None:
        """Record which configs an application supports.

        Raises:
            StorageError: The record cannot be written.
        """
        await self._registrations.register(registered)

    async def alter(
        self,
        entries: Sequence[AlterEntry],
        *,
        validate_only: bool,
        principal: str,
        client_id: str | None,
        time_slice: TimeSlice | None = None,
    ) -> tuple[EntryPlan, ...]:
        """Apply each entry completely or not at all; return when the changes are durable.

        Other requests may run while many entries are planned. If one of them changed the configs, all entries are
        planned again without a pause. The plans are applied in one step.

        Args:
            entries: Entries of the request, in its order.
            validate_only: Whether to plan without applying.
            principal: Requesting principal, for the change history.
            client_id: Requesting client id, for the change history.
            time_slice: Time slice of the request; None creates one.

        Raises:
            StorageError: The metadata cannot be written. Nothing was changed.
        """
        slices = TimeSlice() if time_slice is None else time_slice
        plans, rows = await decide_in_slices(partial(self._plan, entries, principal, client_id), self._revision, slices)
        if rows and not validate_only:
            self._revision.advance()
            self._apply([change for plan in plans for change in plan.changes])
            await self._store.submit(rows)
        return tuple(plans)

    async def _plan(
        self, entries: Sequence[AlterEntry], principal: str, client_id: str | None, slices: TimeSlice
    ) -> tuple[Sequence[EntryPlan], Sequence[Change]]:
        limits = self._limits()
        parsed = await slices.listed(parse_entry(entry) for entry in entries)
        appearances = Counter(entity for entity in parsed if isinstance(entity, ClientConfigEntity))
        both = zip(entries, parsed, strict=True)
        plans = await slices.listed(
            plan_entry(entry, entity, appearances, self._configs, limits) for entry, entity in both
        )
        return plans, await slices.listed(self._rows(plans, principal, client_id))

    def _apply(self, changes: Sequence[ClientConfigChange]) -> None:
        for change in changes:
            self._skipped.put((change.entity, change.name), "")
            configs = self._configs.setdefault(change.entity, {})
            if change.new is None:
                configs.pop(change.name, None)
            else:
                configs[change.name] = change.new
            if not configs:
                del self._configs[change.entity]
        self._notify()

    def _rows(self, plans: Sequence[EntryPlan], principal: str, client_id: str | None) -> Iterator[Change]:
        for change in (change for plan in plans for change in plan.changes):
            entity = change.entity
            yield PutClientConfig(
                user=entity.user,
                client_id=entity.client_id,
                has_client_id=entity.has_client_id,
                name=change.name,
                value=change.new,
            )
            if change.old != change.new:
                yield RecordedChange(
                    at_ms=self._now_ms(),
                    resource=str(entity),
                    name=change.name,
                    old=change.old,
                    new=change.new,
                    principal=principal,
                    client_id=client_id,
                )
