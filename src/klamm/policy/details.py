"""What a policy sees of a request. Everything is read-only: a policy decides, it does not change."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID


_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TopicDetails:
    """A topic that is about to be created (KIP-108). Positional in the KIP's order: tests of policies build one.

    Either the two numbers are given or the assignments, never both.
    """

    topic: str
    num_partitions: int | None
    """None when the request names the brokers itself; the broker's default is filled in already."""
    replication_factor: int | None
    """None when the request names the brokers itself; the broker's default is filled in already."""
    replicas_assignments: Mapping[int, Sequence[int]] | None
    """Broker ids by partition, the leader first; None when the broker places the replicas."""
    configs: Mapping[str, str]
    """Only what the request sets; the broker's defaults come with ``configure``."""
    principal: str | None = None
    """Who asks, ``Type:name``; None when the broker does not say."""
    client_id: str | None = None
    """What the client calls itself; None when it does not."""
    listener: str | None = None
    """The name of the listener that the request came through."""
    validate_only: bool = False
    """Whether nothing will be created either way."""
    defaults: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """The broker's value of every topic config, which is in force where ``configs`` sets none; empty when unknown."""

    def __post_init__(self) -> None:
        """Keep read-only copies of what the caller passed."""
        if self.replicas_assignments is not None:
            frozen = {partition: tuple(brokers) for partition, brokers in self.replicas_assignments.items()}
            object.__setattr__(self, "replicas_assignments", MappingProxyType(frozen))
        object.__setattr__(self, "configs", MappingProxyType(dict(self.configs)))


@dataclass(frozen=True, slots=True)
class AlterConfigDetails:
    """A change of configs that is about to be made."""

    resource_type: str
    """Kafka's word: TOPIC, BROKER, GROUP or CLIENT_METRICS."""
    resource_name: str
    """For BROKER ``""`` when the cluster's default is meant."""
    configs: Mapping[str, str | None]
    """What the request alters; None for what it removes. What a replacing AlterConfigs removes by not naming it is
    not here."""
    result: Mapping[str, str]
    """Everything that is set on the resource then."""
    principal: str | None = None
    """Who asks, ``Type:name``."""
    client_id: str | None = None
    """What the client calls itself; None when it does not."""
    listener: str | None = None
    """The name of the listener that the request came through."""
    validate_only: bool = False
    """Whether nothing will be changed either way."""
    removed: frozenset[str] = frozenset()
    """Configs that are set on the resource now and no longer then, also those that a replacing AlterConfigs drops."""
    defaults: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """For TOPIC the broker's value of every config, which is in force where ``result`` sets none; else empty."""

    def __post_init__(self) -> None:
        """Keep read-only copies of what the caller passed."""
        object.__setattr__(self, "configs", MappingProxyType(dict(self.configs)))
        object.__setattr__(self, "result", MappingProxyType(dict(self.result)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsDetails:
    """A topic that is about to get more partitions."""

    topic: str
    topic_id: UUID | None = None
    """None in tests that do not care."""
    num_partitions: int
    """How many there are."""
    new_num_partitions: int
    """How many there will be."""
    replication_factor: int = 1
    """Replicas of each partition."""
    new_assignments: Sequence[Sequence[int]] | None = None
    """Broker ids of each added partition, the leader first; None when the broker places the replicas."""
    principal: str | None = None
    """Who asks, ``Type:name``."""
    client_id: str | None = None
    """What the client calls itself; None when it does not."""
    listener: str | None = None
    """The name of the listener that the request came through."""
    validate_only: bool = False
    """Whether nothing will be added either way."""

    def __post_init__(self) -> None:
        """Keep read-only copies of what the caller passed."""
        if self.new_assignments is not None:
            object.__setattr__(self, "new_assignments", tuple(map(tuple, self.new_assignments)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicDetails:
    """A topic that is about to be deleted with all that is in it."""

    topic: str
    topic_id: UUID | None = None
    """None in tests that do not care."""
    num_partitions: int = 1
    replication_factor: int = 1
    principal: str | None = None
    """Who asks, ``Type:name``."""
    client_id: str | None = None
    """What the client calls itself; None when it does not."""
    listener: str | None = None
    """The name of the listener that the request came through."""


Details: TypeAlias = TopicDetails | AlterConfigDetails | CreatePartitionsDetails | DeleteTopicDetails

RequestMetadata = TopicDetails
"""The name that shipped Kafka gives it."""
