"""The assignors on the broker's side: ``uniform`` and ``range`` (Kafka's UniformAssignor and RangeAssignor).

An assignor distributes all partitions of the subscribed topics over the members that are subscribed to them. It gets
the target assignment so far, so that ``uniform`` moves as few partitions as possible. ``range`` looks only at the
subscriptions: it gives each member a contiguous range of every topic, so that equal partitions of topics with equally
many partitions meet at one member.
"""

from __future__ import annotations

import heapq
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from klamm.broker.groups.consumer.model import Assignment

MAX_PASSES: Final = 16
"""Largest number of passes over all topics to balance members with different subscriptions."""


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    instance_id: str | None
    topic_ids: frozenset[UUID]
    """Subscribed topics that exist."""
    assignment: Assignment
    """The member's part of the target assignment so far."""


Subscribers: TypeAlias = "Mapping[str, Subscriber]"
"""Members by id. Their order breaks ties, so an unchanged group keeps its assignment."""
PartitionCounts: TypeAlias = "Mapping[UUID, int]"
"""Number of partitions of every subscribed topic."""
TargetAssignment: TypeAlias = "dict[str, Assignment]"
"""Assignments by member id, one for every member."""


def uniform(subscribers: Subscribers, counts: PartitionCounts) -> TargetAssignment:
    """Give all members nearly the same number of partitions, and move as few as possible."""
    if not subscribers:
        return {}
    kept, free = _kept(subscribers, counts)
    if len({subscriber.topic_ids for subscriber in subscribers.values()}) == 1:
        return _leveled(kept, free, counts)
    load = _Load(subscribers, counts, kept)
    load.balance(free)
    return load.target()


