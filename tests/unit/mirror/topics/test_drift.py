"""Where the configs of a topic differ, and why (K894-47, the status page)."""

from __future__ import annotations

from klamm.admin import ConfigEntry, ConfigSource
from klamm.mirror.filters import DefaultConfigPropertyFilter, PatternList
from klamm.mirror.topics.plans import EXCLUDED, SOURCE_ONLY, TARGET_DEFAULT, config_differences

_DEFAULT, _TOPIC = ConfigSource.DEFAULT_CONFIG, ConfigSource.DYNAMIC_TOPIC_CONFIG
_FILTER = DefaultConfigPropertyFilter(
    exclude=PatternList.compile("config.properties.exclude", (r"min\.insync\.replicas",)), source_defaults=False
)


def _entry(name: str, value: str | None, source: ConfigSource = _TOPIC) -> ConfigEntry:
    return ConfigEntry(name, value, source=source)


def test_equal_topics_have_no_config_difference() -> None:
    same = [_entry("retention.ms", "1"), _entry("segment.ms", "9", _DEFAULT)]
    assert config_differences("A.t", same, same, _FILTER) == ()


def test_value_changed_by_next_sync_is_drift() -> None:
    # when
    [difference] = config_differences("A.t", [_entry("retention.ms", "1")], [_entry("retention.ms", "2")], _FILTER)
    # then
    assert (difference.source_value, difference.target_value, difference.is_drift) == ("1", "2", True)
    assert difference.rule == "set on the source topic"


def test_excluded_config_is_no_drift() -> None:
    # when
    [difference] = config_differences(
        "A.t",
        [_entry("min.insync.replicas", "2")],
        [_entry("min.insync.replicas", "1", _DEFAULT)],
        _FILTER,
    )
    # then
    assert (difference.rule, difference.is_drift, difference.target_is_default) == (EXCLUDED, False, True)


def test_different_cluster_defaults_are_no_drift() -> None:
    # when
    [difference] = config_differences(
        "A.t",
        [_entry("segment.bytes", "1", _DEFAULT)],
        [_entry("segment.bytes", "2", _DEFAULT)],
        _FILTER,
    )
    # then
    assert (difference.rule, difference.is_drift) == (TARGET_DEFAULT, False)


def test_config_unknown_to_target_is_listed() -> None:
    # when
    [difference] = config_differences("A.t", [_entry("vendor.tier", "cold")], [], _FILTER)
    # then
    assert (difference.rule, difference.target_value, difference.is_drift) == (SOURCE_ONLY, None, False)


def test_read_only_and_sensitive_configs_are_not_compared() -> None:
    hidden = ConfigEntry("secret", None, source=_TOPIC, is_sensitive=True)
    fixed = ConfigEntry("fixed", "1", source=_TOPIC, is_read_only=True)
    assert config_differences("A.t", [hidden, fixed], [], _FILTER) == ()


def test_excluded_config_reset_by_alter_configs_is_drift() -> None:
    """K894-10: MirrorMaker must not clear target topic configs that are excluded from replication."""
    # when
    [difference] = config_differences(
        "A.t",
        [_entry("min.insync.replicas", "1", _DEFAULT)],
        [_entry("min.insync.replicas", "2")],
        _FILTER,
        replaces=True,
    )
    # then
    assert (difference.rule, difference.is_drift) == ("not in the complete set, which AlterConfigs writes", True)
