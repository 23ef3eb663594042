"""Descriptions of configs."""

from __future__ import annotations

import pytest

from klamm.configs.describe import (
    CreatedTopicDescriber,
    DescribedConfig,
    TopicDescriber,
    describe_broker,
    describe_client_metrics,
    describe_cluster_default,
    describe_group,
    select_keys,
)
from klamm.configs.layers import BrokerLayers
from klamm.protocol.types import ConfigSource, ConfigType
from klamm.storage.log.config import NO_LIMIT

TOPIC, DYNAMIC, CLUSTER, STATIC, DEFAULT = (
    ConfigSource.DYNAMIC_TOPIC_CONFIG,
    ConfigSource.DYNAMIC_BROKER_CONFIG,
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    ConfigSource.STATIC_BROKER_CONFIG,
    ConfigSource.DEFAULT_CONFIG,
)


def by_name(configs: tuple[DescribedConfig, ...], name: str) -> DescribedConfig:
    (config,) = (config for config in configs if config.name == name)
    return config


def topic_config(name: str, layers: BrokerLayers, **overrides: str) -> DescribedConfig:
    return by_name(TopicDescriber(layers).describe({k.replace("_", "."): v for k, v in overrides.items()}), name)


def chain(config: DescribedConfig) -> list[tuple[str, str | None, ConfigSource]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms]


def test_topic_value_precedes_broker_synonyms() -> None:
    """K339-06: SET stores the value for the key."""
    layers = BrokerLayers(
        dynamic={"message.max.bytes": "2000000"},
        cluster={"message.max.bytes": "3000000"},
        static={"message.max.bytes": "4000000"},
    )
    config = topic_config("max.message.bytes", layers, max_message_bytes=" +5 ")
    assert (config.value, config.source) == ("5", TOPIC)
    assert chain(config) == [
        ("max.message.bytes", "5", TOPIC),
        ("message.max.bytes", "2000000", DYNAMIC),
        ("message.max.bytes", "3000000", CLUSTER),
        ("message.max.bytes", "4000000", STATIC),
        ("message.max.bytes", "1048588", DEFAULT),
    ]


def test_unset_topic_config_shows_broker_value_and_source() -> None:
    """K339-08: DELETE removes the override so the effective value falls back to the default; the value field is
    ignored, null or not.
    """
    config = topic_config("max.message.bytes", BrokerLayers(cluster={"message.max.bytes": "3000000"}))
    assert (config.value, config.source, config.config_type) == ("3000000", CLUSTER, ConfigType.INT)


def test_retention_ms_has_no_synonyms_until_ms_is_set() -> None:
    assert chain(topic_config("retention.ms", BrokerLayers())) == []
    config = topic_config("retention.ms", BrokerLayers(dynamic={"log.retention.ms": "-5"}))
    assert (config.value, config.source) == ("-1", DYNAMIC)
    assert chain(config) == [("log.retention.ms", "-5", DYNAMIC), ("log.retention.hours", "168", DEFAULT)]


@pytest.mark.parametrize("name", ["log.flush.interval.ms", "log.flush.scheduler.interval.ms"])
def test_negative_flush_interval_means_no_limit(name: str) -> None:
    layers = BrokerLayers(static={name: "-1"})
    assert layers.topic_default("flush.ms") == NO_LIMIT
    assert topic_config("flush.ms", layers).value == str(NO_LIMIT)


def test_static_hours_and_minutes_become_topic_milliseconds() -> None:
    layers = BrokerLayers(static={"log.retention.hours": "2", "log.roll.hours": "1"})
    assert topic_config("retention.ms", layers).value == "7200000"
    assert topic_config("segment.ms", layers).value == "3600000"
    minutes = BrokerLayers(static={"log.retention.hours": "2", "log.retention.minutes": "3"})
    assert topic_config("retention.ms", minutes).value == "180000"


