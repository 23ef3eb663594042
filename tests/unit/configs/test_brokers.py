"""Configs of a broker and of the cluster default."""

from __future__ import annotations

import pytest

from klamm.configs.brokers import BrokerSchema, check_broker_settings
from klamm.configs.layers import BrokerLayers
from klamm.configs.operations import apply_changes, plan_incremental_alter
from klamm.protocol.errors import ErrorCode, InvalidConfigError, KafkaApiError
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from klamm.protocol.types import ConfigOperation

CLUSTER = {"min.insync.replicas": "1"}
SET, DELETE, APPEND, SUBTRACT = ConfigOperation


def alter(
    *operations: tuple[str, int, str | None], cluster: bool = False, layers: BrokerLayers | None = None
) -> dict[str, str]:
    layers = layers or BrokerLayers(cluster=CLUSTER)
    schema = BrokerSchema(layers=layers, is_cluster_default=cluster)
    current = layers.cluster if cluster else layers.dynamic
    planned = [
        IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=kind, value=value)
        for name, kind, value in operations
    ]
    return apply_changes(current, plan_incremental_alter(current, planned, schema))


def rejection(*operations: tuple[str, int, str | None], cluster: bool = False) -> tuple[ErrorCode, str | None]:
    with pytest.raises(KafkaApiError) as rejected:
        alter(*operations, cluster=cluster)
    return rejected.value.error_code, rejected.value.error_message


@pytest.mark.parametrize("cluster", [False, True])
def test_dynamic_config_is_settable_per_broker_and_cluster(cluster: bool) -> None:
    """K339-37: Broker resource: name = own broker id, or "" = cluster default; other id -> 42."""
    assert alter(("message.max.bytes", SET, "2000000"), cluster=cluster)["message.max.bytes"] == "2000000"


def test_static_configs_are_rejected_together() -> None:
    assert rejection(("num.partitions", SET, "5"), ("message.max.bytes", SET, "x"), ("broker.rack", SET, "a")) == (
        ErrorCode.INVALID_REQUEST,
        "Cannot update these configs dynamically: [num.partitions, broker.rack]",
    )


def test_delete_of_static_config_succeeds() -> None:
    assert alter(("num.partitions", DELETE, None)) == {}


def test_password_config_needs_listener_prefix_and_broker_id() -> None:
    """K339-24: Sensitive values are never returned by describe and are not lost when another key is altered."""
    keystore = "listener.name.internal.ssl.keystore.password"
    assert rejection(("ssl.keystore.password", SET, "secret"))[1] == (
        "These security configs can be dynamically updated only per-listener using the listener prefix: "
        "[ssl.keystore.password]"
    )
    assert alter((keystore, SET, "secret")) == {keystore: "secret"}
    assert rejection((keystore, SET, "secret"), cluster=True)[1] == (
        f"Cannot update these configs at default cluster level, broker id must be specified: [{keystore}]"
    )


def test_listener_connection_limit_is_settable_as_cluster_default() -> None:
    limit = "listener.name.internal.max.connections"
    assert alter((limit, SET, "5"), cluster=True) == {**CLUSTER, limit: "5"}
    assert rejection((limit, SET, "abc"), cluster=True)[1] == (
        "Invalid value abc for configuration max.connections: Not a number of type INT"
    )


def test_invalid_broker_config_value_is_an_invalid_request() -> None:
    """K339-34: A value the key's validator rejects fails the resource; code 40."""
    assert rejection(("log.flush.interval.messages", SET, "abc")) == (
        ErrorCode.INVALID_REQUEST,
        "Invalid value abc for configuration log.flush.interval.messages: Not a number of type LONG",
    )


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (("errors.deadletterqueue.auto.create.topics.enable", "message.max.bytes"), "message.max.bytes"),
        (("log.cleanup.policy", "group.consumer.assignment.interval.ms"), "group.consumer.assignment.interval.ms"),
        (("log.segment.bytes", "leader.replication.throttled.rate"), "leader.replication.throttled.rate"),
        (("log.segment.bytes", "listener.name.plaintext.num.network.threads"), "num.network.threads"),
    ],
)
def test_of_several_invalid_broker_configs_the_error_names_that_of_kafka(names: tuple[str, str], first: str) -> None:
    _, message = rejection(*((name, SET, "x") for name in names))
    assert message is not None
    assert message.startswith(f"Invalid value x for configuration {first}: ")


