"""Requests, replies and states of the classic group state machine."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, TypeAlias

from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode

NO_GENERATION: Final = -1
CONSUMER_PROTOCOL_TYPE: Final = "consumer"


class GroupState(Enum):
    """States of a classic group; the values appear in ListGroups and DescribeGroups.

    A rebalance has two halves. In PREPARING_REBALANCE the members join, and JoinGroup requests are parked. Then a new
    generation starts, and in COMPLETING_REBALANCE the group waits for the leader's assignment, and SyncGroup requests
    are parked.

        from                   event                                                     to
        EMPTY                  first member joins                                        PREPARING_REBALANCE
        PREPARING_REBALANCE    every member has joined, or the join deadline passes;     COMPLETING_REBALANCE
                               absent dynamic members are removed, generation + 1
        PREPARING_REBALANCE    the same, but no member remains                           EMPTY
        COMPLETING_REBALANCE   SyncGroup of the leader                                   STABLE
        COMPLETING_REBALANCE   a member joins, changes, leaves or expires; or the        PREPARING_REBALANCE
                               sync deadline passes
        STABLE                 the same, or the leader joins again                       PREPARING_REBALANCE
        EMPTY                  no offsets left (KIP-211), or DeleteGroups                (removed)

    The join deadline is the largest rebalance timeout of the members. When an EMPTY group gets its first member, it is
    ``group.initial.rebalance.delay.ms`` instead, and is extended while new members arrive, up to the rebalance timeout.
    The sync deadline is also the largest rebalance timeout: a member that has not sent SyncGroup by then is removed.

    Most changes are stored in the states EMPTY and STABLE. After a restart a group has its last completed generation. A
    group that was stored during a rebalance (after a conversion, or with a new static member) then rebalances again.
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    """Only reported for a group that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One reading of both clocks."""

    seconds: float
    """Monotonic clock, for deadlines."""
    wall_ms: int
    """Wall clock, milliseconds since the epoch, for times that are stored and survive a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAttempt:
    """A JoinGroup request, with the client's id and host from its connection."""

    member_id: str
    """Empty for a member without an id."""
    group_instance_id: str | None
    """None for a dynamic member (KIP-345)."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Protocol names with their metadata, in order of preference."""
    enforced_session_timeout_ms: int | None = None
    """Session timeout that the broker enforces for the client; None means the one that the client requests."""
    new_member_id: str = ""
    """Random id, assigned if ``member_id`` is empty. The coordinator creates it, so that the state machine has no
    randomness.
    """
    requires_known_member_id: bool = True
    """JoinGroup v4+: a dynamic member has to join again with the id that it receives (KIP-394)."""
    supports_skipping_assignment: bool = True
    """JoinGroup v9+: the reply can ask the leader to skip the assignment (KIP-814)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member in the leader's JoinGroup response."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    """The reply to a JoinGroup request."""

    error_code: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    """Empty except for the leader."""
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAttempt:
    """A SyncGroup request."""

    member_id: str
    group_instance_id: str | None
    generation_id: int
    protocol_type: str | None
    """None before v5, which means unchecked."""
    protocol_name: str | None
    """None before v5, which means unchecked."""
    assignments: tuple[tuple[str, bytes], ...]
    """Assignments by member id. Only those of the leader are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReply:
    """The reply to a SyncGroup request."""

    error_code: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """A member in a LeaveGroup request: by member id, or by instance id alone (admin removes a static member)."""

    member_id: str
    group_instance_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Broker configs used by the group state machine."""

    initial_rebalance_delay_ms: int = 3000
    """``group.initial.rebalance.delay.ms``"""
    max_size: int = 2_147_483_647
    """``group.max.size``"""


JoinWaiter: TypeAlias = Callable[[JoinReply], None]
"""Callback for the reply. Called exactly once, possibly much later, within a step of the state machine."""

SyncWaiter: TypeAlias = Callable[[SyncReply], None]
"""Called exactly once, like a ``JoinWaiter``."""
