"""The difference between topics as they are wanted and as they are, key by key."""

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
    """What happens to a key or a topic."""

    ADD = "+"
    CHANGE = "~"
    REMOVE = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentConfig:
    """A config of a topic that exists."""

    value: str | None
    """None when it is a secret or has no value."""
    origin: str
    """Where the value comes from, in words."""
    is_own: bool
    """Whether it is set for this topic; all else is inherited."""
    inherited: str | None = None
    """The value once it is not set for this topic any more; None when the cluster does not tell."""
    inherited_origin: str = "default"
    """Where that comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTopic:
    """A topic that exists."""

    partitions: int
    replication_factor: int
    configs: Mapping[str, CurrentConfig]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """One key of one topic: from what to what, and where both come from."""

    mark: Mark
    key: str
    old: str | None
    """None when there is nothing yet."""
    old_origin: str | None
    new: str | None
    """None when a key is removed and the cluster does not tell what is inherited then."""
    new_origin: str

    def __str__(self) -> str:
        """Return ``~ key: old (its origin) -> new (its origin)``."""
        after = "what is inherited" if self.new is None else self._shown(self.new, self.new_origin)
        if self.old_origin is None:
            return f"{self.mark} {self.key}: {after}"
        return f"{self.mark} {self.key}: {self._shown(_text(self.old), self.old_origin)} -> {after}"

    def _shown(self, value: str, origin: str) -> str:
        words = duration_of(self.key, value)
        return f"{value} ({origin})" if words is None else f"{value} ({words}, {origin})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDiff:
    """What has to be done to one topic."""

    topic: DeclaredTopic
    exists: bool
    changes: tuple[KeyChange, ...]
    problems: tuple[str, ...] = ()
    """What the file wants and nobody can do; then nothing is done to this topic."""

    @property
    def is_in_line(self) -> bool:
        """Whether there is nothing to do."""
        return self.exists and not self.changes and not self.problems

    @property
    def is_to_grow(self) -> bool:
        """Whether it needs more partitions."""
        return self.exists and any(change.key == PARTITIONS for change in self.changes)

    @property
    def config_changes(self) -> tuple[KeyChange, ...]:
        """The changes to configs alone."""
        return tuple(change for change in self.changes if change.key not in {PARTITIONS, REPLICATION_FACTOR})


def plan_topics(
    declared: Iterable[DeclaredTopic], current: Mapping[str, CurrentTopic], *, prune_configs: bool = False
) -> tuple[TopicDiff, ...]:
    """Compare, in file order; topics that the file does not name are left alone.

    Args:
        declared: What is wanted.
        current: What is there, by name; a topic that is missing is to be created.
        prune_configs: Whether configs that are set and not named by the file are to be unset.
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
    """Tell whether two values of a topic config mean the same: numbers as numbers, lists without their blanks."""
    if current is None or current == wanted:
        return current == wanted
    definition = topic_configs().get_definition(key)
    if definition is None:
        return False
    try:
        return definition.parse(current) == definition.parse(wanted)
    except InvalidConfigError:
        return False  # the broker says what is wrong


def _text(value: str | None) -> str:
    return "none" if value is None else value
