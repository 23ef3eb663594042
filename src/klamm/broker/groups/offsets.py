"""Tables of committed offsets (KIP-211) and of offsets that wait for their transaction (KIP-98, KIP-447). No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.lazy_dataclass import dataclass
from klamm.storage.metadata.changes import DropGroupOffset, DropPendingOffset, PutGroupOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet
    from uuid import UUID

    from klamm.broker.groups.consumer.migration import AnyGroup
    from klamm.storage.metadata.changes import PutPendingOffset

NO_OFFSET: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    """One partition of an OffsetCommit request."""

    topic: str
    """Topic name; empty if the request has a topic id that no topic has."""
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: UUID | None = None
    """Topic id in the request; None if the request has the name."""


class OffsetTable:
    """Last commit of every partition of every group, kept as stored changes. Used on the event loop only."""

    def __init__(self, stored: Iterable[PutGroupOffset] = ()) -> None:
        self._groups: dict[str, dict[UUID, dict[int, PutGroupOffset]]] = {}
        for commit in stored:
            self.put(commit)

    def put(self, commit: PutGroupOffset) -> None:
        """Set the commit of a partition. The last commit wins, even with a smaller offset."""
        self._groups.setdefault(commit.group_id, {}).setdefault(commit.topic_id, {})[commit.partition] = commit

    def put_all(self, group_id: str, commits: Mapping[UUID, Mapping[int, PutGroupOffset]]) -> None:
        """Set commits of one group, given by topic and partition."""
        topics = self._groups.setdefault(group_id, {})
        for topic_id, partitions in commits.items():
            topics.setdefault(topic_id, {}).update(partitions)

    def get(self, group_id: str, topic_id: UUID, partition: int) -> PutGroupOffset | None:
        """Return the last commit; None if there is none."""
        return self._groups.get(group_id, {}).get(topic_id, {}).get(partition)

    def of_group(self, group_id: str) -> Mapping[UUID, Mapping[int, PutGroupOffset]]:
        """Return a group's commits by topic and partition; empty if it has none."""
        return self._groups.get(group_id, {})

    def topic_ids(self) -> frozenset[UUID]:
        """Return the ids of all topics with commits."""
        return frozenset(topic_id for topics in self._groups.values() for topic_id in topics)

    def group_ids(self) -> Iterator[str]:
        """Iterate over the ids of all groups with commits."""
        return iter(self._groups)

    def drop(self, removal: DropGroupOffset) -> None:
        """Remove one commit."""
        topics = self._groups.get(removal.group_id, {})
        partitions = topics.get(removal.topic_id, {})
        partitions.pop(removal.partition, None)
        if not partitions:
            topics.pop(removal.topic_id, None)
        if not topics:
            self._groups.pop(removal.group_id, None)

    def drop_group(self, group_id: str) -> None:
        """Remove all commits of a group."""
        self._groups.pop(group_id, None)

    def drop_topic(self, topic_id: UUID) -> None:
        """Remove all groups' commits for a topic."""
        for group_id, topics in tuple(self._groups.items()):
            topics.pop(topic_id, None)
            if not topics:
                del self._groups[group_id]

    def expired(
        self,
        group: AnyGroup,
        *,
        wall_ms: int,
        retention_ms: int,
        in_use: Callable[[], AbstractSet[UUID]],
    ) -> list[DropGroupOffset]:
        """Return the removals for the expired offsets of one group. Offsets of subscribed topics never expire.

        Args:
            group: Group. Its state decides whether offsets expire, and from when the retention counts.
            wall_ms: Milliseconds since the epoch.
            retention_ms: ``offsets.retention.minutes``, in milliseconds.
            in_use: Function that returns those of the group's topics to which it is subscribed. It may parse
                the subscription of every member.
        """
        since_ms = group.offsets_expire_since_ms
        commits = self.of_group(group.group_id)
        if since_ms is None or not commits:
            return []
        used = in_use()
        return [
            DropGroupOffset(group_id=group.group_id, topic_id=topic_id, partition=commit.partition)
            for topic_id, partitions in commits.items()
            if topic_id not in used
            for commit in partitions.values()
            if _expires_at(commit, since_ms, retention_ms) <= wall_ms
        ]


def _expires_at(commit: PutGroupOffset, since_ms: int, retention_ms: int) -> int:
    if commit.expire_timestamp_ms is not None:
        return commit.expire_timestamp_ms
    return max(commit.commit_timestamp_ms, since_ms) + retention_ms


_Partition: TypeAlias = "tuple[UUID, int]"
_NOTHING: Final = frozenset[_Partition]()


