"""DescribeClientConfigs and AlterClientConfigs, as the broker and the gateway answer them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.client_config_runtime.source import describe
from klamm.client_configs.description import parse_filter
from klamm.client_configs.plan import MAX_OPS, AlterEntry, AlterOp
from klamm.client_configs.registrations import client_information, registration
from klamm.client_configs.resolution import asking_entity
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ClusterAuthorizationError, InvalidRequestError
from klamm.protocol.messages.alter_client_configs import AlterClientConfigsRequest, AlterClientConfigsResponse
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from klamm.server.attempt import NONE, ApiError, attempt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from klamm.client_config_runtime.source import ClientConfigSource
    from klamm.client_configs.description import DescribedEntity
    from klamm.client_configs.entities import ClientConfigEntity
    from klamm.client_configs.plan import EntryPlan
    from klamm.history.change import Author
    from klamm.server.session import Session
    from klamm.server.time_slice import TimeSlice


_MAX_COMPONENTS: Final = 1_000
"""Maximum number of components of a filter, or of one entity in a response. They are processed without a pause."""


async def describe_client_configs(
    source: ClientConfigSource,
    request: DescribeClientConfigsRequest,
    session: Session,
    *,
    client_id: str | None,
    is_allowed: bool,
    slices: TimeSlice,
) -> DescribeClientConfigsResponse:
    """Return the configs for an operator, or for an application that requests its own and thereby registers.

    Args:
        source: Owner of the client configs.
        request: The request.
        session: Session of the client.
        client_id: Client id of the request header.
        is_allowed: Whether the client may DESCRIBE_CONFIGS on the cluster, which an operator needs.
        slices: Time slice of the request.
    """

    async def step() -> list[DescribeClientConfigsResponse.EntryData]:
        _check_components(request.components)
        if request.resolve_entity:
            return [await _resolve(source, request, session, client_id)]
        _check_right(is_allowed=is_allowed)
        wanted = parse_filter(_components_of(request), strict=request.strict)
        source.check_loaded(with_registrations=True)
        return await slices.listed(
            map(_described_entry, await describe(wanted, source.configs, source.registered, slices))
        )

    entries, error = await attempt(step, api=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)
    return DescribeClientConfigsResponse(
        error_code=error.error_code, error_message=error.error_message, entries=entries
    )


async def _resolve(
    source: ClientConfigSource, request: DescribeClientConfigsRequest, session: Session, client_id: str | None
) -> DescribeClientConfigsResponse.EntryData:
    source.check_loaded(with_registrations=False)  # a client would read an empty answer as the removal of all configs
    entity = asking_entity(_components_of(request), principal_name=session.principal_name, header_client_id=client_id)
    if request.supported_configs is not None:
        information = client_information(session.software_name, session.software_version)
        await source.register(registration(entity, information, request.supported_configs))
    values = tuple(source.resolve(entity).items())
    session.fetched_configs, session.fetched_at_ms = tuple(sorted(values)), session.last_seen_ms
    return _resolved_entry(entity, values)


async def alter_client_configs(
    source: ClientConfigSource,
    request: AlterClientConfigsRequest,
    *,
    author: Author,
    is_allowed: bool,
    slices: TimeSlice,
) -> AlterClientConfigsResponse:
    """Return every entry of the request with its outcome.

    Args:
        source: Owner of the client configs.
        request: The request.
        author: Author of the request.
        is_allowed: Whether the client may ALTER_CONFIGS on the cluster.
        slices: Time slice of the request.
    """
    entries = await slices.listed(map(_alter_entry, request.entries))

    async def step() -> Sequence[EntryPlan]:
        _check_right(is_allowed=is_allowed)
        return await source.alter(entries, validate_only=request.validate_only, author=author, slices=slices)

    plans, error = await attempt(step, api=ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    outcomes = [error] * len(entries) if plans is None else await slices.listed(map(_outcome_of, plans))
    return AlterClientConfigsResponse(
        entries=[
            _altered_entry(entry, outcome) async for entry, outcome in slices.over(zip(entries, outcomes, strict=True))
        ]
    )


def _check_right(*, is_allowed: bool) -> None:
    """Raise ClusterAuthorizationError unless the client has the right."""
    if not is_allowed:
        raise ClusterAuthorizationError("Cluster authorization failed.")


def _check_components(components: Sequence[object]) -> None:
    """Check the number of components of a filter.

    Raises:
        InvalidRequestError: There are more than ``_MAX_COMPONENTS``.
    """
    if len(components) > _MAX_COMPONENTS:
        raise InvalidRequestError(
            f"{len(components)} components of a filter are more than the {_MAX_COMPONENTS} that are allowed at once"
        )


def _components_of(request: DescribeClientConfigsRequest) -> list[tuple[str, int, str | None]]:
    """Return entity type, match type and match of each component of a filter."""
    return [(component.entity_type, component.match_type, component.match) for component in request.components]


def _described_entry(described: DescribedEntity) -> DescribeClientConfigsResponse.EntryData:
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


def _resolved_entry(
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


def _alter_entry(entry: AlterClientConfigsRequest.EntryData) -> AlterEntry:
    """Return an entry of a request. If it has too many parts, it has enough of them to be rejected."""
    return AlterEntry(
        components=tuple(
            (component.entity_type, component.entity_name) for component in entry.entity[:_MAX_COMPONENTS]
        ),
        ops=tuple(AlterOp(key=op.key, value=op.value, remove=op.remove) for op in entry.ops[: MAX_OPS + 1]),
    )


def _altered_entry(entry: AlterEntry, outcome: ApiError) -> AlterClientConfigsResponse.EntryData:
    """Return the entry of a response that repeats an entry of the request with its outcome."""
    return AlterClientConfigsResponse.EntryData(
        error_code=outcome.error_code,
        error_message=outcome.error_message,
        entity=[
            AlterClientConfigsResponse.EntityData(entity_type=entity_type, entity_name=name)
            for entity_type, name in entry.components
        ],
    )


def _outcome_of(plan: EntryPlan) -> ApiError:
    """Return the outcome of an entry."""
    return NONE if plan.error is None else ApiError(plan.error.error_code, plan.error.error_message)
