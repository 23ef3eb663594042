from __future__ import annotations

import pytest

from klamm.mirror.filters import (
    DEFAULT_CONFIG_PROPERTIES_EXCLUDE,
    DEFAULT_TOPICS_EXCLUDE,
    ConfigPropertyFilter,
    DefaultConfigPropertyFilter,
    DefaultTopicFilter,
    PatternList,
    TopicSelection,
    source_defaults_wanted,
)
from klamm.mirror.naming import DefaultReplicationPolicy
from klamm.properties import SettingsError


def selection(
    *topics: str, exclude: tuple[str, ...] = DEFAULT_TOPICS_EXCLUDE, heartbeats: bool = True
) -> TopicSelection:
    return TopicSelection(
        topic_filter=DefaultTopicFilter(
            include=PatternList.compile("topics", topics), exclude=PatternList.compile("topics.exclude", exclude)
        ),
        policy=DefaultReplicationPolicy(),
        target_alias="B",
        heartbeats_replication_enabled=heartbeats,
    )


@pytest.mark.parametrize(
    ("topic", "included"),
    [
        ("orders", True),
        ("orders2", False),
        ("my-orders", False),
        ("flights", True),
        ("flights.replica", False),
        ("__consumer_offsets", False),
        ("B.orders", False),
        ("orders.internal", True),
        ("orders-internal", True),
        ("mm2-offsets.A.internal", False),
    ],
)
def test_pattern_matches_whole_name_and_exclude_wins(topic: str, included: bool) -> None:
    """K894-30: Topic selection: (topics includes and not topics.exclude) or heartbeats topic
    (heartbeats.replication.enabled); and not internal; and not a cycle.
    """
    assert selection("orders", "flights.*", "__.*", r"B\..*", r".*[.-]internal").includes(topic) is included


def test_heartbeats_are_mirrored_regardless_of_filter() -> None:
    """K894-30: Topic selection: (topics includes and not topics.exclude) or heartbeats topic
    (heartbeats.replication.enabled); and not internal; and not a cycle.
    """
    assert selection("orders").includes("heartbeats")
    assert selection("orders").includes("A.heartbeats")
    assert not selection("orders", heartbeats=False).includes("heartbeats")


def test_invalid_pattern_is_rejected_with_key_and_value() -> None:
    with pytest.raises(SettingsError, match=r"topics=a\(: expected a list of regular expressions"):
        PatternList.compile("topics", ("a(",))


def test_default_config_excludes_match_whole_names() -> None:
    config_filter = DefaultConfigPropertyFilter(
        exclude=PatternList.compile("config.properties.exclude", DEFAULT_CONFIG_PROPERTIES_EXCLUDE),
        source_defaults=False,
    )
    assert not config_filter.should_replicate_config_property("follower.replication.throttled.replicas")
    assert not config_filter.should_replicate_config_property("min.insync.replicas")
    assert config_filter.should_replicate_config_property("min.insync.replicas.more")
    assert config_filter.should_replicate_config_property("retention.ms")


def test_empty_pattern_list_matches_nothing() -> None:
    config_filter = DefaultConfigPropertyFilter(
        exclude=PatternList.compile("config.properties.exclude", ()), source_defaults=False
    )
    assert config_filter.should_replicate_config_property("min.insync.replicas")


def test_source_defaults_are_not_replicated_by_default() -> None:
    """K894-11: the new method of the filter returns False by default, and a filter may lack it."""

    class OwnFilter(ConfigPropertyFilter):
        def should_replicate_config_property(self, name: str) -> bool:
            return name != "retention.ms"

    class OldFilter:
        def should_replicate_config_property(self, name: str) -> bool:
            return bool(name)

    assert not source_defaults_wanted(OwnFilter(), "segment.bytes")
    assert not source_defaults_wanted(OldFilter(), "segment.bytes")
