"""Names of topics on the other side: replication policies, internal topics, cycles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

HEARTBEATS_TOPIC: Final = "heartbeats"


class ReplicationPolicy(Protocol):
    """How a topic of one cluster is called on another (Kafka's ``ReplicationPolicy``)."""

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        """Return the name that ``topic`` of ``source_alias`` has on a target."""
        ...

    def topic_source(self, topic: str) -> str | None:
        """Return the alias a topic was mirrored from; None means: born here, as far as its name tells."""
        ...

    def upstream_topic(self, topic: str) -> str | None:
        """Return the name one hop up; None means: born here."""
        ...

    def is_internal_topic(self, topic: str) -> bool:
        """Tell whether a topic belongs to Kafka, Connect or the mirror itself and is never mirrored."""
        ...

    def offset_syncs_topic(self, alias: str) -> str:
        """Return the name of the topic with offset syncs."""
        ...

    def checkpoints_topic(self, source_alias: str) -> str:
        """Return the name of the topic with checkpoints of a source."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultReplicationPolicy:
    """Prefix with the source alias: ``orders`` of ``us-west`` becomes ``us-west.orders``."""

    separator: str = "."
    internal_topic_separator_enabled: bool = True
    """Whether the separator also stands in the names of the mirror's internal topics."""

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        """Return ``<source alias><separator><topic>``."""
        return f"{source_alias}{self.separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        """Return what stands before the first separator, None without one."""
        alias, found, _ = topic.partition(self.separator)
        return alias if found else None

    def upstream_topic(self, topic: str) -> str | None:
        """Return what stands after the first separator, None without one."""
        _, found, rest = topic.partition(self.separator)
        return rest if found else None

    def is_internal_topic(self, topic: str) -> bool:
        """Tell by name, as Kafka's ``ReplicationPolicy`` does."""
        ends = (".internal", "-internal", f"{self.separator}internal")
        return topic.startswith(("__", ".")) or topic.endswith(ends)

    def offset_syncs_topic(self, alias: str) -> str:
        """Return ``mm2-offset-syncs.<alias>.internal`` with the separator asked for."""
        return f"mm2-offset-syncs{self._internal}{alias}{self._internal}internal"

    def checkpoints_topic(self, source_alias: str) -> str:
        """Return ``<source>.checkpoints.internal`` with the separator asked for."""
        return f"{source_alias}{self._internal}checkpoints{self._internal}internal"

    @property
    def _internal(self) -> str:
        return self.separator if self.internal_topic_separator_enabled else "."


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityReplicationPolicy(DefaultReplicationPolicy):
    """Keep names as they are, except heartbeats, which are prefixed so that they do not circle."""

    source_cluster_alias: str
    """The alias whose topics the flow mirrors: a name does not tell it."""

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        """Return the same name; heartbeats get the alias."""
        if _looks_like_heartbeats(topic):
            return DefaultReplicationPolicy.format_remote_topic(self, source_alias, topic)
        return topic

    def topic_source(self, topic: str) -> str | None:
        """Return the flow's source: nothing in the name says otherwise."""
        if _looks_like_heartbeats(topic):
            return DefaultReplicationPolicy.topic_source(self, topic)
        return self.source_cluster_alias

    def upstream_topic(self, topic: str) -> str | None:
        """Return the same name; heartbeats lose one alias."""
        if _looks_like_heartbeats(topic):
            return DefaultReplicationPolicy.upstream_topic(self, topic)
        return topic


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnReplicationPolicy(DefaultReplicationPolicy):
    """A policy of the user's own; what it does not say is as in the default one, as in Kafka's interface."""

    own: ReplicationPolicy
    """Has the first three methods at least."""

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        """Return what the user's policy says.

        Raises:
            TypeError: that is no text.
        """
        name: object = self.own.format_remote_topic(source_alias, topic)
        if not isinstance(name, str):
            raise TypeError(f"replication.policy.class: format_remote_topic gave {name!r} for {topic}, not a name")
        return name

    def topic_source(self, topic: str) -> str | None:
        """Return what the user's policy says."""
        return self.own.topic_source(topic)

    def upstream_topic(self, topic: str) -> str | None:
        """Return what the user's policy says."""
        return self.own.upstream_topic(topic)

    def is_internal_topic(self, topic: str) -> bool:
        """Tell by the user's policy if it knows, by name otherwise."""
        ask = getattr(self.own, "is_internal_topic", None)
        return DefaultReplicationPolicy.is_internal_topic(self, topic) if ask is None else bool(ask(topic))

    def offset_syncs_topic(self, alias: str) -> str:
        """Return the user's name, or Kafka's."""
        ask = getattr(self.own, "offset_syncs_topic", None)
        return DefaultReplicationPolicy.offset_syncs_topic(self, alias) if ask is None else str(ask(alias))

    def checkpoints_topic(self, source_alias: str) -> str:
        """Return the user's name, or Kafka's."""
        ask = getattr(self.own, "checkpoints_topic", None)
        return DefaultReplicationPolicy.checkpoints_topic(self, source_alias) if ask is None else str(ask(source_alias))


def _looks_like_heartbeats(topic: str) -> bool:
    return topic.endswith(HEARTBEATS_TOPIC)


def is_heartbeats_topic(policy: ReplicationPolicy, topic: str) -> bool:
    """Tell whether a topic is ``heartbeats``, here or mirrored over any number of hops."""
    return original_topic(policy, topic) == HEARTBEATS_TOPIC


def original_topic(policy: ReplicationPolicy, topic: str) -> str:
    """Return the name a topic was born with."""
    upstream = policy.upstream_topic(topic)
    while policy.topic_source(topic) is not None and upstream not in (None, topic):
        topic = upstream or ""
        upstream = policy.upstream_topic(topic)
    return topic


def is_cycle(policy: ReplicationPolicy, target_alias: str, topic: str) -> bool:
    """Tell whether a topic came from the target at any hop: mirroring it back would never end."""
    while (source := policy.topic_source(topic)) is not None:
        if source == target_alias:
            return True
        upstream = policy.upstream_topic(topic)
        if upstream is None or upstream == topic:
            return False
        topic = upstream
    return False


def positions_topic(source_alias: str) -> str:
    """Return the default name of Connect's source offsets on the target (``offset.storage.topic``)."""
    return f"mm2-offsets.{source_alias}.internal"
