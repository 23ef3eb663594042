"""Client quotas: kept in memory and in the metadata store, described, and found for who is to be held to them."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from klamm.broker.time_slice import TimeSlice
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
)
from klamm.protocol.errors import InvalidRequestError, KafkaApiError
from klamm.storage.changes import PutHistory, PutQuota

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from klamm.broker.author import Author
    from klamm.storage.changes import Change


class QuotaStore(Protocol):
    """The part of the metadata store that quotas need."""

    def submit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        """Queue changes; the future is done when they are on disk."""
        ...

    def load_quotas(self) -> list[PutQuota]:
        """Return all quotas."""
        ...


class _Plan(NamedTuple):
    """What is to happen to one entity."""

    entity: QuotaEntity
    changes: tuple[QuotaChange, ...]


_Alteration: TypeAlias = "tuple[Sequence[tuple[str, str | None]], Sequence[QuotaChange]]"
"""An entity as it is in the request, and what to do with it."""


class _Decision(NamedTuple):
    """What a request leads to."""

    outcomes: list[_Plan | KafkaApiError]
    rows: list[PutQuota | PutHistory]
    after: dict[QuotaEntity, dict[str, float]]


class QuotaService:
    """The quotas of users, client ids and addresses. Loop-confined, no lock.

    Args:
        store: Where they are kept.
        now_ms: The clock, in milliseconds since the epoch.
    """

    def __init__(self, store: QuotaStore, *, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._quotas: dict[QuotaEntity, dict[str, float]] = {}
        self._times_changed = 0
        self.load()

    def load(self) -> None:
        """Take the quotas from the store: at start, and when a commit has failed."""
        self._times_changed += 1
        self._quotas.clear()
        for row in self._store.load_quotas():
            if row.value is not None:
                self._quotas.setdefault(row.entity, {})[row.name] = row.value

    @property
    def is_empty(self) -> bool:
        """Whether nothing is limited."""
        return not self._quotas

    def limit(self, name: str, user: str, client_id: str) -> QuotaLimit | None:
        """Return the quota that counts for a client; None when it is not limited."""
        return find_limit(self._quotas, name, user, client_id)

    def limit_of_address(self, address: str) -> float | None:
        """Return how many connections an address may make in a second; None when it is not limited."""
        return find_address_limit(self._quotas, address) if self._quotas else None

    def describe(
        self, components: Sequence[QuotaComponent], *, strict: bool
    ) -> tuple[tuple[QuotaEntity, Mapping[str, float]], ...]:
        """Return the entities that a filter means, with their quotas.

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
        """Change quotas, each entity wholly or not at all, all in one commit.

        Others are served while many alterations are decided; they are applied at once.

        Args:
            alterations: Entity, as it is in the request, and what to do with it.
            author: Who asks.
            validate_only: Decide only.
            time_slice: Of the request.

        Returns:
            For each alteration in order: None when it succeeded, or why it did not.

        Raises:
            StorageError: The disk refuses; nothing was applied.
        """
        slices = TimeSlice() if time_slice is None else time_slice
        copies = Counter(await slices.listed(frozenset(parts) for parts, _ in alterations))
        repeated = {parts for parts, count in copies.items() if count > 1}
        seen = self._times_changed
        decided = await self._decide(alterations, repeated, author, slices)
        if seen != self._times_changed:  # others were served meanwhile, and changed quotas
            decided = await self._decide(alterations, repeated, author, TimeSlice(math.inf))
        outcomes, rows, after = decided
        if rows and not validate_only:
            self._times_changed += 1
            self._quotas.update(after)
            for entity in [entity for entity, values in after.items() if not values]:
                del self._quotas[entity]
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
                    old=_text(current.get(change.name)),
                    new=_text(change.value),
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


def _text(value: float | None) -> str | None:
    """Return a number as the history has it: so that the same number can be read from it."""
    if value is None:
        return None
    return str(int(value)) if value.is_integer() else repr(value)
