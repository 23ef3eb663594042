"""DescribeConfigs, IncrementalAlterConfigs and AlterConfigs: requests, and one outcome per resource."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

from klamm.admin.types import AlterConfigOp, ConfigEntry, ConfigResource, ConfigSynonym
from klamm.client.errors import api_error
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.types import ConfigSource, ResourceType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from klamm.admin.results import AlterConfigsResult, DescribeConfigsResult
    from klamm.client.pool import ConnectionPool, Deadline

Alterations: TypeAlias = "Mapping[ConfigResource, Collection[AlterConfigOp]]"
Replacements: TypeAlias = "Mapping[ConfigResource, Collection[ConfigEntry]]"


def by_broker(resources: Iterable[ConfigResource]) -> dict[int | None, list[ConfigResource]]:
    """Group resources by destination: BROKER and BROKER_LOGGER go to that broker, all others to any (None)."""
    groups: dict[int | None, list[ConfigResource]] = defaultdict(list)
    for resource in resources:
        is_own = resource.type in {ResourceType.BROKER, ResourceType.BROKER_LOGGER} and resource.name.isdecimal()
        groups[int(resource.name) if is_own else None].append(resource)
    return groups


async def incremental_alter(
    pool: ConnectionPool,
    deadline: Deadline,
    node_id: int | None,
    resources: Alterations,
    *,
    validate_only: bool,
    result: AlterConfigsResult,
) -> None:
    """Send one IncrementalAlterConfigs request and settle its resources.

    Raises:
        UnsupportedVersionError: The broker does not offer the API. There is no silent fallback to AlterConfigs.
    """
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=resource.type,
                resource_name=resource.name,
                configs=[
                    IncrementalAlterConfigsRequest.AlterableConfig(
                        name=op.config_entry.name, config_operation=op.op_type, value=_text(op.config_entry)
                    )
                    for op in ops
                ],
            )
            for resource, ops in resources.items()
        ],
        validate_only=validate_only,
    )
    response = await pool.send(
        request,
        IncrementalAlterConfigsResponse,
        deadline=deadline,
        node_id=node_id,
        retry_on=lambda answer: _not_controller(entry.error_code for entry in answer.responses),
    )
    for entry in response.responses:
        _settle(result, entry.resource_type, entry.resource_name, entry.error_code, entry.error_message)


def _text(entry: ConfigEntry) -> str | None:
    """Return a value in its wire form.

    Raises:
        TypeError: The value is not a string, for example a number. Kafka's config values are strings.
    """
    value: object = entry.value
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"{entry.name}: {value!r}: expected a string, as in ConfigEntry({entry.name!r}, {str(value)!r})")


async def replace_all(
    pool: ConnectionPool,
    deadline: Deadline,
    node_id: int | None,
    resources: Replacements,
    *,
    validate_only: bool,
    result: AlterConfigsResult,
) -> None:
    """Send one AlterConfigs request, which removes all configs that it does not name, and settle its resources."""
    request = AlterConfigsRequest(
        resources=[
            AlterConfigsRequest.AlterConfigsResource(
                resource_type=resource.type,
                resource_name=resource.name,
                configs=[AlterConfigsRequest.AlterableConfig(name=entry.name, value=_text(entry)) for entry in entries],
            )
            for resource, entries in resources.items()
        ],
        validate_only=validate_only,
    )
    response = await pool.send(
        request,
        AlterConfigsResponse,
        deadline=deadline,
        node_id=node_id,
        retry_on=lambda answer: _not_controller(entry.error_code for entry in answer.responses),
    )
    for entry in response.responses:
        _settle(result, entry.resource_type, entry.resource_name, entry.error_code, entry.error_message)


async def describe(
    pool: ConnectionPool,
    deadline: Deadline,
    node_id: int | None,
    resources: Mapping[ConfigResource, Collection[str] | None],
    *,
    include_synonyms: bool,
    include_documentation: bool,
    result: DescribeConfigsResult,
) -> None:
    """Send one DescribeConfigs request and settle its resources. A denied resource fails; it is not returned empty."""
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=resource.type,
                resource_name=resource.name,
                configuration_keys=None if keys is None else list(keys),
            )
            for resource, keys in resources.items()
        ],
        include_synonyms=include_synonyms,
        include_documentation=include_documentation,
    )
    response = await pool.send(request, DescribeConfigsResponse, deadline=deadline, node_id=node_id)
    for described in response.results:
        resource = _resource(described.resource_type, described.resource_name)
        if described.error_code != ErrorCode.NONE:
            result.fail(resource, api_error(described.error_code, described.error_message or None))
        else:
            result.succeed(resource, {config.name: _entry(config) for config in described.configs})


def _entry(config: DescribeConfigsResponse.DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        config.name,
        config.value,
        source=ConfigSource(config.config_source),
        is_sensitive=config.is_sensitive,
        is_read_only=config.read_only,
        synonyms=tuple(
            ConfigSynonym(synonym.name, synonym.value, ConfigSource(synonym.source)) for synonym in config.synonyms
        ),
        config_type=config.config_type,
        documentation=config.documentation or None,
    )


def _resource(resource_type: int, resource_name: str) -> ConfigResource:
    known = resource_type in ResourceType.__members__.values()
    return ConfigResource(ResourceType(resource_type) if known else ResourceType.UNKNOWN, resource_name)


def _settle(
    result: AlterConfigsResult, resource_type: int, resource_name: str, error_code: int, error_message: str | None
) -> None:
    resource = _resource(resource_type, resource_name)
    if error_code == ErrorCode.NONE:
        result.succeed(resource, None)
    else:
        result.fail(resource, api_error(error_code, error_message))


def _not_controller(codes: Iterable[int]) -> int:
    return next((code for code in codes if code == ErrorCode.NOT_CONTROLLER), 0)
