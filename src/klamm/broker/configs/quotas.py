"""Client quotas: kept in memory and in the metadata store, described, and found for who is to be held to them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

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
)
from klamm.protocol.errors import InvalidRequestError, KafkaApiError
from klamm.storage.changes import PutQuota

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping, Sequence

    from klamm.storage.changes import Change


class QuotaStore(Protocol):
    """The part of the metadata store that quotas need."""

    def submit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        """Queue changes; the future is done when they are on disk."""
        ...

    def load_quotas(self) -> list[PutQuota]:
        """Return all quotas."""
        ...


class QuotaService:
    """The quotas of users, client ids and addresses. Loop-confined, no lock."""

    def __init__(self, store: QuotaStore) -> None:
        self._store = store
        self._quotas: dict[QuotaEntity, dict[str, float]] = {}
        self.load()

    def load(self) -> None:
        """Take the quotas from the store: at start, and when a commit has failed."""
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
        alterations: Sequence[tuple[Sequence[tuple[str, str | None]], Sequence[QuotaChange]]],
        *,
        validate_only: bool,
    ) -> tuple[KafkaApiError | None, ...]:
        """Change quotas, each entity wholly or not at all, all in one commit.

        Args:
            alterations: Entity, as it is in the request, and what to do with it.
            validate_only: Decide only.

        Returns:
            For each alteration in order: None when it succeeded, or why it did not.

        Raises:
            StorageError: The disk refuses; nothing was applied.
        """
        copies = Counter(frozenset(parts) for parts, _ in alterations)
        outcomes: list[KafkaApiError | None] = []
        rows: list[PutQuota] = []
        for parts, operations in alterations:
            try:
                entity = make_entity(parts)
                if copies[frozenset(parts)] > 1:
                    shown = ", ".join(f"{entity_type}={name}" for entity_type, name in entity)
                    raise InvalidRequestError(f"Ignoring duplicate entity {shown}")
                changes = plan_quotas(entity, self._quotas.get(entity, {}), operations)
            except KafkaApiError as error:
                outcomes.append(error)
                continue
            outcomes.append(None)
            rows += [PutQuota(entity=entity, name=change.name, value=change.value) for change in changes]
        if rows and not validate_only:
            for row in rows:
                self._apply(row)
            await self._store.submit(rows)
        return tuple(outcomes)

    def _apply(self, row: PutQuota) -> None:
        values = self._quotas.setdefault(row.entity, {})
        if row.value is None:
            values.pop(row.name, None)
        else:
            values[row.name] = row.value
        if not values:
            del self._quotas[row.entity]
