"""Differences between declared and existing topics, key by key."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from klamm.configs.definitions import topic_configs
from klamm.configs.durations import duration_of
from klamm.protocol.errors import InvalidConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from klamm.cli.configs.plan_file import DeclaredTopic

PARTITIONS: Final = "partitions"
REPLICATION_FACTOR: Final = "replication_factor"
FILE: Final = "file"
CLUSTER: Final = "cluster"


class Mark(StrEnum):
    """Symbol for the change to a key or a topic."""

    ADD = "+"
    CHANGE = "~"
    REMOVE = "-"


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
    configs: Mapping[str, CurrentConfig]


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
    return tuple(
        _existing(topic, current[topic.name], prune_configs=prune_configs) if topic.name in current else _new(topic)
        for topic in declared
    )


def _new(topic: DeclaredTopic) -> TopicDiff:
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
    return TopicDiff(topic=topic, exists=False, changes=changes)


def _existing(topic: DeclaredTopic, current: CurrentTopic, *, prune_configs: bool) -> TopicDiff:
    changes: list[KeyChange] = []
    problems: list[str] = []
    if topic.partitions is not None and topic.partitions < current.partitions:
        problems.append(
            f"topics.{topic.name}.partitions: {topic.partitions}: expected at least {current.partitions}, "
            "partitions cannot be taken away"
        )
    elif topic.partitions is not None and topic.partitions > current.partitions:
        changes.append(_changed(PARTITIONS, str(current.partitions), CLUSTER, str(topic.partitions)))
    if topic.replication_factor not in {None, current.replication_factor}:
        problems.append(
            f"topics.{topic.name}.replication_factor: {topic.replication_factor}: expected "
            f"{current.replication_factor}, replicas of an existing topic are moved by kafka-reassign-partitions.sh"
        )
    for key, value in topic.configs.items():
        now = current.configs.get(key)
        if now is None:
            changes.append(KeyChange(mark=Mark.ADD, key=key, old=None, old_origin=None, new=value, new_origin=FILE))
        elif not is_same(key, now.value, value):
            mark = Mark.CHANGE if now.is_own else Mark.ADD
            changes.append(_changed(key, now.value, now.origin, value, mark=mark))
    if prune_configs:
        changes += _pruned(current.configs, topic.configs)
    return TopicDiff(topic=topic, exists=True, changes=tuple(changes), problems=tuple(problems))


def _changed(key: str, old: str | None, origin: str, new: str, *, mark: Mark = Mark.CHANGE) -> KeyChange:
    return KeyChange(mark=mark, key=key, old=old, old_origin=origin, new=new, new_origin=FILE)


def _pruned(current: Mapping[str, CurrentConfig], wanted: Collection[str]) -> list[KeyChange]:
    return [
        KeyChange(
            mark=Mark.REMOVE,
            key=key,
            old=config.value,
            old_origin=config.origin,
            new=config.inherited,
            new_origin=config.inherited_origin,
        )
        for key, config in sorted(current.items())
        if config.is_own and key not in wanted
    ]


def is_same(key: str, current: str | None, wanted: str) -> bool:
    """Return whether two values of a topic config are equal: numbers by value, lists without blanks around elements."""
    if current is None or current == wanted:
        return current == wanted
    definition = topic_configs().get_definition(key)
    if definition is None:
        return False
    try:
        return definition.parse(current) == definition.parse(wanted)
    except InvalidConfigError:
        return False  # sent unchanged: the broker's error names the mistake


def _text(value: str | None) -> str:
    return "none" if value is None else value
