"""The generic config APIs have no resource type for users and client ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from klamm import Broker

INVALID_REQUEST, INVALID_CONFIG = 42, 40


def alter(broker: Broker, resource_type: int, name: str) -> int:
    config = IncrementalAlterConfigsRequest.AlterableConfig(name="acks", config_operation=0, value="all")
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=resource_type, resource_name=name, configs=[config]
    )
    with WireClient(broker.bootstrap_servers) as client:
        request = IncrementalAlterConfigsRequest(resources=[resource])
        (response,) = client.ask(request, IncrementalAlterConfigsResponse, 1).responses
    return response.error_code


@pytest.mark.parametrize(
    ("resource_type", "error"),
    [(16, INVALID_REQUEST), (32, INVALID_CONFIG), (64, INVALID_REQUEST), (1, INVALID_REQUEST), (3, INVALID_REQUEST)],
)
def test_config_apis_have_no_resource_type_for_clients(
    klamm_session_broker: Broker, resource_type: int, error: int
) -> None:
    """K649-64: 16 and 32 are client metrics and groups, which have no acks; the others are nothing."""
    assert alter(klamm_session_broker, resource_type, "app1") == error
