"""DescribeClientConfigs and AlterClientConfigs (KIP-649). Sent only to brokers that announce the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.client_configs.entities import ClientConfigEntity, EntityType, parse_entity
from klamm.kafka_client.pool.keyed_calls import KeyedCall, result_of
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import UnsupportedVersionError
from klamm.protocol.messages.alter_client_configs import AlterClientConfigsRequest, AlterClientConfigsResponse
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from klamm.protocol.types import CLIENT_CONFIGS_FEATURE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from klamm.admin.results import PerKeyResult
    from klamm.client_configs.description import EntityFilter
    from klamm.kafka_client.pool.calls import Deadline
    from klamm.kafka_client.pool.node import PooledConnection
    from klamm.kafka_client.pool.pool import ConnectionPool
    from klamm.protocol.errors import KafkaApiError


@dataclass(frozen=True, slots=True)
class ClientConfigOp:
    """Change of one config of an entity."""

    key: str
    value: str | None
    """New value. None removes the config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCompatibility:
    """Configs that the clients of one software version support."""

    client_information: str
    """``name/version`` of the client software."""
    supported_configs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfigsDescription:
    """An entity with its own configs and the client versions registered for it."""

    entity: ClientConfigEntity
    configs: Mapping[str, str]
    compatibility: tuple[ClientCompatibility, ...]


async def describe(
    pool: ConnectionPool, deadline: Deadline, entity_filter: EntityFilter
) -> tuple[ClientConfigsDescription, ...]:
    """Return the entities that match the filter.

    Raises:
        UnsupportedVersionError: The broker does not announce the feature ``client.configs``.
        KafkaApiError: The broker rejects the filter.
    """
    request = DescribeClientConfigsRequest(
        components=[
            DescribeClientConfigsRequest.ComponentData(
                entity_type=component.entity_type.value, match_type=component.match_type, match=component.match
            )
            for component in entity_filter.components
        ],
        supported_configs=None,
        resolve_entity=False,
        strict=entity_filter.strict,
    )
    response = await pool.send(
        request, DescribeClientConfigsResponse, deadline=deadline, require=_require_feature, is_whole=True
    )
    pool.check(response)
    return tuple(_description(entry) for entry in response.entries or [])


def _description(entry: DescribeClientConfigsResponse.EntryData) -> ClientConfigsDescription:
    compatibility = tuple(
        ClientCompatibility(
            client_information=version.client_information, supported_configs=tuple(version.supported_configs)
        )
        for component in entry.entity
        for version in component.entity_compatibility
    )
    return ClientConfigsDescription(
        entity=parse_entity([(component.entity_type, component.entity_name) for component in entry.entity]),
        configs={value.key: value.value for value in entry.values},
        compatibility=compatibility,
    )


async def alter(
    pool: ConnectionPool,
    deadline: Deadline,
    alterations: Mapping[ClientConfigEntity, Collection[ClientConfigOp]],
    *,
    validate_only: bool,
    result: PerKeyResult[ClientConfigEntity, None],
) -> None:
    """Send AlterClientConfigs, and complete ``result`` with the outcome of each entity.

    Raises:
        UnsupportedVersionError: The broker does not announce the feature ``client.configs``.
    """

    async def ask(
        node_id: int | None, keys: list[ClientConfigEntity], attempt: Deadline
    ) -> Mapping[ClientConfigEntity, KafkaApiError | None]:
        request = AlterClientConfigsRequest(
            entries=[_alteration(entity, alterations[entity]) for entity in keys], validate_only=validate_only
        )
        response = await pool.send(
            request,
            AlterClientConfigsResponse,
            deadline=attempt,
            node_id=node_id,
            require=_require_feature,
            is_whole=True,
        )
        return {_echoed(entry): result_of(entry.error_code, entry.error_message, None) for entry in response.entries}

    await KeyedCall(what="AlterClientConfigs", ask=ask, settle=result.settle).run(pool, deadline, alterations)


def _alteration(entity: ClientConfigEntity, ops: Collection[ClientConfigOp]) -> AlterClientConfigsRequest.EntryData:
    return AlterClientConfigsRequest.EntryData(
        entity=[
            AlterClientConfigsRequest.EntityData(entity_type=kind.value, entity_name=name)
            for kind, name in entity.components
        ],
        ops=[AlterClientConfigsRequest.OpData(key=op.key, value=op.value or "", remove=op.value is None) for op in ops],
    )


def _echoed(entry: AlterClientConfigsResponse.EntryData) -> ClientConfigEntity:
    """Parse an entity of the response without validation: a rejected entity is returned as it was sent."""
    names = {component.entity_type: component.entity_name for component in entry.entity}
    return ClientConfigEntity(
        user=names.get(EntityType.USER.value),
        client_id=names.get(EntityType.CLIENT_ID.value),
        has_client_id=EntityType.CLIENT_ID.value in names,
    )


def _require_feature(link: PooledConnection) -> None:
    """Raise an error for a broker without the feature, which would read the same bytes as a SCRAM request."""
    if CLIENT_CONFIGS_FEATURE not in link.features:
        raise UnsupportedVersionError(
            f"The broker does not announce the feature {CLIENT_CONFIGS_FEATURE} (KIP-649). klamm's broker does,"
            " and so does klamm gateway with client.configs.enable=true"
        )
