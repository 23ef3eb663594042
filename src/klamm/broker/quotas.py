"""Client quotas in memory and in the metadata store, and the quotas on created and deleted partitions (KIP-599)."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from klamm.configs.quotas import (
    CONTROLLER_MUTATION_RATE,
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
from klamm.history.change import RecordedChange
from klamm.policy_runtime.decision import Revision
from klamm.protocol.errors import InvalidRequestError, KafkaApiError, ThrottlingQuotaExceededError
from klamm.server.quotas.rates import SAMPLE_S, SAMPLES, ClientCounters
from klamm.server.time_slice import TimeSlice, decide_in_slices
from klamm.storage.metadata.changes import PutQuota

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from klamm.history.change import Author
    from klamm.server.session import Session
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
    rows: list[PutQuota | RecordedChange]
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
        if not validate_only:
            # A change without effect must not be confirmed before the earlier change that caused this is durable.
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
            return error.with_traceback(None)

    def _rows(self, plan: _Plan | KafkaApiError, author: Author) -> list[PutQuota | RecordedChange]:
        rows: list[PutQuota | RecordedChange] = []
        if isinstance(plan, KafkaApiError):
            return rows
        current = self._quotas.get(plan.entity, {})
        for change in plan.changes:
            rows.append(PutQuota(entity=plan.entity, name=change.name, value=change.value))
            rows.append(
                RecordedChange(
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


BURST_S: Final = SAMPLES * SAMPLE_S
"""Size of a bucket, in seconds of its rate. So much may be used at once."""
_INT_MAX: Final = 2**31 - 1


class TokenBucket:
    """Token bucket: filled at a constant rate up to a burst size (Kafka's TokenBucket)."""

    __slots__ = ("_at_s", "_full_at_s", "_tokens")

    def __init__(self) -> None:
        self._tokens = float("inf")
        self._at_s = self._full_at_s = 0.0

    def wait_s(self, rate: float, now_s: float) -> float:
        """Return the seconds until the bucket is no longer negative; 0.0 when it is not.

        ``rate`` is in tokens per second.
        """
        self._fill(rate, now_s)
        return max(0.0, -self._tokens / rate)

    def take(self, tokens: float, rate: float, now_s: float) -> None:
        """Take tokens. The bucket may become negative."""
        self._fill(rate, now_s)
        self._tokens -= tokens
        self._full_at_s = now_s + BURST_S - self._tokens / rate

    def is_idle(self, now_s: float) -> bool:
        """Return whether the bucket is full, so it may be dropped."""
        return now_s >= self._full_at_s

    def _fill(self, rate: float, now_s: float) -> None:
        self._tokens = min(BURST_S * rate, self._tokens + rate * (now_s - self._at_s))
        self._at_s = now_s


class MutationQuota:
    """Quota on partition mutations of one request."""

    __slots__ = ("_bucket", "_free_at_s", "_is_strict", "_now_s", "_rate")

    def __init__(self, bucket: TokenBucket | None, rate: float, *, is_strict: bool, now_s: Callable[[], float]) -> None:
        self._bucket = bucket
        self._rate = rate
        self._is_strict = is_strict
        self._now_s = now_s
        self._free_at_s = 0.0

    @property
    def throttle_time_ms(self) -> int:
        """Remaining wait of the client in milliseconds, for the response."""
        if self._free_at_s == 0.0:
            return 0
        return max(0, round(min((self._free_at_s - self._now_s()) * 1000, _INT_MAX)))

    def charge(self, partitions: int) -> None:
        """Charge partitions that are about to be created or deleted.

        A request with ``validate_only`` is charged as well.

        ==========  ================================  =====================================================
        Quota       Bucket is negative                Bucket is not negative
        ==========  ================================  =====================================================
        strict      reject, charge nothing            accept any number of partitions
        permissive  accept, the client is throttled   accept any number; throttle if negative afterwards
        ==========  ================================  =====================================================

        Raises:
            ThrottlingQuotaExceededError: A strict quota is exceeded. Nothing is charged.
        """
        bucket = self._bucket
        if bucket is None:
            return
        now_s = self._now_s()
        if self._is_strict and (wait_s := bucket.wait_s(self._rate, now_s)) > 0:
            self._free_at_s = now_s + wait_s
            raise ThrottlingQuotaExceededError
        bucket.take(partitions, self._rate, now_s)
        if not self._is_strict and (wait_s := bucket.wait_s(self._rate, now_s)) > 0:
            self._free_at_s = now_s + wait_s


class MutationQuotas:
    """Quotas on partition mutations of all clients. Used on the event loop only.

    Args:
        quotas: Quotas of users and client ids.
        now_s: Monotonic clock, in seconds.
    """

    def __init__(self, quotas: QuotaService, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._quotas = quotas
        self._now_s = now_s
        self.buckets = ClientCounters(TokenBucket)

    def of(self, session: Session, client_id: str | None, *, is_strict: bool) -> MutationQuota:
        """Return the quota of a request.

        Args:
            session: Connection of the request.
            client_id: Client id of the request header.
            is_strict: Whether the request's version has THROTTLING_QUOTA_EXCEEDED. Clients with older versions are only
                throttled.
        """
        if self._quotas.is_empty:
            return UNLIMITED
        limit = self._quotas.limit(CONTROLLER_MUTATION_RATE, session.principal_name, client_id or "")
        if limit is None or limit.value == float("inf"):  # a bucket without a size is never full, so never dropped
            return UNLIMITED
        bucket = self.buckets.of(limit.shared_by, self._now_s())
        return MutationQuota(bucket, limit.value, is_strict=is_strict, now_s=self._now_s)


UNLIMITED: Final = MutationQuota(None, 0.0, is_strict=False, now_s=time.monotonic)
"""Quota without a limit. It has no state, so all requests share it."""
