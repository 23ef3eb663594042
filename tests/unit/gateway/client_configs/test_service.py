"""Start of the client configs in a gateway: creation of their topics."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from klamm.admin.results import CreateTopicsResult, DescribeConfigsResult
from klamm.admin.types import ConfigEntry
from klamm.client_configs.definitions import BrokerLimits
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.registrations import TOPIC as REGISTRATIONS_TOPIC
from klamm.client_configs.registrations import TOPIC_CONFIGS as REGISTRATIONS_TOPIC_CONFIGS
from klamm.client_configs.registrations import encode_key, encode_value, registration
from klamm.gateway.client_configs.config_log import HISTORY_TOPIC, TOPIC
from klamm.gateway.client_configs.service import UpstreamClientConfigs, UpstreamRegistrations
from klamm.gateway.client_configs.store import ClientConfigStore
from klamm.gateway.upstream.internal_topic import InternalTopic, final_code
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.records import RecordsRejectedError
from klamm.protocol.errors import ErrorCode, KafkaApiError, TopicAuthorizationError
from klamm.protocol.records import Record
from klamm.server.time_slice import TimeSlice
from tests.support.relay_rig import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from klamm.admin import ConfigResource

UNREACHABLE = ("127.0.0.1:1",)


class AdminWithoutRights:
    """Admin client of a principal that may not create the topic of the history.

    Args:
        configs: Configs of the topics that exist; None if the principal may not describe them.
    """

    def __init__(self, configs: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._configs = configs

    def describe_configs(self, resources: Mapping[ConfigResource, Collection[str]]) -> DescribeConfigsResult:
        result = DescribeConfigsResult(resources)
        for resource in resources:
            if self._configs is None:
                result.fail(resource, TopicAuthorizationError("Not authorized to access topics"))
            else:
                configs = self._configs[resource.name]
                result.succeed(resource, {key: ConfigEntry(key, value) for key, value in configs.items()})
        return result

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


@pytest.mark.parametrize(
    ("rejection", "code"),
    [
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.MESSAGE_TOO_LARGE),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
async def test_registration_that_is_always_rejected_is_not_to_be_repeated(
    rejection: ErrorCode, code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(_: InternalTopic, records: Sequence[Record]) -> None:
        assert len(records) == 1
        raise RecordsRejectedError(REGISTRATIONS_TOPIC, [rejection])

    monkeypatch.setattr(InternalTopic, "append", reject)
    registrations = UpstreamRegistrations(ConnectionSettings.of(UNREACHABLE, {}, "test"), now_ms=lambda: 0)
    # when
    with pytest.raises(KafkaApiError, match=f"cannot be written: .*{rejection.name}") as error:
        await registrations.log.register(registration(ClientConfigEntity.of_client("a", "b"), "x/1", ["acks"]))
    await registrations.close()
    # then
    assert error.value.error_code is code
    assert registrations.log.image == {}


async def test_registrations_are_loaded_with_pauses() -> None:
    registered = [registration(ClientConfigEntity.of_client("a", f"app{number}"), "x/1", ["acks"]) for number in (1, 2)]
    records = [Record(key=encode_key(each.entity), value=encode_value(each)) for each in registered]
    registrations = UpstreamRegistrations(ConnectionSettings.of(UNREACHABLE, {}, "test"), now_ms=lambda: 0)
    slices = TimeSlice(0)
    await registrations.on_load(records[:1], slices)
    earlier = dict(registrations.log.image)
    # when
    loading = asyncio.create_task(registrations.on_load(records, slices))
    await until(lambda: slices.pauses > len(records))
    image_during_load = dict(registrations.log.image)
    await loading
    await registrations.close()
    # then
    assert image_during_load == earlier
    assert registrations.log.image == {each.entity: {"x/1": ("acks",)} for each in registered}


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


@pytest.mark.parametrize(
    ("name", "key", "value", "wanted"),
    [
        (TOPIC, "cleanup.policy", "delete", "compact"),
        (TOPIC, "cleanup.policy", "compact,delete", "compact"),
        (REGISTRATIONS_TOPIC, "cleanup.policy", "compact", "delete"),
        (REGISTRATIONS_TOPIC, "retention.ms", "604800000", "-1"),
        (REGISTRATIONS_TOPIC, "retention.bytes", "1000", "-1"),
    ],
)
async def test_gateway_is_not_ready_if_retention_removes_records(name: str, key: str, value: str, wanted: str) -> None:
    # given
    compacted = {"cleanup.policy": "compact", "retention.ms": "604800000", "retention.bytes": "-1"}
    configs = {TOPIC: compacted, REGISTRATIONS_TOPIC: dict(REGISTRATIONS_TOPIC_CONFIGS)}
    configs[name] = {**configs[name], key: value}
    admin: Any = AdminWithoutRights(configs)
    service = UpstreamClientConfigs(
        ConnectionSettings.of(UNREACHABLE, {}, "test"), limits=BrokerLimits, now_ms=lambda: 0
    )
    # when
    starting = asyncio.create_task(service.start(admin))
    reason = f"{key} of {name} is {value}, which removes records that are still needed. Set it to {wanted}"
    # then
    await until(lambda: reason in str(service.why_not_ready()))
    starting.cancel()
    await service.close()


async def test_change_fails_if_the_history_cannot_be_created(monkeypatch: pytest.MonkeyPatch) -> None:
    creates: list[Callable[[], Awaitable[None]]] = []
    monkeypatch.setattr(ClientConfigStore, "start", lambda _, create: creates.append(create))
    admin: Any = AdminWithoutRights()
    settings = ConnectionSettings.of(UNREACHABLE, {}, "test")
    service = UpstreamClientConfigs(settings, limits=BrokerLimits, now_ms=lambda: 0)
    starting = asyncio.create_task(service.start(admin))
    await until(lambda: bool(creates))
    starting.cancel()
    await service.close()
    # when
    with pytest.raises(KafkaApiError) as error:
        await creates[0]()
    # then
    assert final_code(error.value) is ErrorCode.UNKNOWN_SERVER_ERROR
