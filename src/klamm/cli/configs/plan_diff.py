"""Differences between declared and existing topics, key by key."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from klamm.configs.durations import duration_of
from klamm.configs.topics import is_same
from klamm.policy.answers import PARTITIONS, REPLICATION_FACTOR

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from klamm.cli.configs.plan_file import DeclaredTopic
    from klamm.policy.answers import PolicyOverride

FILE: Final = "file"
CLUSTER: Final = "cluster"
POLICY: Final = "policy"
_THROTTLED: Final = frozenset({"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"})
"""Configs that kafka-reassign-partitions.sh sets on a topic while it moves replicas."""


class Mark(StrEnum):
    """Symbol for the change to a key or a topic."""

    ADD = "+"
    CHANGE = "~"
    REMOVE = "-"
    REFUSE = "!"
    SAME = "="


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentConfig:
    """One config of an existing topic."""

    value: str | None
    """Present value. None if it is sensitive or has no value."""
    origin: str
    """Source of the value, as text for people."""
    is_own: bool
    """Whether the config is set on the topic itself; any other value is inherited."""
    inherited: str | None = None
    """Value in force after the config is removed from the topic. None if the cluster does not report it."""
    inherited_origin: str = "default"
    """Source of the inherited value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTopic:
    """One existing topic."""

    partitions: int
    replication_factor: int
    """Number of replicas of a partition; during a reassignment, their number after it."""
    configs: Mapping[str, CurrentConfig]
    is_moving: bool = False
    """Whether replicas are being reassigned, or the cluster does not show whether they are."""
    problem: str | None = None
    """Why the topic cannot be described. None if it can."""

    @property
    def own_configs(self) -> dict[str, CurrentConfig]:
        """Return the configs set on the topic, sorted, without the throttles of a reassignment in progress."""
        return {
            key: config
            for key, config in sorted(self.configs.items())
            if config.is_own and not (self.is_moving and key in _THROTTLED)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """Change of one key of one topic: old and new value with the source of each."""

    mark: Mark
    key: str
    old: str | None
    """None if there is no old value."""
    old_origin: str | None
    new: str | None
    """None if the key is removed and the cluster does not report the inherited value."""
    new_origin: str

    def __str__(self) -> str:
        """Return ``~ key: old (its origin) -> new (its origin)``."""
        after = "the inherited value" if self.new is None else self._shown(self.new, self.new_origin)
        if self.old_origin is None:
            return f"{self.mark} {self.key}: {after}"
        return f"{self.mark} {self.key}: {self._shown(_text(self.old), self.old_origin)} -> {after}"

    def _shown(self, value: str, origin: str) -> str:
        words = duration_of(self.key, value)
        return f"{value} ({origin})" if words is None else f"{value} ({words}, {origin})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDiff:
    """All changes required for one topic."""

    topic: DeclaredTopic
    exists: bool
    changes: tuple[KeyChange, ...]
    problems: tuple[str, ...] = ()
    """Declarations that cannot be carried out. If there are any, the topic is not changed."""
    override: PolicyOverride | None = None
    """What a policy stores in place of declared values; the changes contain it."""

    @property
    def is_in_line(self) -> bool:
        """Return whether the topic needs no change."""
        return self.exists and not self.changes and not self.problems

    @property
    def is_to_grow(self) -> bool:
        """Return whether the topic needs more partitions."""
        return self.exists and any(change.key == PARTITIONS for change in self.changes)

    @property
    def config_changes(self) -> tuple[KeyChange, ...]:
        """Return the changes to configs, without those to partitions."""
        return tuple(change for change in self.changes if change.key not in {PARTITIONS, REPLICATION_FACTOR})


def plan_topics(
    declared: Iterable[DeclaredTopic], current: Mapping[str, CurrentTopic], *, prune_configs: bool = False
) -> tuple[TopicDiff, ...]:
    """Compare declared with existing topics, in file order; topics missing from the file are left alone.

    Args:
        declared: Topics of the file.
        current: Existing topics by name. A declared topic missing here is to be created.
        prune_configs: Whether to remove configs that are set on a topic but missing from the file.
    """
    topics = tuple(declared)
    names = {_metric_name(topic.name): topic.name for topic in topics if topic.name in current}
    return tuple(
        _existing(topic, current[topic.name], prune_configs=prune_configs)
        if topic.name in current
        else _new(topic, names.setdefault(_metric_name(topic.name), topic.name))
        for topic in topics
    )


def after_override(plan: TopicDiff, override: PolicyOverride, current: CurrentTopic | None) -> TopicDiff:
    """Return a plan with the values that a policy stores in place of the declared ones."""
    changes = [change for change in plan.changes if change.key not in override.values]
    configs = {} if current is None else current.configs
    for key, value in override.values.items():
        now = configs.get(key)
        if value is not None:
            change = _config_change(key, value, now, POLICY)
        else:
            change = _removal(key, now) if now is not None and now.is_own else None
        changes += [] if change is None else [change]
    return replace(plan, changes=tuple(changes), override=override)


def _metric_name(topic: str) -> str:
    """Return the name of a topic in metrics. Kafka rejects a topic whose name there exists already."""
    return topic.replace(".", "_")


def _new(topic: DeclaredTopic, same_metrics: str) -> TopicDiff:
    wanted = {
        PARTITIONS: None if topic.partitions is None else str(topic.partitions),
        REPLICATION_FACTOR: None if topic.replication_factor is None else str(topic.replication_factor),
        **topic.configs,
    }
    changes = tuple(
        KeyChange(mark=Mark.ADD, key=key, old=None, old_origin=None, new=value, new_origin=FILE)
        for key, value in wanted.items()
        if value is not None
    )
    problems = (
        ()
        if same_metrics == topic.name
        else (
            f"topics.{topic.name}: the name collides with that of topic {same_metrics}: metrics do not distinguish '.'"
            " and '_'; rename one of them",
        )
    )
    return TopicDiff(topic=topic, exists=False, changes=changes, problems=problems)


def _existing(topic: DeclaredTopic, current: CurrentTopic, *, prune_configs: bool) -> TopicDiff:
    if current.problem is not None:
        return TopicDiff(topic=topic, exists=True, changes=(), problems=(f"topics.{topic.name}: {current.problem}",))
    changes: list[KeyChange] = []
    problems: list[str] = []
    if topic.partitions is not None and topic.partitions < current.partitions:
        problems.append(
            f"topics.{topic.name}.partitions: {topic.partitions}: expected at least {current.partitions}, "
            "partitions cannot be taken away"
        )
    elif topic.partitions is not None and topic.partitions > current.partitions:
        changes.append(
            KeyChange(
                mark=Mark.CHANGE,
                key=PARTITIONS,
                old=str(current.partitions),
                old_origin=CLUSTER,
                new=str(topic.partitions),
                new_origin=FILE,
            )
        )
    if topic.replication_factor not in {None, current.replication_factor}:
        problems.append(
            f"topics.{topic.name}.replication_factor: {topic.replication_factor}: expected "
            f"{current.replication_factor}, replicas of an existing topic are moved by kafka-reassign-partitions.sh"
        )
    for key, value in topic.configs.items():
        if (change := _config_change(key, value, current.configs.get(key), FILE)) is not None:
            changes.append(change)
    if prune_configs:
        changes += [_removal(key, now) for key, now in current.own_configs.items() if key not in topic.configs]
    return TopicDiff(topic=topic, exists=True, changes=tuple(changes), problems=tuple(problems))


def _config_change(key: str, value: str, now: CurrentConfig | None, origin: str) -> KeyChange | None:
    """Return the change that sets a config; None if it has this value already."""
    if now is None:
        return KeyChange(mark=Mark.ADD, key=key, old=None, old_origin=None, new=value, new_origin=origin)
    if is_same(key, now.value, value):
        return None
    mark = Mark.CHANGE if now.is_own else Mark.ADD
    return KeyChange(mark=mark, key=key, old=now.value, old_origin=now.origin, new=value, new_origin=origin)


def _removal(key: str, now: CurrentConfig) -> KeyChange:
    """Return the change that removes a config from a topic."""
    return KeyChange(
        mark=Mark.REMOVE,
        key=key,
        old=now.value,
        old_origin=now.origin,
        new=now.inherited,
        new_origin=now.inherited_origin,
    )


def _text(value: str | None) -> str:
    return "none" if value is None else value
