"""Members of a consumer group and the state derived from them: owners, subscriptions, target assignment, deadlines."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Final

from klamm.broker.groups.consumer.assignors import ASSIGNORS, Subscriber
from klamm.broker.groups.consumer.model import FIRST_EPOCH, NO_PARTITIONS, ConsumerGroupState
from klamm.broker.groups.errors import UnknownMemberIdError
from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from uuid import UUID

    from klamm.broker.groups.classic.model import Moment
    from klamm.broker.groups.consumer.model import (
        Assignment,
        ConsumerLimits,
        ConsumerMember,
        SubscribableTopics,
        SubscribedTopic,
    )


class DeadlineKind(Enum):
    """Deadlines of a member. A member that misses one is removed."""

    SESSION = "session"
    """The next heartbeat."""
    REBALANCE = "rebalance"
    """The end of a revocation."""
    JOIN = "join"
    """The JoinGroup of a member with the classic protocol that has to join again."""
    SYNC = "sync"
    """The SyncGroup that follows the JoinGroup of a member with the classic protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """Topics that matched a regular expression when it was last resolved."""

    names: frozenset[str]
    at: float = -math.inf
    """Monotonic seconds. After a restart the expression is resolved again at the next heartbeat."""
    changes: int = -1
    """Revision of the topic catalog at that time."""


