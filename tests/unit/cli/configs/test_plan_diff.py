"""The difference between topics as wanted and as they are."""

from __future__ import annotations

import pytest

from klamm.admin import PolicyOverride
from klamm.cli.configs.plan_diff import (
    CurrentConfig,
    CurrentTopic,
    TopicDiff,
    after_override,
    plan_topics,
)
from klamm.cli.configs.plan_file import DeclaredTopic
from klamm.configs.topics import is_same

CONFIGS = {
    "retention.ms": CurrentConfig(value="5000", origin="topic", is_own=True, inherited="604800000"),
    "cleanup.policy": CurrentConfig(value="compact,delete", origin="topic", is_own=True, inherited="delete"),
    "segment.ms": CurrentConfig(value="604800000", origin="all brokers", is_own=False),
    "flush.ms": CurrentConfig(value="9223372036854775807", origin="default", is_own=False),
}
CURRENT = {"orders": CurrentTopic(partitions=3, replication_factor=1, configs=CONFIGS)}


def plan(topic: DeclaredTopic, *, prune_configs: bool = False) -> TopicDiff:
    (planned,) = plan_topics([topic], CURRENT, prune_configs=prune_configs)
    return planned


def lines(planned: TopicDiff) -> list[str]:
    return [str(change) for change in planned.changes]


def test_new_topic_has_only_additions() -> None:
    # given
    topic = DeclaredTopic(name="audit", partitions=2, configs={"retention.ms": "1"})
    # when
    planned = plan(topic)
    # then
    assert lines(planned) == ["+ partitions: 2 (file)", "+ retention.ms: 1 (file)"]
    assert not planned.exists
    assert not planned.is_in_line


def test_changed_value_shows_old_and_new_with_sources() -> None:
    assert lines(plan(DeclaredTopic(name="orders", configs={"retention.ms": "1", "segment.ms": "2"}))) == [
        "~ retention.ms: 5000 (5 s, topic) -> 1 (file)",
        "+ segment.ms: 604800000 (7 days, all brokers) -> 2 (file)",
    ]


def test_inherited_values_are_no_changes() -> None:
    # given: everything that is not set for the topic itself is left out by the file or said with its own value
    topic = DeclaredTopic(name="orders", configs={"segment.ms": "604800000"})
    # then
    assert plan(topic).is_in_line
    assert lines(plan(topic, prune_configs=True)) == [
        "- cleanup.policy: compact,delete (topic) -> delete (default)",
        "- retention.ms: 5000 (5 s, topic) -> 604800000 (7 days, default)",
    ]


def test_undeclared_configs_are_kept_without_prune() -> None:
    # given
    topic = DeclaredTopic(name="orders", configs={"cleanup.policy": "compact,delete"})
    # then
    assert lines(plan(topic)) == []
    assert lines(plan(topic, prune_configs=True)) == [
        "- retention.ms: 5000 (5 s, topic) -> 604800000 (7 days, default)"
    ]


def test_pruned_config_shows_inherited_value() -> None:
    # given
    config = CurrentConfig(value="5", origin="topic", is_own=True)
    current = {"t": CurrentTopic(partitions=1, replication_factor=1, configs={"segment.ms": config})}
    # when
    (planned,) = plan_topics([DeclaredTopic(name="t")], current, prune_configs=True)
    # then
    assert lines(planned) == ["- segment.ms: 5 (topic) -> the inherited value"]


def test_higher_partition_count_adds_partitions() -> None:
    # when
    planned = plan(DeclaredTopic(name="orders", partitions=5))
    # then
    assert lines(planned) == ["~ partitions: 3 (cluster) -> 5 (file)"]
    assert planned.is_to_grow
    assert planned.config_changes == ()


@pytest.mark.parametrize(
    ("topic", "problem"),
    [
        (DeclaredTopic(name="orders", partitions=2), "topics.orders.partitions: 2: expected at least 3"),
        (DeclaredTopic(name="orders", replication_factor=3), "topics.orders.replication_factor: 3: expected 1"),
    ],
)
def test_impossible_change_is_a_problem(topic: DeclaredTopic, problem: str) -> None:
    # when
    planned = plan(topic)
    # then
    assert planned.problems[0].startswith(problem)
    assert planned.changes == ()
    assert not planned.is_in_line


def test_undeclared_topics_are_kept() -> None:
    assert plan_topics([], CURRENT, prune_configs=True) == ()


def test_unknown_config_is_sent_to_broker() -> None:
    assert lines(plan(DeclaredTopic(name="orders", configs={"nonsense": "1"}))) == ["+ nonsense: 1 (file)"]


@pytest.mark.parametrize(
    ("key", "current", "wanted", "same"),
    [
        ("cleanup.policy", "compact,delete", "compact, delete", True),
        ("cleanup.policy", "compact,delete", "delete,compact", True),
        ("cleanup.policy", "compact,delete", "delete", False),
        ("preallocate", "true", "TRUE", True),
        ("min.cleanable.dirty.ratio", "0.5", "0.50", True),
        ("retention.ms", "5000", "5000", True),
        ("retention.ms", "5000", "many", False),
        ("retention.ms", None, "5000", False),
        ("config.of.the.future", "1", "1.0", False),
    ],
)
def test_equivalent_values_are_no_change(key: str, current: str | None, wanted: str, same: bool) -> None:
    assert is_same(key, current, wanted) is same


def test_throttles_of_a_reassignment_in_progress_are_not_pruned() -> None:
    throttles = {
        f"{role}.replication.throttled.replicas": CurrentConfig(value="0:1", origin="topic", is_own=True)
        for role in ("leader", "follower")
    }
    for is_moving, removed in ((True, 0), (False, 2)):
        current = CurrentTopic(partitions=1, replication_factor=1, configs=throttles, is_moving=is_moving)
        (planned,) = plan_topics([DeclaredTopic(name="t")], {"t": current}, prune_configs=True)
        assert len(planned.changes) == removed


def test_colliding_topic_names_are_problems() -> None:
    declared = [DeclaredTopic(name=name) for name in ("or_ders", "or.ders", "a.b", "a.b_c", "a_b", "a.b.c")]
    current = {"or.ders": CURRENT["orders"]}
    problems = {plan.topic.name: plan.problems for plan in plan_topics(declared, current) if plan.problems}
    assert {name: problem[0].partition(":")[2][:46] for name, problem in problems.items()} == {
        "or_ders": " the name collides with that of topic or.ders:",
        "a_b": " the name collides with that of topic a.b: met",
        "a.b.c": " the name collides with that of topic a.b_c: m",
    }


def test_override_replaces_declared_values() -> None:
    # given
    configs = {"retention.ms": "1", "segment.ms": "2", "cleanup.policy": "delete"}
    topic = DeclaredTopic(name="orders", configs=configs)
    values = {"retention.ms": "5000", "segment.ms": "3", "cleanup.policy": None, "flush.ms": None}
    override = PolicyOverride(reason="set right", values=values)
    # when
    planned = after_override(plan(topic), override, CURRENT["orders"])
    # then
    assert lines(planned) == [
        "+ segment.ms: 604800000 (7 days, all brokers) -> 3 (policy)",
        "- cleanup.policy: compact,delete (topic) -> delete (default)",
    ]
    only_equal = PolicyOverride(reason="set right", values={"retention.ms": "5000"})
    kept = after_override(
        plan(DeclaredTopic(name="orders", configs={"retention.ms": "1"})), only_equal, CURRENT["orders"]
    )
    assert kept.is_in_line
