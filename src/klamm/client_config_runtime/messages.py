"""DescribeClientConfigs and AlterClientConfigs between wire messages and the rules of client configs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.client_configs.plan import AlterEntry, AlterOp
from klamm.protocol.errors import InvalidRequestError
from klamm.protocol.messages.alter_client_configs import AlterClientConfigsRequest, AlterClientConfigsResponse
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from klamm.server.attempt import NONE, ApiError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from klamm.client_configs.description import DescribedEntity
    from klamm.client_configs.entities import ClientConfigEntity
    from klamm.client_configs.plan import EntryPlan


MAX_PARTS: Final = 1_000
"""Maximum number of components or ops of one entity, or of components of a filter. They are processed without a pause.
"""


def check_parts(parts: Sequence[object], what: str) -> None:
    """Check the number of parts of an entity or a filter.

    Raises:
        InvalidRequestError: There are more than ``MAX_PARTS``.
    """
    if len(parts) > MAX_PARTS:
        raise InvalidRequestError(f"{len(parts)} {what} are more than the {MAX_PARTS} that are allowed at once")


def components_of(request: DescribeClientConfigsRequest) -> list[tuple[str, int, str | None]]:
    """Return entity type, match type and match of each component of a filter."""
    return [(component.entity_type, component.match_type, component.match) for component in request.components]


def described_entry(described: DescribedEntity) -> DescribeClientConfigsResponse.EntryData:
    """Return the entry of an entity in the response to an operator."""
    return DescribeClientConfigsResponse.EntryData(
        entity=[
            DescribeClientConfigsResponse.EntityData(
                entity_type=kind.value,
                entity_name=name,
                entity_compatibility=[
                    DescribeClientConfigsResponse.VersionData(
                        client_information=information, supported_configs=list(supported)
                    )
                    for information, supported in described.compatibility_of(kind)
                ],
            )
            for kind, name in described.entity.components
        ],
        values=_values(described.values),
    )


def resolved_entry(
    entity: ClientConfigEntity, values: Iterable[tuple[str, str]]
) -> DescribeClientConfigsResponse.EntryData:
    """Return the entry in the response to an application that requests its own configs."""
    return DescribeClientConfigsResponse.EntryData(
        entity=[
            DescribeClientConfigsResponse.EntityData(entity_type=kind.value, entity_name=name)
            for kind, name in entity.components
        ],
        values=_values(values),
    )


def _values(values: Iterable[tuple[str, str]]) -> list[DescribeClientConfigsResponse.ValueData]:
    return [DescribeClientConfigsResponse.ValueData(key=key, value=value) for key, value in values]


def alter_entry(entry: AlterClientConfigsRequest.EntryData) -> AlterEntry:
    """Return an entry of a request. If it has too many parts, the first ones identify the entity."""
    return AlterEntry(
        components=tuple((component.entity_type, component.entity_name) for component in entry.entity[:MAX_PARTS]),
        ops=tuple(AlterOp(key=op.key, value=op.value, remove=op.remove) for op in entry.ops[:MAX_PARTS]),
    )


def altered_entry(entry: AlterEntry, outcome: ApiError) -> AlterClientConfigsResponse.EntryData:
    """Return the entry of a response that repeats an entry of the request with its outcome."""
    return AlterClientConfigsResponse.EntryData(
        error_code=outcome.error_code,
        error_message=outcome.error_message,
        entity=[
            AlterClientConfigsResponse.EntityData(entity_type=entity_type, entity_name=name)
            for entity_type, name in entry.components
        ],
    )


def outcome_of(plan: EntryPlan) -> ApiError:
    """Return the outcome of an entry."""
    return NONE if plan.error is None else ApiError(plan.error.error_code, plan.error.error_message)
