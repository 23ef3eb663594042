"""Which topics are mirrored, which of their configs, and the offsets of which groups."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from klamm.mirror import naming
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from klamm.mirror.naming import ReplicationPolicy

DEFAULT_TOPICS: Final = (".*",)
DEFAULT_TOPICS_EXCLUDE: Final = (r".*[\-\.]internal", r".*\.replica", "__.*")
DEFAULT_GROUPS: Final = (".*",)
DEFAULT_GROUPS_EXCLUDE: Final = ("console-consumer-.*", "connect-.*", "__.*")
DEFAULT_CONFIG_PROPERTIES_EXCLUDE: Final = (
    r"follower\.replication\.throttled\.replicas",
    r"leader\.replication\.throttled\.replicas",
    r"message\.timestamp\.difference\.max\.ms",
    r"message\.timestamp\.type",
    r"unclean\.leader\.election\.enable",
    r"min\.insync\.replicas",
)
_ESCAPED_OR_CLASS: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]")
_OPEN_BRACE: Final = re.compile(r"\{(?!\d+\})")
"""Python takes it for the letter; Java, and so MirrorMaker, for a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternList:
    """Regular expressions of which one must match a whole name. An empty list matches nothing."""

    patterns: tuple[re.Pattern[str], ...]

    @classmethod
    def compile(cls, key: str, expressions: tuple[str, ...]) -> PatternList:
        """Compile the elements of a list setting.

        Raises:
            SettingsError: an element is no regular expression; names ``key`` and the element.
        """
        expected = f"{key}={','.join(expressions)}: expected a list of regular expressions"
        try:
            patterns = tuple(re.compile(expression) for expression in expressions)
        except re.error as error:
            raise SettingsError(f"{expected}: {error}") from error
        for expression in expressions:
            if _OPEN_BRACE.search(_ESCAPED_OR_CLASS.sub("", expression)) is not None:
                raise SettingsError(
                    f"{expected}: {expression} has a brace that does not end: the list is split at its commas, so "
                    "instead of x{1,3} write xx?x?, and \\\\{ for the letter"
                )
        return cls(patterns=patterns)

    def matches(self, name: str) -> bool:
        """Tell whether one of the expressions matches the whole name."""
        return any(pattern.fullmatch(name) for pattern in self.patterns)


class TopicFilter(Protocol):
    """Kafka's ``TopicFilter``."""

    def should_replicate_topic(self, topic: str) -> bool:
        """Tell whether the person who runs the mirror wants this topic."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultTopicFilter:
    """``topics`` and not ``topics.exclude``; the exclusion wins."""

    include: PatternList
    exclude: PatternList

    def should_replicate_topic(self, topic: str) -> bool:
        """Tell whether a topic is included and not excluded."""
        return self.include.matches(topic) and not self.exclude.matches(topic)


class GroupFilter(Protocol):
    """Kafka's ``GroupFilter``."""

    def should_replicate_group(self, group: str) -> bool:
        """Tell whether the offsets of a group are translated for the target."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultGroupFilter:
    """``groups`` and not ``groups.exclude``; the exclusion wins."""

    include: PatternList
    exclude: PatternList

    def should_replicate_group(self, group: str) -> bool:
        """Tell whether a group is included and not excluded."""
        return self.include.matches(group) and not self.exclude.matches(group)


class ConfigPropertyFilter:
    """Which topic configs are synced; subclass it for a filter of your own (Kafka's ``ConfigPropertyFilter``)."""

    def should_replicate_config_property(self, name: str) -> bool:
        """Tell whether a config may be written on the target at all."""
        raise NotImplementedError

    def should_replicate_source_default(self, name: str) -> bool:
        """Tell whether the source's default of a config is written on the target.

        Asked only for configs that ``should_replicate_config_property`` lets pass (KIP-894).
        """
        _ = name
        return False


class DefaultConfigPropertyFilter(ConfigPropertyFilter):
    """``config.properties.exclude`` and ``use.defaults.from``."""

    __slots__ = ("_exclude", "_source_defaults")

    def __init__(self, *, exclude: PatternList, source_defaults: bool) -> None:
        self._exclude = exclude
        self._source_defaults = source_defaults

    def should_replicate_config_property(self, name: str) -> bool:
        """Tell whether no excluding expression matches the whole name."""
        return not self._exclude.matches(name)

    def should_replicate_source_default(self, name: str) -> bool:
        """Tell whether ``use.defaults.from=source`` was asked for."""
        _ = name
        return self._source_defaults


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSelection:
    """Everything that decides whether a flow mirrors a topic."""

    topic_filter: TopicFilter
    policy: ReplicationPolicy
    target_alias: str
    heartbeats_replication_enabled: bool = True

    def includes(self, topic: str) -> bool:
        """Tell whether the flow mirrors a source topic (Kafka's ``shouldReplicateTopic``)."""
        wanted = self.topic_filter.should_replicate_topic(topic) or (
            self.heartbeats_replication_enabled and naming.is_heartbeats_topic(self.policy, topic)
        )
        internal = self.policy.is_internal_topic(topic)
        return wanted and not internal and not naming.is_cycle(self.policy, self.target_alias, topic)


def source_defaults_wanted(config_filter: object, name: str) -> bool:
    """Ask a filter for ``should_replicate_source_default``; one without that method means False."""
    ask = getattr(config_filter, "should_replicate_source_default", None)
    return bool(ask(name)) if ask is not None else False
