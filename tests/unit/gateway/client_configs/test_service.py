"""Start of the client configs in a gateway: creation of their topics."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from klamm.admin.results import CreateTopicsResult
from klamm.client_configs.definitions import BrokerLimits
from klamm.client_configs.registrations import TOPIC as REGISTRATIONS_TOPIC
from klamm.gateway.client_configs.config_log import HISTORY_TOPIC, TOPIC
from klamm.gateway.client_configs.service import UpstreamClientConfigs
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.protocol.errors import TopicAuthorizationError
from tests.support.relay_rig import until

if TYPE_CHECKING:
    from collections.abc import Collection

    import pytest

UNREACHABLE = ("127.0.0.1:1",)


class AdminWithoutRights:
    """Admin client of a principal that may not create the topic of the history."""

    async def describe_cluster(self, **_: Any) -> Any:
        return SimpleNamespace(features={}, nodes=[None])

    async def list_topics(self, **_: Any) -> Collection[str]:
        return {TOPIC, REGISTRATIONS_TOPIC}

    def create_topics(self, topics: Collection[Any], *, validate_only: bool) -> CreateTopicsResult:
        assert not validate_only
        assert [topic.name for topic in topics] == [HISTORY_TOPIC]
        result = CreateTopicsResult([HISTORY_TOPIC])
        result.fail(HISTORY_TOPIC, TopicAuthorizationError("Not authorized to access topics"))
        return result


async def test_configs_are_read_although_their_history_cannot_be_created(caplog: pytest.LogCaptureFixture) -> None:
    admin: Any = AdminWithoutRights()
    settings = ConnectionSettings.of(UNREACHABLE, {}, "test")
    service = UpstreamClientConfigs(settings, limits=BrokerLimits, now_ms=lambda: 0)
    starting = asyncio.create_task(service.start(admin))
    # when: the topic of the configs is read
    await until(lambda: f"Internal topic {TOPIC} cannot be read" in caplog.text)
    starting.cancel()
    await service.close()
    # then: not even the attempt failed for the history
    (line,) = (each for each in caplog.messages if each.startswith(f"Internal topic {TOPIC} "))
    assert HISTORY_TOPIC not in line
    assert f"without their history: {HISTORY_TOPIC} cannot be created" in caplog.text