class PendingOffsets:
    """Pending offsets of all open transactions. Used on the event loop only, so it needs no lock.

    Of the pending offsets that several producers have for a partition, the one that was added last wins, whichever
    transaction ends last. The order of those loaded from the store is unknown: of these, the one that is committed last
    wins.
    """

    def __init__(self, stored: Iterable[PutPendingOffset] = ()) -> None:
        self._groups: dict[str, dict[int, dict[_Partition, tuple[int, PutGroupOffset]]]] = {}
        """Pending offsets by group and producer id, with their sequence numbers. Nothing in it is empty."""
        self._groups_of: dict[int, dict[str, None]] = {}
        """Groups in which a producer has pending offsets, in the order of its commits."""
        self._sequence = 0
        """Sequence number of the last added offset. Those loaded from the store have 0."""
        for pending in stored:
            self._put(pending.producer_id, pending.commit)

    def put(self, producer_id: int, commit: PutGroupOffset) -> None:
        """Add a pending offset. The last one of a transaction wins."""
        self._sequence += 1
        self._put(producer_id, commit)

    def take(self, producer_id: int) -> dict[str, tuple[PutGroupOffset, ...]]:
        """Remove and return a producer's pending offsets, by group."""
        return {
            group_id: tuple(commit for _, commit in self._remove(group_id, producer_id).values())
            for group_id in tuple(self._groups_of.get(producer_id, ()))
        }

    def of_group(self, group_id: str) -> frozenset[_Partition]:
        """Return the partitions of a group that have pending offsets."""
        producers = self._groups.get(group_id)
        return frozenset(key for commits in producers.values() for key in commits) if producers else _NOTHING

    def has_group(self, group_id: str) -> bool:
        """Return whether a group has pending offsets."""
        return group_id in self._groups

    def overtake(self, later: PutGroupOffset | DropGroupOffset) -> list[DropPendingOffset]:
        """Remove the pending offsets that a later non-transactional commit, or a deletion, supersedes."""
        key = later.topic_id, later.partition
        producers = self._groups.get(later.group_id, {})
        overtaken = [producer_id for producer_id, commits in producers.items() if key in commits]
        return [self._drop(later.group_id, producer_id, key) for producer_id in overtaken]

    def overtake_older(self, producer_id: int) -> dict[str, list[DropPendingOffset]]:
        """Remove other producers' pending offsets that the commit of a producer's later ones supersedes, by group."""
        removals = {}
        for group_id in self._groups_of.get(producer_id, ()):
            producers = self._groups[group_id]
            own = producers[producer_id]
            overtaken = [
                (other_id, key)
                for other_id, commits in producers.items()
                if other_id != producer_id
                for key in own.keys() & commits.keys()
                if commits[key][0] < own[key][0]
            ]
            removals[group_id] = [self._drop(group_id, other_id, key) for other_id, key in overtaken]
        return removals

    def drop_topic(self, topic_id: UUID) -> None:
        """Remove all pending offsets of a deleted topic."""
        dropped = [
            (group_id, producer_id, key)
            for group_id, producers in self._groups.items()
            for producer_id, commits in producers.items()
            for key in commits
            if key[0] == topic_id
        ]
        for group_id, producer_id, key in dropped:
            self._drop(group_id, producer_id, key)

    def drop_group(self, group_id: str) -> None:
        """Remove all pending offsets of a deleted group."""
        for producer_id in tuple(self._groups.get(group_id, ())):
            self._remove(group_id, producer_id)

    def _put(self, producer_id: int, commit: PutGroupOffset) -> None:
        commits = self._groups.setdefault(commit.group_id, {}).setdefault(producer_id, {})
        commits[commit.topic_id, commit.partition] = self._sequence, commit
        self._groups_of.setdefault(producer_id, {})[commit.group_id] = None

    def _drop(self, group_id: str, producer_id: int, key: _Partition) -> DropPendingOffset:
        commits = self._groups[group_id][producer_id]
        del commits[key]
        if not commits:
            self._remove(group_id, producer_id)
        return DropPendingOffset(producer_id=producer_id, group_id=group_id, topic_id=key[0], partition=key[1])

    def _remove(self, group_id: str, producer_id: int) -> dict[_Partition, tuple[int, PutGroupOffset]]:
        groups, producers = self._groups_of[producer_id], self._groups[group_id]
        del groups[group_id]
        if not groups:
            del self._groups_of[producer_id]
        commits = producers.pop(producer_id)
        if not producers:
            del self._groups[group_id]
        return commits
