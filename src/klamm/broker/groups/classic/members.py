"""The members of a group: sessions, parked requests, the leader, and the choice of the protocol."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import field
from typing import TYPE_CHECKING

from klamm.broker.groups.classic.model import JoinedMember, JoinReply, SyncReply
from klamm.broker.groups.errors import FencedInstanceIdError, UnknownMemberIdError
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from klamm.broker.groups.classic.model import JoinWaiter, SyncWaiter


@dataclass(slots=True, kw_only=True)
class Member:
    """A member of a group, changed only by its group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    """Session timeout in force: the requested one, or one that the broker enforces."""
    requested_session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    is_new: bool = False
    """Whether the member's first join is still parked. It has no id yet and sends no heartbeats, so its session is
    ``NEW_MEMBER_JOIN_TIMEOUT_S`` and ends even while the join is parked.
    """
    expires_at: float = field(default=math.inf, compare=False)
    """End of the session, monotonic seconds."""

    def enforce_session_timeout(self, enforced_ms: int | None) -> None:
        """Set the session timeout in force from the next heartbeat on; None means the requested one."""
        self.session_timeout_ms = self.requested_session_timeout_ms if enforced_ms is None else enforced_ms

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for a protocol; empty if it does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")


class GroupMembers:
    """The members of one group in the order in which they joined, indexed so that a step need not scan them all."""

    def __init__(self) -> None:
        self.leader_id: str | None = None
        self.pending: dict[str, float] = {}
        """Member ids handed out but not used yet (KIP-394), with the monotonic second at which each expires."""
        self.unsynced: set[str] = set()
        """Members that have not sent SyncGroup in this generation."""
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}
        self.support: Counter[str] = Counter()
        self._topics: tuple[str, frozenset[str] | None] | None = None
        """Result of ``topics`` with its protocol; None when members or their protocols have changed since."""
        self._joining: dict[str, JoinWaiter] = {}
        self._syncing: dict[str, SyncWaiter] = {}

    def __len__(self) -> int:
        """Return the number of members, not counting pending ids."""
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        """Iterate over the members, in the order in which they joined."""
        return iter(self._members.values())

    def __contains__(self, member_id: object) -> bool:
        """Return whether a member has this id."""
        return member_id in self._members

    @property
    def joining_count(self) -> int:
        """Number of members with a parked join."""
        return len(self._joining)

    @property
    def rebalance_timeout_ms(self) -> int:
        """Largest rebalance timeout of the members; 0 without members."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def get(self, member_id: str) -> Member | None:
        """Return a member by id; None if there is none."""
        return self._members.get(member_id)

    def static_member_id(self, group_instance_id: str) -> str | None:
        """Return the member id of an instance id; None if no member has it."""
        return self._static.get(group_instance_id)

    def find(self, member_id: str, group_instance_id: str | None) -> Member:
        """Return the member that sent a request.

        Raises:
            UnknownMemberIdError: The group has no such member, or no member has the instance id.
            FencedInstanceIdError: Another member has the instance id.
        """
        if group_instance_id is not None:
            holder = self._static.get(group_instance_id)
            if holder is not None and holder != member_id:
                raise FencedInstanceIdError
            if holder is None:
                raise UnknownMemberIdError
        member = self._members.get(member_id)
        if member is None:
            raise UnknownMemberIdError
        return member

    def has_parked_join(self, member_id: str) -> bool:
        """Return whether the member has a parked join."""
        return member_id in self._joining

    def is_waiting(self, member_id: str) -> bool:
        """Return whether the member has a parked request, during which it sends no heartbeats."""
        return member_id in self._joining or member_id in self._syncing

    def has_everyone_joined(self) -> bool:
        """Return whether every member has joined and no pending id is left."""
        return len(self._joining) == len(self._members) and not self.pending

    # ---- adding and removing members

    def add(self, member: Member) -> None:
        """Add a member. The first one becomes the leader."""
        self._members[member.member_id] = member
        if member.group_instance_id is not None:
            self._static[member.group_instance_id] = member.member_id
        self.support.update(dict(member.protocols).keys())
        self._topics = None
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.pending.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending id. Its parked requests are answered with UNKNOWN_MEMBER_ID."""
        self.pending.pop(member_id, None)
        self.unsynced.discard(member_id)
        member = self._members.pop(member_id, None)
        if member is None:
            return
        self._withdraw_support(member)
        if member.group_instance_id is not None:
            self._static.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self._members), None)
        self.answer_join(member_id, JoinReply(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        self.answer_sync(member_id, SyncReply(error_code=ErrorCode.UNKNOWN_MEMBER_ID))

    def replace_static(self, old: Member, new: Member) -> None:
        """Replace a static member by its restarted instance. Parked requests of the old one get FENCED_INSTANCE_ID."""
        fenced = ErrorCode.FENCED_INSTANCE_ID
        self.answer_join(old.member_id, JoinReply(error_code=fenced, member_id=old.member_id))
        self.answer_sync(old.member_id, SyncReply(error_code=fenced))
        leads = self.leader_id == old.member_id
        self.remove(old.member_id)
        self.add(new)
        if leads:
            self.leader_id = new.member_id

    def update_protocols(self, member: Member, protocols: tuple[tuple[str, bytes], ...]) -> None:
        """Set the protocols that a member supports."""
        self._withdraw_support(member)
        member.protocols = protocols
        self.support.update(dict(protocols).keys())

    def _withdraw_support(self, member: Member) -> None:
        self._topics = None
        for name in dict(member.protocols):
            self.support[name] -= 1
            if not self.support[name]:
                del self.support[name]

    def elect_joined_leader(self) -> bool:
        """Choose a leader with a parked join, preferably the current one. Return False if no member has one."""
        if self.leader_id not in self._joining:
            joined = next((member.member_id for member in self if member.member_id in self._joining), None)
            if joined is None:
                return False
            self.leader_id = joined
        return True

    # ---- protocols

    def supports_any(self, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Return whether every member supports at least one common protocol among these."""
        return any(self.support[name] == len(self) for name, _ in protocols)

    def vote(self) -> str | None:
        """Return the protocol with the most votes among those that all members support; None without members.

        Each member votes for its first supported candidate. A tie goes to the candidate that got the earliest vote.
        """
        candidates = {name for name, count in self.support.items() if count == len(self)}
        votes = Counter(next(name for name, _ in member.protocols if name in candidates) for member in self)
        return max(votes, key=votes.__getitem__, default=None)

    def topics(self, protocol_name: str, read: Callable[[bytes], Iterable[str]]) -> frozenset[str] | None:
        """Return the topics in the metadata of consumers for a protocol; None if a member's metadata cannot be parsed.

        The metadata of all members is parsed once after a change, not for every request that needs the topics.

        Args:
            protocol_name: Protocol of the group.
            read: Function that returns the topics in the metadata of a member. It raises ValueError if there are none.
        """
        if self._topics is None or self._topics[0] != protocol_name:
            try:
                topics = frozenset(topic for member in self for topic in read(member.metadata(protocol_name)))
            except ValueError:
                topics = None
            self._topics = protocol_name, topics
        return self._topics[1]

    def listing(self, protocol_name: str | None) -> tuple[JoinedMember, ...]:
        """Return the members for the leader's assignment."""
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(protocol_name),
            )
            for member in self
        )

    # ---- parked requests

    def park_join(self, member_id: str, waiter: JoinWaiter) -> None:
        """Park a join. An older parked join of the member is answered with REBALANCE_IN_PROGRESS."""
        self.answer_join(member_id, JoinReply(error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member_id))
        self._joining[member_id] = waiter

    def park_sync(self, member_id: str, waiter: SyncWaiter) -> None:
        """Park a sync. An older parked sync of the member is answered with REBALANCE_IN_PROGRESS."""
        self.answer_sync(member_id, SyncReply(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        self._syncing[member_id] = waiter

    def answer_join(self, member_id: str, reply: JoinReply) -> bool:
        """Answer the member's parked join, and return whether there was one."""
        waiter = self._joining.pop(member_id, None)
        if waiter is not None:
            waiter(reply)
        return waiter is not None

    def answer_sync(self, member_id: str, reply: SyncReply) -> bool:
        """Answer the member's parked sync, and return whether there was one."""
        waiter = self._syncing.pop(member_id, None)
        if waiter is not None:
            waiter(reply)
        return waiter is not None

    def answer_everyone(self, error_code: ErrorCode) -> None:
        """Answer every parked request with an error."""
        for member_id in tuple(self._joining):
            self.answer_join(member_id, JoinReply(error_code=error_code, member_id=member_id))
        for member_id in tuple(self._syncing):
            self.answer_sync(member_id, SyncReply(error_code=error_code))
