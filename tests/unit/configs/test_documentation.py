"""Documentation of every config."""

from __future__ import annotations

import pytest

from klamm.configs.definitions import (
    ConfigTable,
    broker_configs,
    client_metrics_configs,
    group_configs,
    topic_configs,
)
from klamm.configs.describe import documentation
from klamm.protocol.types import ResourceType


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        (ResourceType.TOPIC, topic_configs()),
        (ResourceType.BROKER, broker_configs()),
        (ResourceType.GROUP, group_configs()),
        (ResourceType.CLIENT_METRICS, client_metrics_configs()),
    ],
)
def test_every_describable_config_has_documentation(kind: ResourceType, table: ConfigTable) -> None:
    for name, definition in table.items():
        if not definition.is_internal:
            sentence = documentation(kind, name)
            assert sentence, name
            assert sentence.endswith("."), name


def test_listener_prefixed_config_has_base_documentation() -> None:
    under = documentation(ResourceType.BROKER, "listener.name.internal.ssl.key.password")
    assert under == documentation(ResourceType.BROKER, "ssl.key.password")


def test_unknown_config_has_no_documentation() -> None:
    assert documentation(ResourceType.BROKER, "no.such") is None
    assert documentation(ResourceType.BROKER_LOGGER, "root") is None