class Membership:
    """Members, epochs and target assignment of one consumer group. No I/O and no clock.

    Every change is made by ``put`` and ``remove``, which keep the indexes consistent.
    """

    def __init__(self, group_id: str, limits: ConsumerLimits, now: Moment) -> None:
        self.group_id: Final = group_id
        self.members: Final[dict[str, ConsumerMember]] = {}
        self.target: Final[dict[str, Assignment]] = {}
        """Target assignment by member id. A member that joined since it was computed has none."""
        self.group_epoch = FIRST_EPOCH
        """Advanced by every change of members, subscriptions and subscribed topics."""
        self.assignment_epoch = FIRST_EPOCH
        """Group epoch for which the target assignment was computed."""
        self.regexes: Final[dict[str, Resolution]] = {}
        """Resolved regular expressions of the members."""
        self.topics_digest = ""
        """Digest of the subscribed topics with their ids and numbers of partitions."""
        self.state_since_ms = now.wall_ms
        self.wake_at = math.inf
        """Time of the next deadline, monotonic seconds. May be too early, never too late."""
        self._limits: Final = limits
        self._seen_changes = -1
        self._assigned_at = -math.inf
        """Time at which the target assignment was computed, monotonic seconds. A restart forgets it."""
        self._interval_ms = 0
        """Shortest time between two target assignments, as of the latest step that was allowed to compute one."""
        self._static: Final[dict[str, str]] = {}
        self._owners: Final[dict[UUID, dict[int, str]]] = {}
        """Owner of each partition: also of one that a member has to revoke."""
        self._released: Final[dict[UUID, set[int]]] = {}
        """Partitions that a member has lost in the latest steps, possibly to another member."""
        self._names: Final[Counter[str]] = Counter()
        self._patterns: Final[Counter[str]] = Counter()
        self._votes: Final[Counter[str]] = Counter()
        """Number of members that prefer an assignor."""
        self._support: Final[Counter[str]] = Counter()
        """Number of members with the classic protocol that support a protocol name."""
        self._deadlines: Final[dict[tuple[DeadlineKind, str], float]] = {}
        self._is_unsaved = False

    # ---- reads

    @property
    def state(self) -> ConsumerGroupState:
        """The state, as ListGroups and ConsumerGroupDescribe return it."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.is_target_stale:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_blank(self) -> bool:
        """Whether the group can be dropped without loss: no member has ever joined."""
        return not self.members and self.group_epoch == FIRST_EPOCH

    @property
    def assignor(self) -> str:
        """The assignor that most members prefer; the first of ``group.consumer.assignors`` if none has a preference."""
        supported = [name for name in self._limits.assignors if self._votes[name]]
        return max(supported, key=self._votes.__getitem__, default=self._limits.assignors[0])

    @property
    def is_target_stale(self) -> bool:
        """Whether the group has changed since the target assignment was computed."""
        return self.group_epoch > self.assignment_epoch

    def may_assign(self, now: Moment) -> bool:
        """Return whether a new target assignment is due: the group has changed, and the interval is over."""
        return self.is_target_stale and now.seconds >= self._assigned_at + self._interval_ms / 1000

    def find(self, member_id: str) -> ConsumerMember:
        """Return a member.

        Raises:
            UnknownMemberIdError: The group has no such member.
        """
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberIdError(f"Member {member_id} is not a member of group {self.group_id}.")
        return member

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """Return the member with an instance id; None if no member has it."""
        return self.members.get(self._static.get(instance_id, ""))

    def is_owned(self, topic_id: UUID, partition: int) -> bool:
        """Return whether a member owns a partition, possibly one that has to revoke it."""
        return partition in self._owners.get(topic_id, NO_PARTITIONS)

    def subscribed_names(self) -> Iterator[str]:
        """Iterate over the names of all subscribed topics, existing or not. A name may occur several times."""
        yield from self._names
        for pattern in self._patterns:
            if pattern in self.regexes:
                yield from self.regexes[pattern].names

    def supports_any(self, names: Iterable[str]) -> bool:
        """Return whether all members with the classic protocol support at least one of these protocol names."""
        classic = sum(member.classic is not None for member in self.members.values())
        return any(self._support[name] == classic for name in names)

    # ---- members

    def put(self, member: ConsumerMember) -> None:
        """Add a member, or replace it by its new form."""
        old = self.members.get(member.member_id)
        has_same_names = old is not None and old.topic_names == member.topic_names
        if old is not None:
            self._unindex(old, keeps_names=has_same_names)
        self.members[member.member_id] = member
        if not has_same_names:
            self._names.update(member.topic_names)
        if member.topic_regex is not None:
            self._patterns[member.topic_regex] += 1
        if member.server_assignor is not None:
            self._votes[member.server_assignor] += 1
        if member.classic is not None:
            self._support.update(dict(member.classic.protocols).keys())
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        for assignment in (member.assigned, member.pending_revocation):
            for topic_id, partitions in assignment.items():
                self._owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, member.member_id))
        self._is_unsaved = True

    def remove(self, member_id: str) -> None:
        """Remove a member with its target and its deadlines."""
        self._unindex(self.members[member_id])
        del self.members[member_id]
        self.target.pop(member_id, None)
        for kind in DeadlineKind:
            self._deadlines.pop((kind, member_id), None)
        self._is_unsaved = True

    def replace_static(self, old: ConsumerMember, new: ConsumerMember) -> None:
        """Replace a static member by its next instance, which gets the target of the old one."""
        target = self.target.get(old.member_id, NO_PARTITIONS)
        self.remove(old.member_id)
        self.put(new)
        self.target[new.member_id] = target

    def _unindex(self, member: ConsumerMember, *, keeps_names: bool = False) -> None:
        for name in () if keeps_names else member.topic_names:
            _subtract(self._names, name)
        if member.topic_regex is not None:
            _subtract(self._patterns, member.topic_regex)
        if member.server_assignor is not None:
            _subtract(self._votes, member.server_assignor)
        for name in () if member.classic is None else dict(member.classic.protocols):
            _subtract(self._support, name)
        if member.instance_id is not None:
            self._static.pop(member.instance_id, None)
        for assignment in (member.assigned, member.pending_revocation):
            for topic_id, partitions in assignment.items():
                owners = self._owners[topic_id]
                self._released.setdefault(topic_id, set()).update(partitions)
                for partition in partitions:
                    del owners[partition]
                if not owners:
                    del self._owners[topic_id]

    # ---- subscribed topics and the target assignment

    def refresh_topics(self, topics: SubscribableTopics) -> bool:
        """Look up all subscribed topics again, and return whether they differ from the last time."""
        for pattern in self.regexes.keys() - self._patterns.keys():
            del self.regexes[pattern]
        self._seen_changes = topics.changes
        digest = hashlib.blake2b(digest_size=16)
        for name, topic in sorted(self._existing(topics).items()):
            digest.update(f"{name}\0{topic.topic_id}\0{len(topic.partitions)}\n".encode())
        before, self.topics_digest = self.topics_digest, digest.hexdigest()
        return self.topics_digest != before

    def assign(self, topics: SubscribableTopics, now: Moment) -> None:
        """Compute the target assignment of the group epoch."""
        existing = self._existing(topics)
        existing_names = frozenset(existing)  # an intersection of two sets takes no longer than the smaller one
        ids: dict[tuple[frozenset[str], str | None], frozenset[UUID]] = {}
        subscribers = {}
        for member_id, member in self.members.items():
            key = member.topic_names, member.topic_regex
            if key not in ids:
                names = self._names_of(member) & existing_names
                ids[key] = frozenset(existing[name].topic_id for name in names)
            subscribers[member_id] = Subscriber(
                instance_id=member.instance_id,
                topic_ids=ids[key],
                assignment=self.target.get(member_id, NO_PARTITIONS),
            )
        counts = {topic.topic_id: len(topic.partitions) for _, topic in sorted(existing.items())}
        computed = ASSIGNORS[self.assignor](subscribers, counts)
        self.target.clear()
        self.target.update(computed)
        self.assignment_epoch = self.group_epoch
        self._assigned_at = now.seconds
        self._is_unsaved = True

    def unsubscribed(self, member: ConsumerMember, topics: SubscribableTopics) -> frozenset[UUID]:
        """Return the topics of which the member has partitions or is to get some, and which it has left meanwhile.

        A target assignment that is not stale has no such topics.
        """
        if not self.is_target_stale:
            return frozenset()
        ids = member.assigned.keys() | self.target.get(member.member_id, NO_PARTITIONS).keys()
        by_id = {topic_id: topics.by_id(topic_id) for topic_id in ids}
        names = self._names_of(member)
        return frozenset(topic_id for topic_id, topic in by_id.items() if topic is None or topic.name not in names)

    def _names_of(self, member: ConsumerMember) -> frozenset[str]:
        resolution = None if member.topic_regex is None else self.regexes.get(member.topic_regex)
        return member.topic_names if resolution is None else member.topic_names | resolution.names

    def _existing(self, topics: SubscribableTopics) -> dict[str, SubscribedTopic]:
        existing = dict(topics.existing(self._names.keys()))
        for pattern in self._patterns.keys() & self.regexes.keys():
            existing.update(topics.existing(self.regexes[pattern].names))
        return existing

    # ---- deadlines

    def _set_deadline(self, kind: DeadlineKind, member_id: str, after_ms: int, now: Moment) -> None:
        at = self._deadlines[kind, member_id] = now.seconds + after_ms / 1000
        self.wake_at = min(self.wake_at, at)

    def _cancel_deadline(self, kind: DeadlineKind, member_id: str) -> None:
        self._deadlines.pop((kind, member_id), None)

    def _passed_deadlines(self, now: Moment) -> list[str]:
        """Return the members that missed a deadline, each once, and set ``wake_at`` to the next deadline."""
        passed = dict.fromkeys(member_id for (_, member_id), at in self._deadlines.items() if at <= now.seconds)
        self.wake_at = min((at for at in self._deadlines.values() if at > now.seconds), default=math.inf)
        return list(passed)

    def take_unsaved(self) -> bool:
        """Return whether the group has changes that must be stored, and reset the flag."""
        is_unsaved, self._is_unsaved = self._is_unsaved, False
        return is_unsaved

    def take_released(self) -> Assignment:
        """Return the partitions that lost their owner since the last call and have none now."""
        if not self._released:
            return NO_PARTITIONS
        released = {
            topic_id: frozenset(partitions - self._owners.get(topic_id, {}).keys())
            for topic_id, partitions in self._released.items()
        }
        self._released.clear()
        return released


def _subtract(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
