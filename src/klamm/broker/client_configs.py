"""Service for client configs (KIP-649): decide, apply in memory, write, then respond."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from klamm.client_config_runtime.skipped_records import SkippedRecords
from klamm.client_config_runtime.source import ClientConfigSource, plan_entries
from klamm.client_configs.definitions import usable_configs
from klamm.client_configs.entities import ClientConfigEntity
from klamm.history.change import RecordedChange
from klamm.policy_runtime.decision import Revision
from klamm.server.time_slice import decide_in_slices
from klamm.storage.metadata.changes import PutClientConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from klamm.client_config_runtime.registration_log import RegistrationLog
    from klamm.client_configs.definitions import BrokerLimits
    from klamm.client_configs.plan import AlterEntry, ClientConfigChange, EntryPlan
    from klamm.history.change import Author
    from klamm.server.time_slice import TimeSlice
    from klamm.storage.metadata.changes import Change
    from klamm.storage.metadata.store import MetadataStore


class ClientConfigService(ClientConfigSource):
    """Owner of the configs of users and client ids, in memory and in the metadata store. Used on the event loop only.

    Subscribers are notified immediately after a change, before it is durable.

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
        super().__init__(registrations, SkippedRecords("Metadata"))
        self._store = store
        self._limits = limits
        self._now_ms = now_ms
        self._revision = Revision()
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

    async def alter(
        self,
        entries: Sequence[AlterEntry],
        *,
        validate_only: bool,
        author: Author,
        slices: TimeSlice,
    ) -> Sequence[EntryPlan]:
        """Apply each entry completely or not at all; return when the changes are durable.

        Other requests may run while many entries are planned. If one of them changed the configs, all entries are
        planned again without a pause. The plans are applied in one step.

        Raises:
            StorageError: The metadata cannot be written. Nothing was changed.
        """
        plans, rows = await decide_in_slices(partial(self._plan, entries, author), self._revision, slices)
        if rows and not validate_only:
            self._revision.advance()
            self._apply([change for plan in plans for change in plan.changes])
            await self._store.submit(rows)
        return plans

    async def _plan(
        self, entries: Sequence[AlterEntry], author: Author, slices: TimeSlice
    ) -> tuple[Sequence[EntryPlan], Sequence[Change]]:
        plans = await plan_entries(entries, self._configs, self._limits(), slices)
        return plans, await slices.listed(self._rows(plans, author))

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

    def _rows(self, plans: Sequence[EntryPlan], author: Author) -> Iterator[Change]:
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
                    principal=author.principal,
                    client_id=author.client_id,
                )
