"""Members, requests and replies of the consumer group protocol (KIP-848)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from uuid import UUID

JOIN_EPOCH: Final = 0
"""Member epoch in the heartbeat of a member that joins."""
FIRST_EPOCH: Final = 1
"""Group epoch and assignment epoch of a group without members. A member that joins before its first target assignment
is computed gets this epoch: the epoch 0 means that a member joins."""
LEAVE_EPOCH: Final = -1
"""Member epoch in the last heartbeat of a member that leaves."""
STATIC_LEAVE_EPOCH: Final = -2
"""Member epoch of a static member that leaves for a while. The group keeps its partitions until its session expires."""
UNCHANGED_MS: Final = -1
"""Rebalance timeout in a heartbeat that does not change it."""

Assignment: TypeAlias = "Mapping[UUID, frozenset[int]]"
"""Partitions by topic id. Topics without partitions are left out, so that equal assignments compare equal."""

NO_PARTITIONS: Final[Assignment] = {}


class ConsumerGroupState(Enum):
    """States of a consumer group; the values appear in ListGroups and ConsumerGroupDescribe."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The target assignment is older than the group epoch."""
    RECONCILING = "Reconciling"
    """At least one member has not reached the target assignment."""
    STABLE = "Stable"


class MemberState(Enum):
    """States of a member on its way to the target assignment.

        from                    event                                                  to
        STABLE                  a new target takes partitions away                     UNREVOKED_PARTITIONS
        STABLE                  a new target adds partitions that are all free         STABLE, at the target's epoch
        STABLE                  some added partitions have another owner               UNRELEASED_PARTITIONS
        UNREVOKED_PARTITIONS    the member no longer reports them as owned             as from STABLE
        UNRELEASED_PARTITIONS   other members have released all of them                STABLE
        any                     the session or the rebalance timeout expires           (removed)

    A member in UNREVOKED_PARTITIONS stays at its epoch and owns the partitions that it has to revoke. In the other
    states it has the target's epoch and owns exactly the partitions assigned to it.
    """

    STABLE = "stable"
    UNREVOKED_PARTITIONS = "unrevoked_partitions"
    UNRELEASED_PARTITIONS = "unreleased_partitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicTraits:
    """Facts about a member that uses the classic protocol in a consumer group, while the group migrates."""

    session_timeout_ms: int
    """Session timeout in force: the requested one, or one that the broker enforces."""
    requested_session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Protocol names with their metadata, in order of preference; at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """A member of a consumer group."""

    member_id: str
    instance_id: str | None = None
    """None for a dynamic member."""
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = UNCHANGED_MS
    topic_names: frozenset[str] = frozenset()
    topic_regex: str | None = None
    """Pattern of the subscribed topics in RE2 syntax; None if the member subscribes by name only."""
    server_assignor: str | None = None
    """Preferred assignor; None for the group's default."""
    classic: ClassicTraits | None = None
    """None for a member that uses the consumer protocol."""
    member_epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    """Epoch before ``member_epoch``. A member may still send it if the last response was lost."""
    state: MemberState = MemberState.STABLE
    assigned: Assignment = field(default_factory=dict)
    """Partitions that the member may use."""
    pending_revocation: Assignment = field(default_factory=dict)
    """Partitions that the member still owns and has to give up; empty except in UNREVOKED_PARTITIONS."""
    assignment_epochs: Mapping[UUID, Mapping[int, int]] = field(default_factory=dict)
    """Epochs of the target assignments with which the member got its partitions (KIP-1251), those that it has to give
    up included. A partition without one has epoch 0."""

    def assignment_epoch(self, topic_id: UUID, partition: int) -> int | None:
        """Return the epoch at which the member got a partition; None if it does not own it."""
        if not any(partition in owned.get(topic_id, ()) for owned in (self.assigned, self.pending_revocation)):
            return None
        return self.assignment_epochs.get(topic_id, {}).get(partition, 0)

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Return whether the member has reached the target assignment of an epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == target_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTimings:
    """Timings that the broker determines for one member."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int = 0
    """Shortest time between two target assignments of the group."""


Resolver: TypeAlias = Callable[[str], frozenset[str]]
"""Function that returns the topics matching a regular expression that the requesting principal may describe.

Raises ``InvalidRegularExpressionError``.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAttempt:
    """A ConsumerGroupHeartbeat request of a member that joins or stays. None in an optional field means unchanged."""

    member_id: str
    member_epoch: int
    client_id: str
    client_host: str
    timings: MemberTimings
    resolve: Resolver
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = UNCHANGED_MS
    topic_names: frozenset[str] | None = None
    topic_regex: str | None = None
    """An empty string removes the regular expression."""
    server_assignor: str | None = None
    owned: Assignment | None = None
    """Partitions that the member owns at present."""

    @property
    def is_full(self) -> bool:
        """Whether the request has all fields, as it has on joining and after errors."""
        return self.member_epoch == JOIN_EPOCH or (
            self.rebalance_timeout_ms != UNCHANGED_MS
            and (self.topic_names is not None or self.topic_regex is not None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """The reply to a ConsumerGroupHeartbeat request without an error."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    """None if it has not changed."""


class SubscribedTopic(Protocol):
    """The part of a topic that the rules need. They must not depend on the catalog, which does I/O."""

    @property
    def topic_id(self) -> UUID:
        """The topic id."""
        ...

    @property
    def name(self) -> str:
        """The topic name."""
        ...

    @property
    def partitions(self) -> tuple[tuple[int, ...], ...]:
        """Replicas by partition."""
        ...


class SubscribableTopics(Protocol):
    """The part of the topic catalog that the rules need."""

    changes: int
    """Number of changes to the catalog so far."""

    def get(self, name: str) -> SubscribedTopic | None:
        """Return a topic by name; None if it does not exist."""
        ...

    def existing(self, names: AbstractSet[str]) -> Mapping[str, SubscribedTopic]:
        """Return the topics among ``names`` by name."""
        ...

    def by_id(self, topic_id: UUID) -> SubscribedTopic | None:
        """Return a topic by id; None if it does not exist."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLimits:
    """Broker configs used by the state machine of consumer groups."""

    assignors: tuple[str, ...] = ("uniform", "range")
    """``group.consumer.assignors``. The first is the default of a group."""
    max_size: int = 2_147_483_647
    """``group.consumer.max.size``"""
    regex_refresh_interval_ms: int = 600_000
    """``group.consumer.regex.refresh.interval.ms``"""
    allows_upgrade: bool = True
    """Whether ``group.consumer.migration.policy`` allows to convert classic groups to consumer groups."""
    allows_downgrade: bool = True
    """Whether the policy allows to convert consumer groups to classic groups."""
    classic_max_size: int = 2_147_483_647
    """``group.max.size``, the limit of classic groups."""


def assignment_of(partitions: Iterable[tuple[UUID, Iterable[int]]]) -> Assignment:
    """Return an assignment of topic ids with partitions, which may name a topic several times."""
    joined: dict[UUID, set[int]] = {}
    for topic_id, indexes in partitions:
        joined.setdefault(topic_id, set()).update(indexes)
    return {topic_id: frozenset(indexes) for topic_id, indexes in joined.items() if indexes}


def is_subset(part: Assignment, whole: Assignment) -> bool:
    """Return whether every partition of ``part`` is in ``whole``."""
    return all(partitions <= whole.get(topic_id, frozenset()) for topic_id, partitions in part.items())
