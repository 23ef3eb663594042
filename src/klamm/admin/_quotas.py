"""Client quotas of users, client ids and IP addresses (KIP-546, KIP-612), available from Kafka 2.6 on.

::

    alice = ClientQuotaEntity.of({"user": "alice"})
    anybody_else = ClientQuotaEntity.of({"user": None, "client-id": "reports"})  # None: the default one
    ops = [ClientQuotaOp("producer_byte_rate", 1024.0), ClientQuotaOp("consumer_byte_rate", None)]
    admin.alter_client_quotas({alice: ops}).all().result()

    of_users = ClientQuotaFilter((ClientQuotaFilterComponent.of_entity_type("user"),), strict=True)
    admin.describe_client_quotas(of_users).result()[alice]["producer_byte_rate"]
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from klamm.admin import _quorum
from klamm.admin._calls import AdminCalls
from klamm.admin.results import PerKeyResult
from klamm.configs.quotas import ENTITY_TYPES, MATCH_DEFAULT, MATCH_EXACT, MATCH_SPECIFIED
from klamm.kafka_client.pool.keyed_calls import KeyedCall, result_of
from klamm.lazy_dataclass import dataclass
from klamm.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from klamm.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from klamm.kafka_client.pool.calls import Deadline, Outcome
    from klamm.kafka_client.pool.pool import ConnectionPool
    from klamm.protocol.errors import KafkaApiError


@dataclass(frozen=True, slots=True)
class ClientQuotaEntity:
    """Entity of a quota: a user, a client id, both, or an IP address.

    The order of its parts does not matter for equality.
    """

    parts: tuple[tuple[str, str | None], ...]
    """(type, name) pairs in the order ``user``, ``client-id``, ``ip``. The name None means the default entity of
    its type.
    """

    @classmethod
    def of(cls, names: Mapping[str, str | None]) -> ClientQuotaEntity:
        """Return the entity with these parts."""
        in_order = [entity_type for entity_type in ENTITY_TYPES if entity_type in names]
        others = sorted(set(names) - set(in_order))
        return cls(tuple((entity_type, names[entity_type]) for entity_type in (*in_order, *others)))


@dataclass(frozen=True, slots=True)
class ClientQuotaOp:
    """Change of one quota of an entity."""

    key: str
    value: float | None
    """New value. None removes the quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaFilterComponent:
    """Condition on one part of an entity."""

    entity_type: str
    match_type: int
    """Wire value of ``match_type``: 0 exact name, 1 default entity, 2 any entity of the type."""
    match: str | None = None
    """Name of the entity. None for the match types that need no name."""

    @classmethod
    def of_entity(cls, entity_type: str, name: str) -> ClientQuotaFilterComponent:
        """Return a condition that matches the entity of this name."""
        return cls(entity_type=entity_type, match_type=MATCH_EXACT, match=name)

    @classmethod
    def of_default_entity(cls, entity_type: str) -> ClientQuotaFilterComponent:
        """Return a condition that matches the default entity of the type."""
        return cls(entity_type=entity_type, match_type=MATCH_DEFAULT)

    @classmethod
    def of_entity_type(cls, entity_type: str) -> ClientQuotaFilterComponent:
        """Return a condition that matches every entity of the type, named or default."""
        return cls(entity_type=entity_type, match_type=MATCH_SPECIFIED)


@dataclass(frozen=True, slots=True)
class ClientQuotaFilter:
    """Filter of quota entities. All conditions must match; without conditions, every entity matches."""

    components: tuple[ClientQuotaFilterComponent, ...] = ()
    strict: bool = False
    """Whether to exclude entities that have a type without a condition."""


class QuotaCalls(AdminCalls):
    """Admin calls for client quotas."""

    def describe_client_quotas(
        self,
        wanted: ClientQuotaFilter = ClientQuotaFilter(),  # noqa: B008 - it is frozen
        *,
        is_current: bool = False,
        timeout_ms: int | None = None,
    ) -> Outcome[Mapping[ClientQuotaEntity, Mapping[str, float]]]:
        """Return the quotas of the entities that match a filter. Without a filter, return all.

        Args:
            wanted: The filter.
            is_current: As in ``describe_configs``.
            timeout_ms: Limit for this call in milliseconds. None means the client's own.
        """
        work = functools.partial(_describe, self._pool, wanted=wanted, is_current=is_current)
        return self._pool.submit(work, timeout_ms=timeout_ms)

    def alter_client_quotas(
        self,
        alterations: Mapping[ClientQuotaEntity, Collection[ClientQuotaOp]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> PerKeyResult[ClientQuotaEntity, None]:
        """Set and remove quotas. For each entity, either all changes apply or none."""
        result: PerKeyResult[ClientQuotaEntity, None] = PerKeyResult(alterations)
        work = functools.partial(_alter, alterations=alterations, validate_only=validate_only, result=result)
        self._start(result, work, timeout_ms=timeout_ms)
        return result


async def _describe(
    pool: ConnectionPool, deadline: Deadline, *, wanted: ClientQuotaFilter, is_current: bool
) -> Mapping[ClientQuotaEntity, Mapping[str, float]]:
    request = DescribeClientQuotasRequest(
        components=[
            DescribeClientQuotasRequest.ComponentData(
                entity_type=component.entity_type, match_type=component.match_type, match=component.match
            )
            for component in wanted.components
        ],
        strict=wanted.strict,
    )
    send = functools.partial(pool.send, request, DescribeClientQuotasResponse, deadline=deadline)
    if is_current:
        response = await _quorum.ask_current(
            pool, deadline, lambda node_id: send(node_id=node_id, looked_up=True), what="DescribeClientQuotas"
        )
    else:
        response = await send()
    pool.check(response)
    return {
        ClientQuotaEntity.of({part.entity_type: part.entity_name for part in entry.entity}): {
            value.key: value.value for value in entry.values
        }
        for entry in response.entries or []
    }


async def _alter(
    pool: ConnectionPool,
    deadline: Deadline,
    alterations: Mapping[ClientQuotaEntity, Collection[ClientQuotaOp]],
    *,
    validate_only: bool,
    result: PerKeyResult[ClientQuotaEntity, None],
) -> None:
    async def ask(
        node_id: int | None, keys: list[ClientQuotaEntity], attempt: Deadline
    ) -> Mapping[ClientQuotaEntity, KafkaApiError | None]:
        request = AlterClientQuotasRequest(
            entries=[_alteration(entity, alterations[entity]) for entity in keys], validate_only=validate_only
        )
        response = await pool.send(request, AlterClientQuotasResponse, deadline=attempt, node_id=node_id)
        return {
            ClientQuotaEntity.of({part.entity_type: part.entity_name for part in entry.entity}): result_of(
                entry.error_code, entry.error_message, None
            )
            for entry in response.entries
        }

    await KeyedCall(what="AlterClientQuotas", ask=ask, settle=result.settle).run(pool, deadline, alterations)


def _alteration(entity: ClientQuotaEntity, ops: Collection[ClientQuotaOp]) -> AlterClientQuotasRequest.EntryData:
    return AlterClientQuotasRequest.EntryData(
        entity=[
            AlterClientQuotasRequest.EntityData(entity_type=entity_type, entity_name=name)
            for entity_type, name in entity.parts
        ],
        ops=[
            AlterClientQuotasRequest.OpData(
                key=op.key, value=0.0 if op.value is None else op.value, remove=op.value is None
            )
            for op in ops
        ],
    )