def test_values_are_normalized_but_broker_synonyms_are_verbatim() -> None:
    layers = BrokerLayers(cluster={"log.flush.interval.ms": "0050"})
    config = topic_config("flush.ms", layers)
    assert config.value == "50"
    assert chain(config)[0] == ("log.flush.interval.ms", "0050", CLUSTER)
    assert topic_config("preallocate", layers, preallocate="TRUE").value == "true"


def test_topics_without_own_configs_share_one_description() -> None:
    describer = TopicDescriber(BrokerLayers())
    assert describer.describe({}) is describer.describe({})
    names = [config.name for config in describer.describe({})]
    assert len(names) == 37
    assert names == sorted(names)


def test_broker_description_lists_dynamic_and_static_configs() -> None:
    layers = BrokerLayers(
        dynamic={"log.index.interval.bytes": "5001"},
        cluster={"log.index.interval.bytes": "5002"},
        static={"num.partitions": "1", "node.id": "1"},
    )
    described = describe_broker(layers)
    interval = by_name(described, "log.index.interval.bytes")
    assert (interval.value, interval.source, interval.is_read_only) == ("5001", DYNAMIC, False)
    partitions = by_name(described, "num.partitions")
    assert partitions.is_read_only
    assert chain(partitions) == [("num.partitions", "1", STATIC), ("num.partitions", "1", DEFAULT)]
    assert chain(by_name(described, "node.id")) == [("node.id", "1", STATIC)]


def test_secrets_are_never_shown_not_even_among_synonyms() -> None:
    """K339-24: Sensitive values are never returned by describe and are not lost when another key is altered."""
    keystore = "listener.name.internal.ssl.keystore.password"
    layers = BrokerLayers(dynamic={keystore: "geheim"}, static={"ssl.keystore.password": "auch geheim"})
    for config in (
        by_name(describe_broker(layers), keystore),
        by_name(describe_broker(layers), "ssl.keystore.password"),
    ):
        assert config.is_sensitive
        assert config.value is None
        assert {synonym.value for synonym in config.synonyms} == {None}
    assert "geheim" not in repr(describe_broker(layers))


def test_unknown_broker_config_is_described_as_sensitive() -> None:
    for layers in (BrokerLayers(dynamic={"no.such": "1"}), BrokerLayers(cluster={"no.such": "1"})):
        config = by_name(describe_broker(layers), "no.such")
        assert (config.value, config.is_sensitive, config.is_read_only) == (None, True, True)
        assert config.config_type is ConfigType.UNKNOWN


def test_internal_topic_config_is_described_as_written_where_it_is_set() -> None:
    """K339-06: SET stores the value for the key."""
    name = "internal.segment.bytes"
    describer, created = TopicDescriber(BrokerLayers()), CreatedTopicDescriber(BrokerLayers())
    described = describer.describe({name: " 1000000 ", "retention.ms": "5"})
    assert name not in {config.name for config in describer.describe({"retention.ms": "5"})}
    assert [config.name for config in described] == sorted(config.name for config in described)
    assert chain(by_name(described, name)) == [(name, " 1000000 ", ConfigSource.DYNAMIC_TOPIC_CONFIG)]
    entry = by_name(created.describe({name: " 1000000 "}), name)
    assert (entry.value, entry.synonyms) == (" 1000000 ", ())


def test_internal_broker_config_is_described_where_a_layer_sets_it() -> None:
    name = "group.consumer.assignor.offload.enable"
    layers = BrokerLayers(cluster={name: " FALSE "})
    config = by_name(describe_broker(layers), name)
    assert (config.value, chain(config)) == (" FALSE ", [(name, " FALSE ", CLUSTER), (name, "true", DEFAULT)])
    assert [config.name for config in describe_cluster_default(layers)] == [name]
    assert name not in {config.name for config in describe_broker(BrokerLayers())}


