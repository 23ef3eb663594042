"""Configs and producers in the fields of DescribeConfigs and DescribeProducers (KIP-133, KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.protocol.messages.describe_configs import DescribeConfigsRequest
from klamm.protocol.messages.describe_producers import DescribeProducersRequest
from klamm.protocol.types import by_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from klamm.protocol.messages.describe_configs import DescribeConfigsResponse
    from klamm.protocol.types import PartitionTuple, ResourceType


def describe_configs_request(
    kind: ResourceType, names: Iterable[object], keys: Sequence[str]
) -> DescribeConfigsRequest:
    """Return the request for some configs of resources of one type."""
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=str(name), configuration_keys=list(keys)
        )
        for name in names
    ]
    return DescribeConfigsRequest(resources=resources)


def described_configs(response: DescribeConfigsResponse) -> dict[str, dict[str, str | None]]:
    """Return the values by resource and key. Resources that the broker does not describe are left out."""
    return {
        result.resource_name: {config.name: config.value for config in result.configs}
        for result in response.results
        if not result.error_code
    }


def describe_producers_request(partitions: Iterable[PartitionTuple]) -> DescribeProducersRequest:
    """Return the request for the producers of partitions."""
    topics = [
        DescribeProducersRequest.TopicRequest(name=name, partition_indexes=indexes)
        for name, indexes in by_topic(partitions).items()
    ]
    return DescribeProducersRequest(topics=topics)