def test_unknown_broker_config_is_accepted() -> None:
    assert alter(("conformance.no.such.config", SET, "1")) == {"conformance.no.such.config": "1"}


@pytest.mark.parametrize("name", ["log.flush.interval.messages", "num.io.threads"])
@pytest.mark.parametrize("kind", [APPEND, SUBTRACT])
def test_append_and_subtract_need_a_list_on_brokers_too(kind: ConfigOperation, name: str) -> None:
    """K339-16: APPEND or SUBTRACT on a key that is not a list fails the resource with 42."""
    assert rejection((name, kind, "5")) == (
        ErrorCode.INVALID_REQUEST,
        f"Config value {kind.name.lower()} is not allowed for config key: {name}",
    )


@pytest.mark.parametrize("kind", [APPEND, SUBTRACT])
def test_append_and_subtract_on_unknown_config_are_rejected(kind: ConfigOperation) -> None:
    assert rejection(("no.such.list", kind, "5")) == (ErrorCode.INVALID_CONFIG, "Unknown config name: no.such.list")


def test_append_on_broker_starts_from_effective_value() -> None:
    """K339-11: APPEND on an unset list key starts from the default in force (what describe shows: dynamic broker,
    static or built-in default).
    """
    layers = BrokerLayers(cluster={**CLUSTER, "log.cleanup.policy": "compact"}, static={"log.cleanup.policy": "delete"})
    assert alter(("log.cleanup.policy", APPEND, "delete"), layers=layers) == {"log.cleanup.policy": "compact,delete"}
    layers = BrokerLayers(cluster=CLUSTER, static={"log.cleanup.policy": "compact"})
    assert alter(("log.cleanup.policy", APPEND, "delete"), layers=layers, cluster=True) == {
        **CLUSTER,
        "log.cleanup.policy": "compact,delete",
    }


def test_unknown_operation_on_broker_is_an_invalid_request() -> None:
    """K339-30: Unknown op byte (e.g. 9) fails that resource with 42, neighbours are applied."""
    assert rejection(("log.flush.interval.messages", 7, "5")) == (
        ErrorCode.INVALID_REQUEST,
        "Unknown operations type 7",
    )


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("num.io.threads", "100", "num.io.threads=100, value should not be greater than double the current value 8"),
        ("num.io.threads", "1", "num.io.threads=1, value should be at least half the current value 8"),
    ],
)
def test_thread_pool_resize_is_limited_to_double_or_half(name: str, value: str, reason: str) -> None:
    code, message = rejection((name, SET, value))
    assert code is ErrorCode.INVALID_REQUEST
    assert message == (
        "Invalid value org.apache.kafka.common.config.ConfigException: "
        f"Dynamic thread count update validation failed for {reason} for configuration Invalid dynamic configuration"
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("log.retention.ms", "0", "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"),
        ("log.roll.ms", "0", "log.roll.ms must be greater than or equal to 1"),
        ("log.roll.jitter.ms", "-1", "log.roll.jitter.ms must be greater than or equal to 0"),
        (
            "log.cleaner.dedupe.buffer.size",
            "5",
            "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
        ),
        ("log.cleaner.threads", "0", "Log cleaner threads should be at least 1"),
        ("log.cleaner.threads", "5", "Log cleaner threads cannot be increased to more than double the current value 1"),
        ("log.local.retention.ms", "-1", "Value must not be -1 as log.retention.ms value is set as 604800000."),
        ("log.local.retention.ms", "99999999999", "must not be more than log.retention.ms property value: 604800000"),
        ("max.connections.per.ip.overrides", "abc", "max.connections.per.ip.overrides"),
        ("max.connections.per.ip.overrides", "127.0.0.1:2147483648", "is not host:count"),
        ("max.connections.per.ip.overrides", f"127.0.0.1:{'9' * 5000}", "is not host:count"),
        ("max.connections.per.ip.overrides", "a/b:1", "contains invalid addresses : a/b"),
        ("max.connections.per.ip", "0", "set to zero only if max.connections.per.ip.overrides property is set."),
        ("max.connections", "0", "Invalid max.connections 0"),
        ("max.connection.creation.rate", "0", "Invalid max.connection.creation.rate 0"),
        ("listener.name.plaintext.max.connections", "0", "Invalid max.connections 0"),
        ("listener.name.plaintext.num.network.threads", "100", "num.network.threads=100, value should not be greater"),
        ("metric.reporters", "no.Such", "metric.reporters"),
        ("principal.builder.class", "no.Such", "Class no.Such could not be found."),
        ("listeners", "PLAINTEXT://:1234", "listeners cannot be changed while the broker runs"),
    ],
)
def test_inconsistent_broker_config_is_rejected(name: str, value: str, message: str) -> None:
    code, text = rejection((name, SET, value))
    assert code is ErrorCode.INVALID_REQUEST
    assert text is not None
    assert message in text


