"""The legacy AlterConfigs on the wire."""

from __future__ import annotations

import asyncio

from klamm.broker.handlers.api_033_alter_configs import API, handle
from klamm.protocol.messages.alter_configs import AlterConfigsRequest
from tests.support.configs import MemoryConfigStore, make_context, make_service

Resource = AlterConfigsRequest.AlterConfigsResource
Config = AlterConfigsRequest.AlterableConfig


def test_alter_configs_is_still_served() -> None:
    """K339-01: The broker offers a new RPC IncrementalAlterConfigs; AlterConfigs stays."""
    assert (API.key, API.min_version, API.max_version) == (33, 0, 2)


def test_unnamed_configs_are_removed_and_each_resource_has_a_result() -> None:
    """K339-25: Old AlterConfigs keeps replace-all semantics: keys left out are removed."""
    store = MemoryConfigStore(topics=["t"])
    service = make_service(store)

    def alter(*resources: AlterConfigsRequest.AlterConfigsResource, validate_only: bool = False) -> list[int]:
        request = AlterConfigsRequest(resources=list(resources), validate_only=validate_only)
        return [r.error_code for r in asyncio.run(handle(request, make_context(service))).responses]

    both = [Config(name="flush.ms", value="5"), Config(name="segment.ms", value="7")]
    assert alter(Resource(resource_type=2, resource_name="t", configs=both)) == [0]
    existing = Resource(resource_type=2, resource_name="t", configs=[Config(name="segment.ms", value="8")])
    missing = Resource(resource_type=2, resource_name="missing", configs=[])
    assert alter(existing, missing, validate_only=True) == [0, 3]
    assert {c.name: c.value for c in store.load_configs()} == {"flush.ms": "5", "segment.ms": "7"}
    assert alter(existing, missing) == [0, 3]
    assert {c.name: c.value for c in store.load_configs()} == {"segment.ms": "8"}


def test_duplicate_resource_is_rejected_twice() -> None:
    """K339-31: where Kafka leaves the client waiting."""
    request = AlterConfigsRequest(resources=[Resource(resource_type=2, resource_name="t", configs=[])] * 2)
    response = asyncio.run(handle(request, make_context(make_service())))
    assert [r.error_code for r in response.responses] == [42, 42]


def test_resource_with_too_many_configs_counts_as_a_duplicate() -> None:
    # given
    store, config = MemoryConfigStore(topics=["t"]), Config(name="flush.ms", value="5")
    resources = [Resource(resource_type=2, resource_name="t", configs=[config] * size) for size in (10_001, 1)]
    # when
    response = asyncio.run(handle(AlterConfigsRequest(resources=resources), make_context(make_service(store))))
    # then
    assert [r.error_code for r in response.responses] == [42, 42]
    assert store.load_configs() == []
