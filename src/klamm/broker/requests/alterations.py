"""Common part of AlterConfigs and IncrementalAlterConfigs: checks, changes and response entries, one per resource."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from klamm.broker.configs.rules import ResourceAlteration
from klamm.broker.requests.checks import MAX_CONFIGS, config_denial, count_error
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.security.acls import AclOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klamm.broker.context import RequestContext


class AlteredResource(Protocol):
    """Resource of a request that alters configs."""

    resource_type: int
    resource_name: str

    @property
    def configs(self) -> Sequence[object]:
        """Configs or operations of the resource."""


Resource = TypeVar("Resource", bound=AlteredResource)
Entry = TypeVar("Entry")


async def alter_resources(
    resources: Sequence[Resource],
    context: RequestContext,
    *,
    to_alteration: Callable[[Resource], ResourceAlteration],
    to_entry: Callable[..., Entry],
    validate_only: bool,
) -> list[Entry]:
    """Alter the configs of resources; return one response entry for each. An error does not affect other resources.

    Args:
        resources: Resources of the request.
        context: Context of the request.
        to_alteration: Function that converts a resource of the request.
        to_entry: Class of the response's entries.
        validate_only: Whether to decide without applying.
    """
    slices = context.time_slice
    checked = await slices.listed(
        config_denial(context, AclOperation.ALTER_CONFIGS, resource.resource_type, resource.resource_name)
        or _oversized(resource)
        or to_alteration(resource)
        for resource in resources
    )
    alterations = [one for one in checked if not isinstance(one, KafkaApiError)]
    altered = await context.services.configs.alter(
        alterations,
        node_id=context.node_id,
        author=context.author,
        validate_only=validate_only,
        time_slice=slices,
    )
    following = iter(altered)
    outcomes = (one if isinstance(one, KafkaApiError) else next(following) for one in checked)
    entries = await slices.listed(
        to_entry(
            error_code=outcome.error_code if isinstance(outcome, KafkaApiError) else ErrorCode.NONE,
            error_message=outcome.error_message if isinstance(outcome, KafkaApiError) else outcome,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource, outcome in zip(resources, outcomes, strict=True)
    )
    await slices.free(alterations, checked, altered)
    return entries


def _oversized(resource: AlteredResource) -> ResourceAlteration | None:
    """Return an alteration with only an error for a resource with too many configs; None for other resources."""
    error = count_error(resource.configs, MAX_CONFIGS, "configs of one resource")
    if error is None:
        return None
    return ResourceAlteration(
        resource_type=resource.resource_type, resource_name=resource.resource_name, operations=(), error=error
    )
