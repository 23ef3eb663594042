"""The tables of configs."""

from __future__ import annotations

import json

import pytest

from klamm.configs import definitions
from klamm.configs.definitions import (
    FACTS,
    ConfigTable,
    base_name,
    broker_configs,
    broker_families,
    client_metrics_configs,
    find_broker_config,
    group_configs,
    parse_broker_settings,
    topic_configs,
    topic_synonyms,
)
from klamm.configs.describe import documentation
from klamm.protocol.errors import InvalidConfigError
from klamm.protocol.types import ConfigType, ResourceType, UpdateMode


def test_topic_validation_order_names_every_config_once() -> None:
    facts = json.loads(FACTS.read_text(encoding="utf-8"))["topic"]
    assert sorted(definitions.TOPIC_ORDER) == sorted(facts)


@pytest.mark.parametrize("table", [topic_configs(), broker_configs(), group_configs(), client_metrics_configs()])
def test_defaults_pass_their_own_validators(table: definitions.ConfigTable) -> None:
    for name, definition in table.items():
        if definition.default is not None and name not in {
            "controller.quorum.voters",
            "controller.quorum.bootstrap.servers",
        }:
            assert definition.parse(definition.default) == definition.default_value


def test_internal_configs_exist_and_are_not_described() -> None:
    assert topic_configs()["internal.segment.bytes"].is_internal
    assert "internal.segment.bytes" not in {d.name for d in topic_configs().described}


def test_listener_prefixed_config_has_base_definition() -> None:
    keystore = find_broker_config("listener.name.internal.ssl.keystore.password")
    jaas = find_broker_config("listener.name.internal.scram-sha-256.sasl.jaas.config")
    assert keystore is not None
    assert keystore.is_sensitive
    assert jaas is not None
    assert jaas.name == "sasl.jaas.config"
    assert find_broker_config("listener.name.internal.nothing") is None
    assert base_name("num.partitions") == "num.partitions"


def test_topic_configs_list_their_broker_synonyms() -> None:
    retention = topic_synonyms()["retention.ms"]
    assert [(s.name, s.milliseconds) for s in retention] == [
        ("log.retention.ms", None),
        ("log.retention.minutes", 60_000),
        ("log.retention.hours", 3_600_000),
    ]
    assert broker_families()["log.retention.hours"] == (
        "log.retention.ms",
        "log.retention.minutes",
        "log.retention.hours",
    )
    assert "log.flush.scheduler.interval.ms" not in broker_families()


def test_update_modes_match_kafka() -> None:
    table = broker_configs()
    assert table["num.partitions"].update_mode is UpdateMode.READ_ONLY
    assert table["listeners"].update_mode is UpdateMode.PER_BROKER
    assert table["message.max.bytes"].update_mode is UpdateMode.CLUSTER_WIDE
    assert table["ssl.keystore.password"].config_type is ConfigType.PASSWORD


def test_replication_quotas_can_change_and_are_described_when_they_are_set() -> None:
    quota = broker_configs()["leader.replication.throttled.rate"]
    assert quota.update_mode is UpdateMode.CLUSTER_WIDE
    assert not quota.is_read_only
    assert quota not in broker_configs().described


def test_settings_of_a_properties_file_are_read_by_type() -> None:
    assert parse_broker_settings({"num.partitions": "3", "what.is.this": "1"}) == {"num.partitions": 3}


def test_invalid_static_config_error_names_key_and_value() -> None:
    with pytest.raises(InvalidConfigError, match=r"Invalid value none for configuration num\.partitions"):
        parse_broker_settings({"num.partitions": "none"})


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
    for name in table:
        sentence = documentation(kind, name)
        assert sentence, name
        assert sentence.endswith("."), name


def test_listener_prefixed_config_has_base_documentation() -> None:
    under = documentation(ResourceType.BROKER, "listener.name.internal.ssl.key.password")
    assert under == documentation(ResourceType.BROKER, "ssl.key.password")


def test_unknown_config_has_no_documentation() -> None:
    assert documentation(ResourceType.BROKER, "no.such") is None
    assert documentation(ResourceType.BROKER_LOGGER, "root") is None