def test_any_negative_log_retention_is_accepted() -> None:
    assert alter(("log.retention.ms", SET, "-5")) == {"log.retention.ms": "-5"}


def test_cluster_min_insync_replicas_cannot_be_deleted() -> None:
    code, message = rejection(("min.insync.replicas", DELETE, None), cluster=True)
    assert (code, message) == (
        ErrorCode.INVALID_CONFIG,
        "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
    )
    assert alter(("min.insync.replicas", SET, "2"), cluster=True) == {"min.insync.replicas": "2"}


@pytest.mark.parametrize("kind", [SET, DELETE])
def test_broker_level_min_insync_replicas_is_rejected(kind: ConfigOperation) -> None:
    assert rejection(("min.insync.replicas", kind, "1")) == (
        ErrorCode.INVALID_CONFIG,
        "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
    )


def test_rejection_of_password_config_omits_its_value() -> None:
    """K339-24: Sensitive values are never returned by describe and are not lost when another key is altered."""
    error = rejection(("listener.name.x.ssl.key.password", SET, "geheim"), cluster=True)
    assert "geheim" not in str(error)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"log.retention.ms": "0"}, "log.retention.ms must be unlimited"),
        ({"log.retention.hours": "0"}, "log.retention.ms must be unlimited"),
        ({"log.cleaner.dedupe.buffer.size": "5"}, "at least 1MB per cleaner thread"),
        ({"log.cleaner.threads": "0"}, "at least 1"),
        ({"max.connections.per.ip.overrides": "abc"}, "host:count"),
        ({"max.connections.per.ip.overrides": f"127.0.0.1:{'9' * 5000}"}, "host:count"),
        ({"max.connections.per.ip": "0"}, "can be set to zero only if"),
        ({"log.retention.bytes": "5", "log.local.retention.bytes": "6"}, "log.retention.bytes property value: 5"),
        ({"log.flush.interval.ms": "-1"}, "Invalid value -1 for configuration log.flush.interval.ms"),
        (
            {"group.consumer.assignment.interval.ms": "20000"},
            "group.consumer.assignment.interval.ms must be less than or equal to "
            "group.consumer.max.assignment.interval.ms",
        ),
        (
            {"group.share.heartbeat.interval.ms": "4999"},
            "group.share.heartbeat.interval.ms must be greater than or equal to group.share.min.heartbeat.interval.ms",
        ),
        (
            {"group.streams.max.session.timeout.ms": "44999"},
            "group.streams.max.session.timeout.ms must be greater than or equal to "
            "group.streams.min.session.timeout.ms",
        ),
        (
            {"group.consumer.heartbeat.interval.ms": "45000", "group.consumer.max.heartbeat.interval.ms": "45000"},
            "group.consumer.heartbeat.interval.ms must be less than group.consumer.session.timeout.ms",
        ),
        ({"log.dirs": "/data", "cordoned.log.dirs": "/nowhere"}, "Missing entries : /nowhere"),
        (
            {"offsets.topic.segment.bytes": "102400"},
            "Invalid value 102400 for configuration offsets.topic.segment.bytes: Value must be at least 1048576",
        ),
        (
            {"transaction.state.log.segment.bytes": "1048575"},
            "Invalid value 1048575 for configuration transaction.state.log.segment.bytes",
        ),
    ],
)
def test_inconsistent_properties_file_is_rejected(settings: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError) as rejected:
        check_broker_settings(settings)
    assert message in str(rejected.value.error_message)


def test_consistent_properties_file_is_accepted() -> None:
    check_broker_settings({"log.retention.hours": "-1", "log.cleaner.threads": "4", "num.partitions": "3"})
