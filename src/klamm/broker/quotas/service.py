"""Client quotas in memory and in the metadata store: changes, descriptions and the lookup of a client's quota."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from klamm.broker.long_decision import decide_in_slices
from klamm.configs.quotas import (
    QuotaChange,
    QuotaComponent,
    QuotaEntity,
    QuotaLimit,
    check_filter,
    find_address_limit,
    find_limit,
    make_entity,
    matches,
    plan_quotas,
    quota_resource,
    quota_text,
)
from klamm.policy_runtime.decision import Revision
from klamm.protocol.errors import InvalidRequestError, KafkaApiError
from klamm.server.time_slice import TimeSlice
from klamm.storage.metadata.changes import PutHistory, PutQuota

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from klamm.server.author import Author
    from klamm.storage.metadata.store import MetadataStore


class _Plan(NamedTuple):
    """Planned changes of one entity."""

    entity: QuotaEntity
    changes: tuple[QuotaChange, ...]


_Alteration: TypeAlias = "tuple[Sequence[tuple[str, str | None]], Sequence[QuotaChange]]"
"""Entity as named in the request, and its changes."""


class _Decision(NamedTuple):
    """Outcomes of a request, rows to store, and the resulting quotas."""

    outcomes: list[_Plan | KafkaApiError]
    rows: list[PutQuota | PutHistory]
    after: dict[QuotaEntity, dict[str, float]]


class QuotaService:
    """Owner of the quotas of users, client ids and addresses. Used on the event loop only, so it needs no lock.

    Args:
        store: Metadata store that keeps the quotas.
        now_ms: Clock, in milliseconds since the epoch.
    """

    def __init__(self, store: MetadataStore, *, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._quotas: dict[QuotaEntity, dict[str, float]] = {}
        self._revision = Revision()
        self.is_empty = True
        """Whether there are no quotas at all. Every request reads this."""
        self.load()

    def load(self) -> None:
        """Load the quotas from the metadata store: at start, and after a failed commit."""
        self._revision.roll_back()
        self._quotas.clear()
        for row in self._store.load_quotas():
            if row.value is not None:
                self._quotas.setdefault(row.entity, {})[row.name] = row.value
        self.is_empty = not self._quotas

    def limit(self, name: str, user: str, client_id: str) -> QuotaLimit | None:
        """Return the quota that applies to a client; None when there is none."""
        return find_limit(self._quotas, name, user, client_id)

    def limit_of_address(self, address: str) -> float | None:
        """Return the connections per second allowed for an address; None when there is no limit."""
        return find_address_limit(self._quotas, address) if self._quotas else None

    def describe(
        self, components: Sequence[QuotaComponent], *, strict: bool
    ) -> tuple[tuple[QuotaEntity, Mapping[str, float]], ...]:
        """Return the entities that match a filter, with their quotas.

        Raises:
            KafkaApiError: The filter contradicts itself.
        """
        check_filter(components)
        return tuple(
            (entity, values) for entity, values in self._quotas.items() if matches(entity, components, strict=strict)
        )

    async def alter(
        self,
        alterations: Sequence[_Alteration],
        *,
        author: Author,
        validate_only: bool,
        time_slice: TimeSlice | None = None,
    ) -> list[KafkaApiError | None]:
        """Change quotas in one commit. Each entity is changed completely or not at all.

        Other requests may run while many alterations are decided. If one of them changed quotas, all alterations are
        decided again without a pause. The changes are applied in one step.

        Args:
            alterations: Entity as named in the request, and its changes.
            author: Requesting principal and client id.
            validate_only: Whether to decide without applying.
            time_slice: Time slice of the request; None creates one.

        Returns:
            For each alteration in order: None when it succeeded, else its error.

        Raises:
            StorageError: The metadata cannot be written. Nothing was applied.
        """
        slices = TimeSlice() if time_slice is None else time_slice
        copies = Counter(await slices.listed(frozenset(parts) for parts, _ in alterations))
        repeated = {parts for parts, count in copies.items() if count > 1}
        outcomes, rows, after = await decide_in_slices(
            partial(self._decide, alterations, repeated, author), self._revision, slices
        )
        if rows and not validate_only:
            self._revision.advance()
            self._quotas.update(after)
            for entity in [entity for entity, values in after.items() if not values]:
                del self._quotas[entity]
            self.is_empty = not self._quotas
            await self._store.submit(rows)
        return await slices.listed(None if isinstance(outcome, _Plan) else outcome for outcome in outcomes)

    async def _decide(
        self,
        alterations: Sequence[_Alteration],
        repeated: set[frozenset[tuple[str, str | None]]],
        author: Author,
        slices: TimeSlice,
    ) -> _Decision:
        outcomes = await slices.listed(self._plan(parts, changes, repeated) for parts, changes in alterations)
        rows = await slices.listed(row for plan in outcomes for row in self._rows(plan, author))
        after = await slices.listed(self._after(plan) for plan in outcomes if isinstance(plan, _Plan))
        return _Decision(outcomes, rows, dict(after))

    def _plan(
        self,
        parts: Sequence[tuple[str, str | None]],
        changes: Sequence[QuotaChange],
        repeated: set[frozenset[tuple[str, str | None]]],
    ) -> _Plan | KafkaApiError:
        try:
            entity = make_entity(parts)
            if repeated and frozenset(parts) in repeated:
                shown = ", ".join(f"{entity_type}={name}" for entity_type, name in entity)
                raise InvalidRequestError(f"Ignoring duplicate entity {shown}")
            return _Plan(entity, plan_quotas(entity, self._quotas.get(entity, {}), changes))
        except KafkaApiError as error:
            return error

    def _rows(self, plan: _Plan | KafkaApiError, author: Author) -> list[PutQuota | PutHistory]:
        rows: list[PutQuota | PutHistory] = []
        if isinstance(plan, KafkaApiError):
            return rows
        current = self._quotas.get(plan.entity, {})
        for change in plan.changes:
            rows.append(PutQuota(entity=plan.entity, name=change.name, value=change.value))
            rows.append(
                PutHistory(
                    at_ms=self._now_ms(),
                    resource=quota_resource(plan.entity),
                    name=change.name,
                    old=quota_text(current.get(change.name)),
                    new=quota_text(change.value),
                    principal=author.principal,
                    client_id=author.client_id,
                )
            )
        return rows

    def _after(self, plan: _Plan) -> tuple[QuotaEntity, dict[str, float]]:
        values = dict(self._quotas.get(plan.entity, {}))
        for change in plan.changes:
            if change.value is None:
                values.pop(change.name, None)
            else:
                values[change.name] = change.value
        return plan.entity, values
