"""Names of remote topics and internal topics: the replication policies, and the detection of cycles."""

from __future__ import annotations

from typing import Final, Protocol

from klamm.lazy_dataclass import dataclass

CONNECTOR: Final = "MirrorSourceConnector"
"""Name of the source connector of a dedicated MirrorMaker. In a Connect cluster, the operator chooses it."""
OWN_CONNECTOR: Final = "klamm-mirror"
"""Name of the connector in the keys of klamm's own records."""
HEARTBEATS_TOPIC: Final = "heartbeats"


class ReplicationPolicy(Protocol):
    """Policy for the names of remote topics (Kafka's ``ReplicationPolicy``)."""

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        """Return the name of a topic of ``source_alias`` on a target."""
        ...

    def topic_source(self, topic: str) -> str | None:
        """Return the alias of the cluster a topic was mirrored from. None: the name shows no other cluster."""
        ...

    def upstream_topic(self, topic: str) -> str | None:
        """Return the name of a topic on the cluster it was mirrored from. None: it was not mirrored."""
        ...

    def is_internal_topic(self, topic: str) -> bool:
        """Return whether a topic is an internal topic of Kafka, Connect or the mirror, which is never mirrored."""
        ...

    def offset_syncs_topic(self, alias: str) -> str:
        """Return the name of the offset-syncs topic."""
        ...

    def checkpoints_topic(self, source_alias: str) -> str:
        """Return the name of the checkpoints topic of a source."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultReplicationPolicy:
    """Policy that prefixes the source alias: ``orders`` of ``us-west`` becomes ``us-west.orders``."""

    separator: str = "."
    """Separator between alias and topic. Empty, with an empty alias: remote topics have the names of their sources."""
    internal_topic_separator_enabled: bool = True
    """Whether the names of internal topics contain the separator too."""

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        """Return ``<source alias><separator><topic>``."""
        return f"{source_alias}{self.separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        """Return the part before the first separator. None: the name has no separator in front of anything else.

        Splits as Java's ``Pattern.split`` does in MirrorMaker: an empty separator separates single characters, and
        empty parts at the end do not count.
        """
        parts = topic.split(self.separator) if self.separator else list(topic)
        return parts[0] if any(parts[1:]) else None

    def upstream_topic(self, topic: str) -> str | None:
        """Return the part after the first separator. None: ``topic_source`` is None."""
        source = self.topic_source(topic)
        return None if source is None else topic[len(source) + len(self.separator) :]

    def is_internal_topic(self, topic: str) -> bool:
        """Return whether the name is one of an internal topic of Kafka, or of MirrorMaker since Kafka 4.1."""
        end = f"{self._internal}internal"
        is_mirrors = topic.startswith("mm2") and topic.endswith(end)
        return topic.startswith(("__", ".")) or is_mirrors or topic.endswith(f"{self._internal}checkpoints{end}")

    def offset_syncs_topic(self, alias: str) -> str:
        """Return ``mm2-offset-syncs.<alias>.internal`` with the configured separator."""
        return f"mm2-offset-syncs{self._internal}{alias}{self._internal}internal"

    def checkpoints_topic(self, source_alias: str) -> str:
        """Return ``<source>.checkpoints.internal`` with the configured separator."""
        return f"{source_alias}{self._internal}checkpoints{self._internal}internal"

    @property
    def _internal(self) -> str:
        return self.separator if self.internal_topic_separator_enabled else "."


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityReplicationPolicy(DefaultReplicationPolicy):
    """Policy that keeps names. Heartbeats are prefixed nevertheless, so that they do not circulate."""

    source_cluster_alias: str
    """Alias of the flow's source, because the names do not contain it."""

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        """Return the same name. Heartbeats are prefixed with the alias."""
        if _looks_like_heartbeats(topic):
            return DefaultReplicationPolicy.format_remote_topic(self, source_alias, topic)
        return topic

    def topic_source(self, topic: str) -> str | None:
        """Return the alias of the flow's source. Heartbeats name theirs in the prefix."""
        if _looks_like_heartbeats(topic):
            return DefaultReplicationPolicy.topic_source(self, topic)
        return self.source_cluster_alias

    def upstream_topic(self, topic: str) -> str | None:
        """Return the topic name unchanged; a heartbeats topic without its first alias."""
        if _looks_like_heartbeats(topic):
            return DefaultReplicationPolicy.upstream_topic(self, topic)
        return topic


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnReplicationPolicy(DefaultReplicationPolicy):
    """Custom policy. Methods that it lacks come from the default policy, as in Kafka's interface."""

    own: ReplicationPolicy
    """Instance of the custom class, which has at least the first three methods."""

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        """Return the result of the custom policy.

        Raises:
            TypeError: The result is not a string.
        """
        name: object = self.own.format_remote_topic(source_alias, topic)
        if not isinstance(name, str):
            raise TypeError(f"replication.policy.class: format_remote_topic gave {name!r} for {topic}, not a name")
        return name

    def topic_source(self, topic: str) -> str | None:
        """Return the result of the custom policy."""
        return self.own.topic_source(topic)

    def upstream_topic(self, topic: str) -> str | None:
        """Return the result of the custom policy."""
        return self.own.upstream_topic(topic)

    def is_internal_topic(self, topic: str) -> bool:
        """Return the result of the custom policy if it has this method, else decide by the name."""
        ask = getattr(self.own, "is_internal_topic", None)
        return DefaultReplicationPolicy.is_internal_topic(self, topic) if ask is None else bool(ask(topic))

    def offset_syncs_topic(self, alias: str) -> str:
        """Return the name of the custom policy if it has this method, else Kafka's."""
        ask = getattr(self.own, "offset_syncs_topic", None)
        return DefaultReplicationPolicy.offset_syncs_topic(self, alias) if ask is None else str(ask(alias))

    def checkpoints_topic(self, source_alias: str) -> str:
        """Return the name of the custom policy if it has this method, else Kafka's."""
        ask = getattr(self.own, "checkpoints_topic", None)
        return DefaultReplicationPolicy.checkpoints_topic(self, source_alias) if ask is None else str(ask(source_alias))


def _looks_like_heartbeats(topic: str) -> bool:
    return topic.endswith(HEARTBEATS_TOPIC)


def is_heartbeats_topic(policy: ReplicationPolicy, topic: str) -> bool:
    """Return whether a topic is ``heartbeats``, local or mirrored over any number of hops."""
    return original_topic(policy, topic) == HEARTBEATS_TOPIC


def original_topic(policy: ReplicationPolicy, topic: str) -> str:
    """Return the name of a topic on the cluster where it was created."""
    upstream = policy.upstream_topic(topic)
    while policy.topic_source(topic) is not None and upstream not in (None, topic):
        topic = upstream or ""
        upstream = policy.upstream_topic(topic)
    return topic


def is_cycle(policy: ReplicationPolicy, target_alias: str, topic: str) -> bool:
    """Return whether a topic was mirrored from the target at any hop. Mirroring it back would create a cycle."""
    while (source := policy.topic_source(topic)) is not None:
        if source == target_alias:
            return True
        upstream = policy.upstream_topic(topic)
        if upstream is None or upstream == topic:
            return False
        topic = upstream
    return False


def source_offsets_topic(source_alias: str) -> str:
    """Return the default name of the topic with the source offsets on the target (``offset.storage.topic``)."""
    return f"mm2-offsets.{source_alias}.internal"
