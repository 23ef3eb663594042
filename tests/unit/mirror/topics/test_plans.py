from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.admin import ConfigEntry, ConfigSource, NewTopic, OpType
from klamm.mirror.filters import DefaultConfigPropertyFilter, PatternList
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.plans import (
    complete_configs,
    config_differences,
    conflicts,
    plan_config_operations,
    plan_new_topic,
    plan_topics,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

TOPIC, BROKER_DEFAULT = ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
STATIC_BROKER, BUILT_IN = ConfigSource.STATIC_BROKER_CONFIG, ConfigSource.DEFAULT_CONFIG

ENTRIES = (
    ConfigEntry("retention.ms", "-1", source=TOPIC),
    ConfigEntry("cleanup.policy", "compact", source=BROKER_DEFAULT),
    ConfigEntry("segment.bytes", "5000000", source=STATIC_BROKER),
    ConfigEntry("flush.ms", None, source=BUILT_IN),
    ConfigEntry("min.insync.replicas", "2", source=TOPIC),
    ConfigEntry("read.only", "x", source=TOPIC, is_read_only=True),
    ConfigEntry("secret", None, source=TOPIC, is_sensitive=True),
)


def config_filter(*, source_defaults: bool) -> DefaultConfigPropertyFilter:
    exclude = PatternList.compile("config.properties.exclude", (r"min\.insync\.replicas",))
    return DefaultConfigPropertyFilter(exclude=exclude, source_defaults=source_defaults)


def operations(*, source_defaults: bool, target: Iterable[ConfigEntry] | None = None) -> dict[str, str | None]:
    planned = plan_config_operations(ENTRIES, config_filter(source_defaults=source_defaults), target=target)
    assert all((operation.operation is OpType.SET) == (operation.value is not None) for operation in planned)
    return {operation.name: operation.value for operation in planned}


def test_source_default_is_deleted_on_target() -> None:
    """K894-13, K894-17: everything that the topic itself does not set is a default."""
    assert operations(source_defaults=False) == {
        "retention.ms": "-1",
        "cleanup.policy": None,
        "segment.bytes": None,
        "flush.ms": None,
    }


def test_use_defaults_from_source_sets_source_defaults() -> None:
    """K894-14, K894-18: a default without a value is deleted even then."""
    assert operations(source_defaults=True) == {
        "retention.ms": "-1",
        "cleanup.policy": "compact",
        "segment.bytes": "5000000",
        "flush.ms": None,
    }


def test_excluded_configs_get_no_operation() -> None:
    """K894-10: MirrorMaker must not clear target topic configs that are excluded from replication.

    K894-15: config.properties.exclude applies regardless of use.defaults.from: excluded props are neither SET nor
    DELETEd.
    """
    for source_defaults in (False, True):
        assert "min.insync.replicas" not in operations(source_defaults=source_defaults)


def test_read_only_and_sensitive_configs_are_not_synced() -> None:
    """K894-20: Read-only and sensitive entries are never synced."""
    planned = operations(source_defaults=True)
    assert not {"read.only", "secret"} & planned.keys()


def test_known_target_configs_limit_operations_to_changes() -> None:
    """K894-21: No describe-then-replace emulation on the target (rejected alternative)."""
    target = (
        ConfigEntry("retention.ms", "-1", source=TOPIC),
        ConfigEntry("cleanup.policy", "compact", source=TOPIC),
        ConfigEntry("segment.bytes", "1", source=BUILT_IN),
        ConfigEntry("min.insync.replicas", "9", source=TOPIC),
    )
    (planned,) = plan_config_operations(ENTRIES, config_filter(source_defaults=False), target=target)
    assert (planned.name, planned.operation, planned.old_value) == ("cleanup.policy", OpType.DELETE, "compact")
    assert "use.defaults.from=target" in planned.rule
    assert operations(source_defaults=True, target=target) == {"segment.bytes": "5000000"}


def test_lists_that_differ_in_blanks_are_not_sent() -> None:
    """K894-21: klamm's broker stores them without blanks, so that each round would send them again."""
    source = (ConfigEntry("cleanup.policy", "compact, delete", source=TOPIC),)
    target = (ConfigEntry("cleanup.policy", "compact,delete", source=TOPIC),)
    wanted = config_filter(source_defaults=False)
    assert plan_config_operations(source, wanted, target=target) == ()
    assert config_differences("A.t", source, target, wanted) == ()


def test_source_default_equal_to_target_default_is_set() -> None:
    """K894-14: the value has to be the topic's own on the target."""
    target = (ConfigEntry("segment.bytes", "5000000", source=STATIC_BROKER),)
    assert operations(source_defaults=True, target=target)["segment.bytes"] == "5000000"


def test_complete_set_has_defaults_only_with_use_defaults_from_source() -> None:
    """K894-19: Legacy mode sends only non-default props, plus defaults if shouldReplicateSourceDefault."""
    assert complete_configs(ENTRIES, config_filter(source_defaults=False)) == {"retention.ms": "-1"}
    assert complete_configs(ENTRIES, config_filter(source_defaults=True)) == {
        "retention.ms": "-1",
        "cleanup.policy": "compact",
        "segment.bytes": "5000000",
    }


def test_missing_topics_are_created_and_partitions_added() -> None:
    """K894-35, K894-36: fewer partitions on the source change nothing."""
    target = {"A.short": 1, "A.long": 9, "A.same": 3, "other": 1}
    plan = plan_topics({"new": 3, "short": 3, "long": 3, "same": 3}, target, lambda name: f"A.{name}")
    assert plan.create == ("new",)
    assert plan.grow == {"A.short": 3}


def test_remote_topic_is_created_with_final_configs() -> None:
    """K894-35: Target topic: same partition count, RF = replication.factor (2), configs after the filter at creation;
    created before data flows.
    """
    planned = plan_new_topic(
        "A.flights",
        6,
        ENTRIES,
        replication_factor=2,
        config_filter=config_filter(source_defaults=False),
    )
    assert planned == NewTopic("A.flights", 6, 2, configs={"retention.ms": "-1"})


def test_flows_that_sync_configs_or_group_offsets_of_one_topic_conflict() -> None:
    properties = {
        "clusters": "A,B,C",
        **{f"{alias}.bootstrap.servers": f"{alias}:1" for alias in "ABC"},
        "A->B.enabled": "true",
        "C->B.enabled": "true",
        "C->B.topics": "payments,users",
        "replication.policy.class": "IdentityReplicationPolicy",
    }
    both = "C->B also selects users, and both flows sync "

    def warnings(*selected: str, **more: str) -> list[str]:
        keys = {key.replace("_", "."): value for key, value in more.items()}
        return conflicts(parse_settings(properties | keys).flows[0], selected)

    (warning,) = warnings("orders", "users")
    assert warning.startswith(
        f"{both}topic configs: if cluster C has such a topic, each sets those of its source again"
    )
    _, warning = warnings("orders", "users", sync_group_offsets_enabled="true")
    assert warning.startswith(f"{both}offsets of groups: if cluster C has such a topic, a group that reads on both")
    assert warnings("orders", sync_group_offsets_enabled="true") == []
    assert warnings("users", **{"C->B_sync_topic_configs_enabled": "false"}) == []
