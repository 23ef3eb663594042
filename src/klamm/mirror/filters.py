"""Filters of the topics, topic configs and consumer groups to mirror."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final, Protocol

from klamm.lazy_dataclass import dataclass
from klamm.mirror import naming
from klamm.patterns import java_pattern
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from collections.abc import Collection

    from klamm.mirror.naming import ReplicationPolicy

DEFAULT_TOPICS: Final = (".*",)
DEFAULT_TOPICS_EXCLUDE: Final = (r"mm2.*\.internal", r".*\.replica", "__.*")
DEFAULT_GROUPS: Final = (".*",)
DEFAULT_GROUPS_EXCLUDE: Final = ("console-consumer-.*", "connect-.*", "__.*")
DEFAULT_CONFIG_PROPERTIES_EXCLUDE: Final = (
    r"follower\.replication\.throttled\.replicas",
    r"leader\.replication\.throttled\.replicas",
    r"message\.timestamp\.difference\.max\.ms",
    r"log\.message\.timestamp\.before\.max\.ms",
    r"log\.message\.timestamp\.after\.max\.ms",
    r"message\.timestamp\.type",
    r"unclean\.leader\.election\.enable",
    r"min\.insync\.replicas",
)
_CHANGES_RECORDS: Final = frozenset({"message.timestamp.type", "compression.type", "unclean.leader.election.enable"})
"""Configs by which a broker writes timestamps of its own, or compresses each batch again."""
_ESCAPED_OR_CLASS: Final = re.compile(r"\\[pPx]\{\w*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]")
_OPEN_BRACE: Final = re.compile(r"\{(?!\d+\})")
"""Brace without an end. Python matches it literally; Java, and so MirrorMaker, rejects it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternList:
    """List of Java's regular expressions, one of which must match a whole name. An empty list matches nothing.

    As in MirrorMaker, the elements are joined with ``|``. A flag such as ``(?i)`` counts for all elements after it.
    """

    key: str
    """Key of the file that set the list."""
    expressions: tuple[str, ...]
    pattern: re.Pattern[str] | None
    """Pattern of all elements. None: the list is empty."""

    @classmethod
    def compile(cls, key: str, expressions: tuple[str, ...]) -> PatternList:
        """Compile the elements of a list setting.

        Raises:
            SettingsError: An element is not a regular expression. Names ``key`` and the element.
        """
        expected = f"{key}={','.join(expressions)}: expected a list of regular expressions"
        for expression in expressions:
            if _OPEN_BRACE.search(_ESCAPED_OR_CLASS.sub("", expression)) is not None:
                raise SettingsError(
                    f"{expected}: {expression} has an unclosed brace: the list is split at its commas, so "
                    "instead of x{1,3} write xx?x?, and \\\\{ for a literal brace"
                )
        try:
            pattern = java_pattern("|".join(expressions)) if expressions else None
        except re.error as error:
            raise SettingsError(f"{expected} in Java's syntax: {error}") from error
        return cls(key=key, expressions=expressions, pattern=pattern)

    def matches(self, name: str) -> bool:
        """Return whether one of the expressions matches the whole name."""
        return self.pattern is not None and self.pattern.fullmatch(name) is not None

    def without_match(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the expressions that match none of the names. Expressions that are only a part of one are left out."""
        out = []
        for expression in self.expressions:
            with contextlib.suppress(re.error):
                pattern = java_pattern(expression)
                if not any(map(pattern.fullmatch, names)):
                    out.append(expression)
        return tuple(out)


class TopicFilter(Protocol):
    """Filter of topics (Kafka's ``TopicFilter``)."""

    def should_replicate_topic(self, topic: str) -> bool:
        """Return whether to mirror a topic."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultTopicFilter:
    """Filter by ``topics`` and ``topics.exclude``. The exclusion has precedence."""

    include: PatternList
    exclude: PatternList

    def should_replicate_topic(self, topic: str) -> bool:
        """Return whether a topic is included and not excluded."""
        return self.include.matches(topic) and not self.exclude.matches(topic)


class GroupFilter(Protocol):
    """Filter of consumer groups (Kafka's ``GroupFilter``)."""

    def should_replicate_group(self, group: str) -> bool:
        """Return whether to translate the offsets of a group for the target."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultGroupFilter:
    """Filter by ``groups`` and ``groups.exclude``. The exclusion has precedence."""

    include: PatternList
    exclude: PatternList

    def should_replicate_group(self, group: str) -> bool:
        """Return whether a group is included and not excluded."""
        return self.include.matches(group) and not self.exclude.matches(group)


class ConfigPropertyFilter:
    """Filter of topic configs to sync (Kafka's ``ConfigPropertyFilter``). Subclass it for a custom filter."""

    def should_replicate_config_property(self, name: str) -> bool:
        """Return whether a config may be written on the target."""
        raise NotImplementedError

    def should_replicate_source_default(self, name: str) -> bool:
        """Return whether to write the source's default of a config on the target.

        Called only for configs that ``should_replicate_config_property`` accepts (KIP-894).
        """
        _ = name
        return False


class DefaultConfigPropertyFilter(ConfigPropertyFilter):
    """Filter by ``config.properties.exclude`` and ``use.defaults.from``."""

    __slots__ = ("_exclude", "_source_defaults")

    def __init__(self, *, exclude: PatternList, source_defaults: bool) -> None:
        self._exclude = exclude
        self._source_defaults = source_defaults

    def should_replicate_config_property(self, name: str) -> bool:
        """Return whether no exclusion matches the whole name."""
        return not self._exclude.matches(name)

    def should_replicate_source_default(self, name: str) -> bool:
        """Return whether ``use.defaults.from=source`` is set."""
        _ = name
        return self._source_defaults


class EqualOffsetsConfigFilter(ConfigPropertyFilter):
    """Filter for flows that keep offsets. It leaves out configs by which a target would change or lose records."""

    __slots__ = ("_inner",)

    def __init__(self, inner: ConfigPropertyFilter) -> None:
        self._inner = inner

    def should_replicate_config_property(self, name: str) -> bool:
        """Return whether the config keeps records as they are, and the flow's filter accepts it."""
        return name not in _CHANGES_RECORDS and self._inner.should_replicate_config_property(name)

    def should_replicate_source_default(self, name: str) -> bool:
        """Return what the flow's filter returns."""
        return source_defaults_wanted(self._inner, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSelection:
    """Rules that decide whether a flow mirrors a topic."""

    topic_filter: TopicFilter
    policy: ReplicationPolicy
    target_alias: str
    heartbeats_replication_enabled: bool = True

    def includes(self, topic: str) -> bool:
        """Return whether the flow mirrors a source topic (Kafka's ``shouldReplicateTopic``)."""
        wanted = self.topic_filter.should_replicate_topic(topic) or (
            self.heartbeats_replication_enabled and naming.is_heartbeats_topic(self.policy, topic)
        )
        internal = self.policy.is_internal_topic(topic)
        return wanted and not internal and not naming.is_cycle(self.policy, self.target_alias, topic)


def source_defaults_wanted(config_filter: object, name: str) -> bool:
    """Return the filter's ``should_replicate_source_default``. False if the filter does not have that method."""
    ask = getattr(config_filter, "should_replicate_source_default", None)
    return bool(ask(name)) if ask is not None else False
