from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.mirror.filters import DefaultConfigPropertyFilter, PatternList
from klamm.mirror.model import NewRemoteTopic, OperationType, TopicConfigEntry, TopicSummary
from klamm.mirror.topics.plans import complete_configs, plan_config_operations, plan_new_topic, plan_topics

if TYPE_CHECKING:
    from collections.abc import Iterable

TOPIC, BROKER_DEFAULT, STATIC_BROKER, BUILT_IN = 1, 3, 4, 5

ENTRIES = (
    TopicConfigEntry(name="retention.ms", value="-1", config_source=TOPIC),
    TopicConfigEntry(name="cleanup.policy", value="compact", config_source=BROKER_DEFAULT),
    TopicConfigEntry(name="segment.bytes", value="5000000", config_source=STATIC_BROKER),
    TopicConfigEntry(name="flush.ms", value=None, config_source=BUILT_IN),
    TopicConfigEntry(name="min.insync.replicas", value="2", config_source=TOPIC),
    TopicConfigEntry(name="read.only", value="x", config_source=TOPIC, read_only=True),
    TopicConfigEntry(name="secret", value=None, config_source=TOPIC, is_sensitive=True),
)


def config_filter(*, source_defaults: bool) -> DefaultConfigPropertyFilter:
    exclude = PatternList.compile("config.properties.exclude", (r"min\.insync\.replicas",))
    return DefaultConfigPropertyFilter(exclude=exclude, source_defaults=source_defaults)


def operations(*, source_defaults: bool, target: Iterable[TopicConfigEntry] | None = None) -> dict[str, str | None]:
    planned = plan_config_operations(ENTRIES, config_filter(source_defaults=source_defaults), target=target)
    assert all((operation.operation is OperationType.SET) == (operation.value is not None) for operation in planned)
    return {operation.name: operation.value for operation in planned}


def topic(name: str, partition_count: int = 3) -> TopicSummary:
    return TopicSummary(name=name, topic_id="", partition_count=partition_count)


def test_what_is_default_on_the_source_is_deleted_on_the_target() -> None:
    """K894-13, K894-17: everything that the topic itself does not set is a default."""
    assert operations(source_defaults=False) == {
        "retention.ms": "-1",
        "cleanup.policy": None,
        "segment.bytes": None,
        "flush.ms": None,
    }


def test_source_defaults_are_set_explicitly_when_they_are_wanted() -> None:
    """K894-14, K894-18: a default without a value is deleted even then."""
    assert operations(source_defaults=True) == {
        "retention.ms": "-1",
        "cleanup.policy": "compact",
        "segment.bytes": "5000000",
        "flush.ms": None,
    }


def test_excluded_configs_get_no_operation_whoevers_defaults_count() -> None:
    """K894-10: MirrorMaker must not clear target topic configs that are excluded from replication.

    K894-15: config.properties.exclude applies regardless of use.defaults.from: excluded props are neither SET nor
    DELETEd.
    """
    for source_defaults in (False, True):
        assert "min.insync.replicas" not in operations(source_defaults=source_defaults)


def test_read_only_and_sensitive_configs_are_never_synced() -> None:
    """K894-20: Read-only and sensitive entries are never synced."""
    planned = operations(source_defaults=True)
    assert not {"read.only", "secret"} & planned.keys()


def test_only_operations_that_change_something_are_sent_when_the_target_is_known() -> None:
    """K894-21: No describe-then-replace emulation on the target (rejected alternative)."""
    target = (
        TopicConfigEntry(name="retention.ms", value="-1", config_source=TOPIC),
        TopicConfigEntry(name="cleanup.policy", value="compact", config_source=TOPIC),
        TopicConfigEntry(name="segment.bytes", value="1", config_source=BUILT_IN),
        TopicConfigEntry(name="min.insync.replicas", value="9", config_source=TOPIC),
    )
    (planned,) = plan_config_operations(ENTRIES, config_filter(source_defaults=False), target=target)
    assert (planned.name, planned.operation, planned.old_value) == ("cleanup.policy", OperationType.DELETE, "compact")
    assert "use.defaults.from=target" in planned.rule
    assert operations(source_defaults=True, target=target) == {"segment.bytes": "5000000"}


def test_a_source_default_that_the_target_has_as_its_own_default_is_still_set() -> None:
    """K894-14: the value has to be the topic's own on the target."""
    target = (TopicConfigEntry(name="segment.bytes", value="5000000", config_source=STATIC_BROKER),)
    assert operations(source_defaults=True, target=target)["segment.bytes"] == "5000000"


def test_the_complete_set_holds_what_is_set_and_defaults_only_if_wanted() -> None:
    """K894-19: Legacy mode sends only non-default props, plus defaults if shouldReplicateSourceDefault."""
    assert complete_configs(ENTRIES, config_filter(source_defaults=False)) == {"retention.ms": "-1"}
    assert complete_configs(ENTRIES, config_filter(source_defaults=True)) == {
        "retention.ms": "-1",
        "cleanup.policy": "compact",
        "segment.bytes": "5000000",
    }


def test_missing_topics_are_created_and_short_ones_grown() -> None:
    """K894-35, K894-36: fewer partitions on the source change nothing."""
    target = {name: topic(name, count) for name, count in {"A.short": 1, "A.long": 9, "A.same": 3, "other": 1}.items()}
    plan = plan_topics([topic("new"), topic("short"), topic("long"), topic("same")], target, lambda name: f"A.{name}")
    assert plan.create == ("new",)
    assert plan.grow == {"A.short": 3}


def test_a_remote_topic_is_created_with_its_final_configs() -> None:
    """K894-35: Target topic: same partition count, RF = replication.factor (2), configs after the filter at creation;
    created before data flows.
    """
    planned = plan_new_topic(
        topic("flights", 6),
        ENTRIES,
        remote_name="A.flights",
        replication_factor=2,
        config_filter=config_filter(source_defaults=False),
    )
    assert planned == NewRemoteTopic(
        name="A.flights", partition_count=6, replication_factor=2, configs={"retention.ms": "-1"}
    )