def test_internal_group_config_is_described_where_group_or_broker_sets_it() -> None:
    name, broker_name = "consumer.assignor.offload.enable", "group.consumer.assignor.offload.enable"
    own = by_name(describe_group({name: " FALSE "}, BrokerLayers()), name)
    assert (own.value, own.source) == (" FALSE ", ConfigSource.GROUP_CONFIG)
    inherited = by_name(describe_group({}, BrokerLayers(dynamic={broker_name: " FALSE "})), name)
    assert (inherited.value, inherited.source) == ("false", DYNAMIC)
    assert name not in {config.name for config in describe_group({}, BrokerLayers())}


def test_cluster_default_description_lists_only_cluster_configs() -> None:
    """K339-37: Broker resource: name = own broker id, or "" = cluster default; other id -> 42."""
    layers = BrokerLayers(
        dynamic={"log.cleanup.policy": "delete"},
        cluster={"log.flush.interval.ms": "0050", "no.such": "v"},
        static={"num.partitions": "1"},
    )
    flush, unknown = describe_cluster_default(layers)
    assert (flush.name, flush.value, flush.source) == ("log.flush.interval.ms", "0050", CLUSTER)
    assert chain(flush) == [("log.flush.interval.ms", "0050", CLUSTER)]
    assert (unknown.value, chain(unknown)) == (None, [("no.such", None, CLUSTER)])


def test_replication_quota_is_described_when_set() -> None:
    quota = by_name(
        describe_broker(BrokerLayers(dynamic={"leader.replication.throttled.rate": "7"})),
        "leader.replication.throttled.rate",
    )
    assert (quota.value, quota.is_read_only, quota.config_type) == ("7", False, ConfigType.LONG)


def test_group_description_falls_back_to_broker_configs() -> None:
    layers = BrokerLayers(static={"group.consumer.session.timeout.ms": "50000"})
    described = describe_group({"consumer.heartbeat.interval.ms": "6000"}, layers)
    session = by_name(described, "consumer.session.timeout.ms")
    assert (session.value, session.source) == ("50000", STATIC)
    assert chain(session) == [
        ("group.consumer.session.timeout.ms", "50000", STATIC),
        ("group.consumer.session.timeout.ms", "45000", DEFAULT),
    ]
    heartbeat = by_name(described, "consumer.heartbeat.interval.ms")
    assert chain(heartbeat) == [
        ("consumer.heartbeat.interval.ms", "6000", ConfigSource.GROUP_CONFIG),
        ("group.consumer.heartbeat.interval.ms", "5000", DEFAULT),
    ]


def test_client_metrics_defaults_have_no_synonyms() -> None:
    described = describe_client_metrics({"metrics": " a. , b. "})
    assert [(c.name, c.value, c.source, len(c.synonyms)) for c in described] == [
        ("interval.ms", "300000", DEFAULT, 0),
        ("match", "", DEFAULT, 0),
        ("metrics", "a.,b.", ConfigSource.CLIENT_METRICS_CONFIG, 1),
    ]


def test_create_topic_response_shows_values_verbatim() -> None:
    layers = BrokerLayers(cluster={"log.flush.interval.ms": "0050"}, static={"log.retention.hours": "2"})
    described = CreatedTopicDescriber(layers).describe({"cleanup.policy": " compact "})
    shown = {c.name: (c.value, c.source) for c in described if c.source is not DEFAULT}
    assert shown == {
        "cleanup.policy": (" compact ", TOPIC),
        "flush.ms": ("0050", CLUSTER),
        "retention.ms": ("7200000", STATIC),
    }
    assert [c.name for c in described] == sorted(c.name for c in described)


def test_select_keys_ignores_unknown_and_repeated_keys() -> None:
    described = TopicDescriber(BrokerLayers()).describe({})
    assert [c.name for c in select_keys(described, ["flush.ms", "nope", "flush.ms"])] == ["flush.ms"]
    assert select_keys(described, []) == select_keys(described, None) == described
