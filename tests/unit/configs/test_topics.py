"""Configs of topics."""

from __future__ import annotations

import pytest

from klamm.configs.layers import BrokerLayers
from klamm.configs.topics import TopicSchema, validate_topic_configs
from klamm.protocol.errors import InvalidConfigError, InvalidRequestError, InvalidTopicError, KafkaApiError

LAYERS = BrokerLayers()


def rejection(
    result: dict[str, str], *, touched: dict[str, str | None] | None = None, topic: str = "t"
) -> KafkaApiError:
    with pytest.raises(KafkaApiError) as rejected:
        TopicSchema(topic=topic, layers=LAYERS).validate(touched=result if touched is None else touched, result=result)
    return rejected.value


def test_unknown_topic_config_is_an_invalid_config() -> None:
    """K339-35: SET of an unknown topic key -> 40; DELETE of an unknown key -> success no-op."""
    error = rejection({"zzz": "1", "aaa": "2", "retention.ms": "x"})
    assert isinstance(error, InvalidConfigError)
    assert error.error_message == "Unknown topic config name: aaa"


@pytest.mark.parametrize(
    "name", ["RETENTION.MS", " retention.ms", "message.format.version", "message.downconversion.enable"]
)
def test_config_names_are_case_sensitive_and_removed_configs_unknown(name: str) -> None:
    """K339-35: SET of an unknown topic key -> 40; DELETE of an unknown key -> success no-op."""
    assert rejection({name: "1"}).error_message == f"Unknown topic config name: {name}"


def test_first_invalid_value_in_kafkas_order_is_reported() -> None:
    """K339-34: A value the key's validator rejects fails the resource; code 40."""
    error = rejection({"retention.ms": "y", "segment.ms": "x"})
    assert error.error_message == "Invalid value x for configuration segment.ms: Not a number of type LONG"


def test_compaction_lags_are_checked_against_earlier_values() -> None:
    error = rejection(
        {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}, touched={"min.compaction.lag.ms": "10"}
    )
    assert error.error_message == "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)"


def test_compaction_lags_are_checked_against_broker_default() -> None:
    layers = BrokerLayers(static={"log.cleaner.max.compaction.lag.ms": "5"})
    with pytest.raises(InvalidConfigError, match=r"\(10\) > max.compaction.lag.ms \(5\)"):
        validate_topic_configs("t", [("min.compaction.lag.ms", "10")], layers)


def test_tiered_storage_cannot_be_switched_on() -> None:
    error = rejection({"remote.storage.enable": "true"})
    assert error.error_message == (
        "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."
    )


def test_topic_name_is_checked_before_its_configs() -> None:
    """K339-33: Unknown topic -> 3; empty topic name -> 42."""
    nameless, badly_named = rejection({"zzz": "1"}, topic=""), rejection({"zzz": "1"}, topic="bad name!")
    assert isinstance(nameless, InvalidRequestError)
    assert nameless.error_message == "Default topic resources are not allowed."
    assert isinstance(badly_named, InvalidTopicError)
    assert badly_named.error_message == (
        "Topic name is invalid: 'bad name!' contains one or more characters other than ASCII alphanumerics, "
        "'.', '_' and '-'"
    )


@pytest.mark.parametrize("name", [".", "..", "a" * 250, "ä", "a\n"])
def test_invalid_topic_name_is_rejected(name: str) -> None:
    assert isinstance(rejection({}, topic=name), InvalidTopicError)


def test_null_config_of_new_topic_is_rejected() -> None:
    with pytest.raises(InvalidConfigError, match=r"^Null value not supported for topic configs: cleanup\.policy,zzz$"):
        validate_topic_configs("t", [("cleanup.policy", None), ("flush.ms", "x"), ("zzz", None)], LAYERS)


def test_null_value_is_rejected_before_a_later_value_of_the_same_config() -> None:
    with pytest.raises(InvalidConfigError, match=r"^Null value not supported for topic configs: flush\.ms$"):
        validate_topic_configs("t", [("flush.ms", None), ("flush.ms", "5")], LAYERS)


def test_last_value_of_duplicate_config_wins_on_topic_creation() -> None:
    assert validate_topic_configs("t", [("flush.ms", "5"), ("flush.ms", "6")], LAYERS) == {"flush.ms": "6"}
