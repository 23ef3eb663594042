"""What goes into and comes out of the group state machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from klamm.protocol.errors import ErrorCode

NO_GENERATION: Final = -1
CONSUMER_PROTOCOL_TYPE: Final = "consumer"


class GroupState(Enum):
    """States of a classic group; the values are what ListGroups and DescribeGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    """Only ever shown for a group that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One reading of both clocks."""

    seconds: float
    """Monotonic; deadlines are counted on it."""
    wall_ms: int
    """Milliseconds since the epoch; it is stored and survives a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAttempt:
    """A JoinGroup request, with what the connection knows about its client."""

    member_id: str
    """Empty for a member that has no id yet."""
    group_instance_id: str | None
    """None for a dynamic member (KIP-345)."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Names with their metadata, the preferred one first."""
    new_member_id: str = ""
    """The id to give when ``member_id`` is empty; it is random, so the coordinator makes it."""
    requires_known_member_id: bool = True
    """JoinGroup v4+: a dynamic member must come back with the id it is given (KIP-394)."""
    supports_skipping_assignment: bool = True
    """JoinGroup v9+: a leader can be told not to assign (KIP-814)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """One line of what the leader learns about its group."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    """What a joining member is told."""

    error_code: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    """Only the leader gets any."""
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAttempt:
    """A SyncGroup request."""

    member_id: str
    group_instance_id: str | None
    generation_id: int
    protocol_type: str | None
    """None before v5: not checked."""
    protocol_name: str | None
    """None before v5: not checked."""
    assignments: tuple[tuple[str, bytes], ...]
    """Member ids with their share; only the leader's are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReply:
    """What a syncing member is told."""

    error_code: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """Who shall leave: by member id, or by instance id alone (an administrator removes a static member)."""

    member_id: str
    group_instance_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """The broker settings that a group's state machine obeys."""

    initial_rebalance_delay_ms: int = 3000
    """``group.initial.rebalance.delay.ms``"""
    max_size: int = 2_147_483_647
    """``group.max.size``"""


JoinWaiter: TypeAlias = Callable[[JoinReply], None]
"""Called exactly once, possibly much later, from the step of the state machine that decides the answer."""

SyncWaiter: TypeAlias = Callable[[SyncReply], None]
"""Called exactly once, like a ``JoinWaiter``."""
