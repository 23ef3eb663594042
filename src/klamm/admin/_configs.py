"""DescribeConfigs, IncrementalAlterConfigs and AlterConfigs: requests, and one outcome per resource."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.admin import _quorum
from klamm.admin.types import AlterConfigOp, ConfigEntry, ConfigResource, ConfigSynonym
from klamm.kafka_client.pool.keyed_calls import KeyedCall, result_of
from klamm.policy.answers import PolicyOverride
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
    from klamm.kafka_client.pool.calls import Deadline
    from klamm.kafka_client.pool.pool import ConnectionPool
    from klamm.protocol.errors import KafkaApiError

Alterations: TypeAlias = "Mapping[ConfigResource, Collection[AlterConfigOp]]"
Replacements: TypeAlias = "Mapping[ConfigResource, Collection[ConfigEntry]]"
_Outcomes: TypeAlias = "Mapping[ConfigResource, PolicyOverride | KafkaApiError | None]"
_MAX_DIGITS: Final = 10
"""Digits of the largest node id."""


def by_broker(resources: Iterable[ConfigResource]) -> dict[int | None, list[ConfigResource]]:
    """Group resources by destination: BROKER and BROKER_LOGGER go to that broker, all others to any (None).

    A name that cannot be a node id also goes to any broker, which rejects it.
    """
    groups: dict[int | None, list[ConfigResource]] = defaultdict(list)
    for resource in resources:
        is_own = resource.type in {ResourceType.BROKER, ResourceType.BROKER_LOGGER} and _is_node_id(resource.name)
        groups[int(resource.name) if is_own else None].append(resource)
    return groups


def _is_node_id(name: str) -> bool:
    # int() raises ValueError for thousands of digits.
    return name.isdecimal() and len(name) <= _MAX_DIGITS


async def incremental_alter(
    pool: ConnectionPool,
    deadline: Deadline,
    node_id: int | None,
    resources: Alterations,
    *,
    validate_only: bool,
    result: AlterConfigsResult,
) -> None:
    """Send IncrementalAlterConfigs to one broker and settle the resources.

    Raises:
        UnsupportedVersionError: The broker does not offer the API. There is no silent fallback to AlterConfigs.
    """

    async def ask(node_id: int | None, keys: list[ConfigResource], attempt: Deadline) -> _Outcomes:
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    configs=[
                        IncrementalAlterConfigsRequest.AlterableConfig(
                            name=op.config_entry.name, config_operation=op.op_type, value=_text(op.config_entry)
                        )
                        for op in resources[resource]
                    ],
                )
                for resource in keys
            ],
            validate_only=validate_only,
        )
        response = await pool.send(request, IncrementalAlterConfigsResponse, deadline=attempt, node_id=node_id)
        return _altered(response)

    call = KeyedCall(what="IncrementalAlterConfigs", ask=ask, settle=result.settle, node_id=node_id)
    await call.run(pool, deadline, resources)


def _altered(response: IncrementalAlterConfigsResponse | AlterConfigsResponse) -> _Outcomes:
    return {
        _resource(entry.resource_type, entry.resource_name): result_of(
            entry.error_code, entry.error_message, PolicyOverride.of(entry.error_message)
        )
        for entry in response.responses
    }


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
    """Send AlterConfigs to one broker, which removes all configs that it does not name, and settle the resources."""

    async def ask(node_id: int | None, keys: list[ConfigResource], attempt: Deadline) -> _Outcomes:
        request = AlterConfigsRequest(
            resources=[
                AlterConfigsRequest.AlterConfigsResource(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    configs=[
                        AlterConfigsRequest.AlterableConfig(name=entry.name, value=_text(entry))
                        for entry in resources[resource]
                    ],
                )
                for resource in keys
            ],
            validate_only=validate_only,
        )
        return _altered(await pool.send(request, AlterConfigsResponse, deadline=attempt, node_id=node_id))

    call = KeyedCall(what="AlterConfigs", ask=ask, settle=result.settle, node_id=node_id)
    await call.run(pool, deadline, resources)


async def describe(
    pool: ConnectionPool,
    deadline: Deadline,
    node_id: int | None,
    resources: Mapping[ConfigResource, Collection[str] | None],
    *,
    include_synonyms: bool,
    include_documentation: bool,
    is_current: bool = False,
    result: DescribeConfigsResult,
) -> None:
    """Send DescribeConfigs to one broker and settle the resources. A denied resource fails; it is not empty."""

    async def ask(
        node_id: int | None, keys: list[ConfigResource], attempt: Deadline
    ) -> Mapping[ConfigResource, Mapping[str, ConfigEntry] | KafkaApiError]:
        request = DescribeConfigsRequest(
            resources=[_described(resource, resources[resource]) for resource in keys],
            include_synonyms=include_synonyms,
            include_documentation=include_documentation,
        )
        response = await pool.send(
            request, DescribeConfigsResponse, deadline=attempt, node_id=node_id, looked_up=is_current
        )
        return {
            _resource(result.resource_type, result.resource_name): result_of(
                result.error_code,
                result.error_message or None,
                {config.name: _entry(config) for config in result.configs},
            )
            for result in response.results
        }

    has_broker_configs = any(resource.type is ResourceType.BROKER for resource in resources)
    find = (
        functools.partial(_quorum.find_current, pool, deadline, node_id, has_broker_configs=has_broker_configs)
        if is_current
        else None
    )
    call = KeyedCall(what="DescribeConfigs", ask=ask, settle=result.settle, find=find, node_id=node_id)
    await call.run(pool, deadline, resources)


def _described(
    resource: ConfigResource, keys: Collection[str] | None
) -> DescribeConfigsRequest.DescribeConfigsResource:
    return DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=resource.type,
        resource_name=resource.name,
        configuration_keys=None if keys is None else list(keys),
    )


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
    is_kafka_type = resource_type in ResourceType.__members__.values()
    return ConfigResource(ResourceType(resource_type) if is_kafka_type else ResourceType.UNKNOWN, resource_name)