def ranges(subscribers: Subscribers, counts: PartitionCounts) -> TargetAssignment:
    """Give each member a contiguous range of every topic: static members by instance id first, then by member id."""
    in_order = sorted(subscribers, key=lambda member_id: _range_key(member_id, subscribers[member_id]))
    shares: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in subscribers}
    for topic_id, total in counts.items():
        members = [member_id for member_id in in_order if topic_id in subscribers[member_id].topic_ids]
        if not members:
            continue
        quota, extra = divmod(total, len(members))
        start = 0
        for index, member_id in enumerate(members):
            end = start + quota + (index < extra)
            if start < end:
                shares[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(shares)


ASSIGNORS: Final[Mapping[str, Callable[[Subscribers, PartitionCounts], TargetAssignment]]] = MappingProxyType(
    {"uniform": uniform, "range": ranges}
)
"""Assignors by the name that ``group.consumer.assignors`` and clients use."""


def _range_key(member_id: str, subscriber: Subscriber) -> tuple[bool, str]:
    is_dynamic = subscriber.instance_id is None
    return is_dynamic, member_id if subscriber.instance_id is None else subscriber.instance_id


def _kept(subscribers: Subscribers, counts: PartitionCounts) -> tuple[dict[str, Assignment], list[tuple[UUID, int]]]:
    """Return the partitions that every member may keep, and those that no member has."""
    topics: dict[UUID, tuple[set[int], int]] = {topic_id: (set(), total) for topic_id, total in counts.items()}
    kept: dict[str, Assignment] = {}
    for member_id, subscriber in subscribers.items():
        own = subscriber.assignment
        for topic_id, partitions in subscriber.assignment.items():
            topic = topics.get(topic_id) if topic_id in subscriber.topic_ids else None
            taken, total = topic or (set(), 0)
            rest = partitions
            if total <= max(partitions) or not taken.isdisjoint(partitions):
                rest = frozenset(partition for partition in partitions - taken if partition < total)
                own = {**own, topic_id: rest}
            taken |= rest
        kept[member_id] = own if own is subscriber.assignment else {key: rest for key, rest in own.items() if rest}
    free = [(key, index) for key, (taken, total) in topics.items() for index in range(total) if index not in taken]
    return kept, free


def _leveled(target: dict[str, Assignment], free: list[tuple[UUID, int]], counts: PartitionCounts) -> TargetAssignment:
    """Balance members with the same subscription: the numbers of their partitions differ by one at most."""
    sizes = {member_id: sum(map(len, own.values())) for member_id, own in target.items()}
    quota, extra = divmod(sum(counts.values()), len(target))
    # The partitions that do not divide evenly stay with members that have one more already.
    larger = dict.fromkeys([member_id for member_id, size in sizes.items() if size > quota][:extra])
    others = [member_id for member_id in target if member_id not in larger]
    larger |= dict.fromkeys(others[: extra - len(larger)])
    shares = {member_id: quota + (member_id in larger) for member_id in target}
    for member_id, share in shares.items():
        if sizes[member_id] > share:
            held = _in_order(target[member_id], counts)
            free += held[share:]
            target[member_id] = _grouped(held[:share])
    position = 0
    for member_id, share in shares.items():
        missing = max(share - sizes[member_id], 0)
        if missing:
            held = _in_order(target[member_id], counts)
            target[member_id] = _grouped(held + free[position : position + missing])
            position += missing
    return target


class _Load:
    """The partitions of members with different subscriptions while ``uniform`` works."""

    def __init__(self, subscribers: Subscribers, counts: PartitionCounts, kept: Mapping[str, Assignment]) -> None:
        self._subscribers = subscribers
        self._counts = counts
        self._held = {member_id: _in_order(own, counts) for member_id, own in kept.items()}
        """Partitions by member, in the order of topics and partitions."""

    def target(self) -> TargetAssignment:
        """Return the assignment of every member."""
        return {member_id: _grouped(held) for member_id, held in self._held.items()}

    def balance(self, unassigned: Sequence[tuple[UUID, int]]) -> None:
        """Distribute the unassigned partitions, and balance the members as far as their subscriptions allow."""
        topics = self._topics_in_order()
        free: dict[UUID, list[int]] = {}
        for topic_id, partition in unassigned:
            free.setdefault(topic_id, []).append(partition)
        for topic_id, members in topics:
            least = [(len(self._held[member_id]), index, member_id) for index, member_id in enumerate(members)]
            heapq.heapify(least)
            for partition in free.get(topic_id, ()):
                size, index, member_id = least[0]
                self._held[member_id].append((topic_id, partition))
                heapq.heapreplace(least, (size + 1, index, member_id))
        shared = [(topic_id, members) for topic_id, members in topics if len(members) > 1]
        for _ in range(MAX_PASSES):
            if not sum(self._balance_topic(topic_id, members) for topic_id, members in shared):
                break

    def _topics_in_order(self) -> list[tuple[UUID, Sequence[str]]]:
        """Return topics with their members: first those with many partitions for each member, then those with few."""
        members: dict[UUID, list[str]] = {topic_id: [] for topic_id in self._counts}
        for member_id, subscriber in self._subscribers.items():
            for topic_id in subscriber.topic_ids:
                members[topic_id].append(member_id)
        used = [(topic_id, names) for topic_id, names in members.items() if names]
        return sorted(used, key=lambda item: (-self._counts[item[0]] / len(item[1]), len(item[1])))

    def _balance_topic(self, topic_id: UUID, members: Sequence[str]) -> int:
        """Move partitions of one topic from its most to its least loaded members, and return how many."""
        order = {member_id: index for index, member_id in enumerate(members)}
        givers = {
            member_id: [item for item in self._held[member_id] if item[0] == topic_id]
            for member_id in members
            if len(self._held[member_id]) > 1
        }
        most = [(-len(self._held[member_id]), order[member_id], member_id) for member_id, own in givers.items() if own]
        least = [(len(self._held[member_id]), index, member_id) for member_id, index in order.items()]
        heapq.heapify(most)
        heapq.heapify(least)
        moved = 0
        while most and -most[0][0] - least[0][0] > 1:
            _, index, giver = most[0]
            size, taker_index, taker = least[0]
            partition = givers[giver].pop()
            self._held[giver].remove(partition)
            self._held[taker].append(partition)
            moved += 1
            heapq.heapreplace(least, (size + 1, taker_index, taker))
            if givers[giver]:
                heapq.heapreplace(most, (-len(self._held[giver]), index, giver))
            else:
                heapq.heappop(most)
        return moved


def _in_order(assignment: Assignment, counts: PartitionCounts) -> list[tuple[UUID, int]]:
    """Return partitions in the order of topics and indexes."""
    topics = assignment if len(assignment) <= 1 else [topic_id for topic_id in counts if topic_id in assignment]
    return [(topic_id, index) for topic_id in topics for index in sorted(assignment[topic_id])]


def _grouped(held: Sequence[tuple[UUID, int]]) -> Assignment:
    by_topic: dict[UUID, list[int]] = {}
    for topic_id, partition in held:
        by_topic.setdefault(topic_id, []).append(partition)
    return {topic_id: frozenset(partitions) for topic_id, partitions in by_topic.items()}
