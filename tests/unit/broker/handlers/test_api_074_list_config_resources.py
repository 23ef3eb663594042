"""ListConfigResources on the wire."""

from __future__ import annotations

import asyncio

import pytest

from klamm.broker.handlers.api_074_list_config_resources import API, handle
from klamm.protocol.messages.list_config_resources import ListConfigResourcesRequest
from klamm.storage.metadata.changes import PutConfig
from tests.support.configs import MemoryConfigStore, make_context, make_service


def listed(*types: int, version: int = 1) -> tuple[int, list[tuple[int, str]]]:
    configs = [
        PutConfig(resource_type=16, resource_name="subscription", name="interval.ms", value="500"),
        PutConfig(resource_type=32, resource_name="group", name="consumer.session.timeout.ms", value="50000"),
        PutConfig(resource_type=4, resource_name="", name="message.max.bytes", value="5"),
    ]
    service = make_service(MemoryConfigStore(topics=["b", "a"], configs=configs), node_ids=[1, 2])
    request = ListConfigResourcesRequest(resource_types=list(types))
    response = asyncio.run(handle(request, make_context(service, api_version=version)))
    return response.error_code, [(r.resource_type, r.resource_name) for r in response.config_resources]


def test_versions_0_and_1_are_served() -> None:
    assert (API.key, API.min_version, API.max_version) == (74, 0, 1)


def test_empty_types_list_all_but_the_cluster_default() -> None:
    assert listed() == (
        0,
        [(2, "a"), (2, "b"), (4, "1"), (4, "2"), (8, "1"), (8, "2"), (16, "subscription"), (32, "group")],
    )


def test_types_filter_selects_resources() -> None:
    assert listed(32, 4) == (0, [(4, "1"), (4, "2"), (32, "group")])


def test_version_0_lists_client_metrics_only() -> None:
    assert listed(version=0) == (0, [(16, "subscription")])


@pytest.mark.parametrize("kind", [0, 1, 3, 99])
def test_unlistable_type_is_an_unsupported_version(kind: int) -> None:
    assert listed(2, kind) == (35, [])
