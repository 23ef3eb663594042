"""Configs of groups and of client metrics subscriptions."""

from __future__ import annotations

import pytest

from klamm.configs.groups import ClientMetricsSchema, GroupSchema
from klamm.configs.layers import BrokerLayers
from klamm.configs.operations import plan_incremental_alter
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from klamm.protocol.types import ConfigOperation


def rejection(schema: GroupSchema | ClientMetricsSchema, result: dict[str, str]) -> tuple[ErrorCode, str | None]:
    with pytest.raises(KafkaApiError) as rejected:
        schema.validate(touched=result, result=result)
    return rejected.value.error_code, rejected.value.error_message


GROUP = GroupSchema(group_id="g", layers=BrokerLayers())
METRICS = ClientMetricsSchema(subscription="s")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("no.such.config", "1", "Unknown group config name: no.such.config"),
        (
            "consumer.session.timeout.ms",
            "1",
            "consumer.session.timeout.ms must be in the range 45000 to 60000 inclusive.",
        ),
        (
            "consumer.session.timeout.ms",
            "0",
            "Invalid value 0 for configuration consumer.session.timeout.ms: Value must be at least 1",
        ),
        (
            "share.heartbeat.interval.ms",
            "16000",
            "share.heartbeat.interval.ms must be in the range 5000 to 15000 inclusive.",
        ),
        (
            "streams.num.standby.replicas",
            "9",
            "streams.num.standby.replicas must be less than or equal to 2",
        ),
    ],
)
def test_unknown_or_invalid_group_config_is_an_invalid_config(name: str, value: str, message: str) -> None:
    """K339-34: A value the key's validator rejects fails the resource; code 40."""
    assert rejection(GROUP, {name: value}) == (ErrorCode.INVALID_CONFIG, message)


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        (GROUP, ("streams.session.timeout.ms", "share.isolation.level")),
        (GROUP, ("consumer.assignor.offload.enable", "consumer.assignment.interval.ms")),
        (METRICS, ("match", "interval.ms")),
    ],
)
def test_of_several_invalid_configs_the_error_names_that_of_kafka(
    schema: GroupSchema | ClientMetricsSchema, names: tuple[str, str]
) -> None:
    _, message = rejection(schema, dict.fromkeys(names, "x"))
    assert message is not None
    assert message.startswith(f"Invalid value x for configuration {names[1]}: ")


def test_session_timeout_must_exceed_heartbeat_interval() -> None:
    wide = GroupSchema(
        group_id="g",
        layers=BrokerLayers(
            static={"group.consumer.min.session.timeout.ms": "1", "group.consumer.min.heartbeat.interval.ms": "1"}
        ),
    )
    configs = {"consumer.session.timeout.ms": "6000", "consumer.heartbeat.interval.ms": "6000"}
    assert (
        rejection(wide, configs)[1] == "consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms"
    )


def test_default_group_resource_is_rejected() -> None:
    assert rejection(GroupSchema(group_id="", layers=BrokerLayers()), {}) == (
        ErrorCode.INVALID_REQUEST,
        "Default group resources are not allowed.",
    )


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("interval.ms", "99", ErrorCode.INVALID_REQUEST),
        ("interval.ms", "3600001", ErrorCode.INVALID_REQUEST),
        ("interval.ms", "abc", ErrorCode.INVALID_CONFIG),
        ("zz", "1", ErrorCode.INVALID_REQUEST),
        ("match", "abc", ErrorCode.INVALID_CONFIG),
        ("match", "x=y", ErrorCode.INVALID_CONFIG),
        ("match", "client_id=[", ErrorCode.INVALID_CONFIG),
        ("match", "client_id=a=b", ErrorCode.INVALID_CONFIG),
        ("match", "client_id=a,", ErrorCode.INVALID_CONFIG),
        ("match", "client_id=", ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_client_metrics_config_is_rejected_like_kafka(name: str, value: str, code: ErrorCode) -> None:
    assert rejection(METRICS, {name: value})[0] is code


@pytest.mark.parametrize(
    ("name", "value"),
    [("interval.ms", " 500 "), ("metrics", "*"), ("match", ""), ("match", "client_id=\\p{L}+,client_software_name=x")],
)
def test_valid_client_metrics_config_is_accepted_like_kafka(name: str, value: str) -> None:
    METRICS.validate(touched={name: value}, result={name: value})


def test_empty_subscription_name_is_rejected() -> None:
    assert rejection(ClientMetricsSchema(subscription=""), {}) == (
        ErrorCode.INVALID_REQUEST,
        "Subscription name can't be empty",
    )


@pytest.mark.parametrize("schema", [GROUP, METRICS])
def test_append_on_group_or_client_metrics_config_is_rejected(schema: GroupSchema | ClientMetricsSchema) -> None:
    """K339-16: APPEND or SUBTRACT on a key that is not a list fails the resource with 42."""
    append = IncrementalAlterConfigsRequest.AlterableConfig(
        name="metrics", config_operation=ConfigOperation.APPEND, value="a."
    )
    with pytest.raises(KafkaApiError) as rejected:
        plan_incremental_alter({}, [append], schema)
    assert rejected.value.error_code is ErrorCode.INVALID_REQUEST
    assert rejected.value.error_message == "Can't APPEND to key metrics because its type is not LIST."
