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
            in_use: Function that returns those of the group's topics to which it is subscribed. It parses the
                subscription of every member.
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


_Key: TypeAlias = "tuple[str, UUID, int]"
"""Group, topic and partition."""
_NOTHING: Final = frozenset[tuple["UUID", int]]()


class PendingOffsets:
    """Pending offsets of all open transactions, by producer id. Used on the event loop only, so it needs no lock."""

    def __init__(self, stored: Iterable[PutPendingOffset] = ()) -> None:
        self._producers: dict[int, dict[_Key, PutGroupOffset]] = {}
        for pending in stored:
            self.put(pending.producer_id, pending.commit)

    def put(self, producer_id: int, commit: PutGroupOffset) -> None:
        """Add a pending offset. The last one of a transaction wins."""
        self._producers.setdefault(producer_id, {})[commit.group_id, commit.topic_id, commit.partition] = commit

    def take(self, producer_id: int) -> tuple[PutGroupOffset, ...]:
        """Remove and return a producer's pending offsets."""
        return tuple(self._producers.pop(producer_id, {}).values())

    def of_group(self, group_id: str) -> frozenset[tuple[UUID, int]]:
        """Return the partitions of a group that have pending offsets."""
        if not self._producers:
            return _NOTHING
        return frozenset(key[1:] for commits in self._producers.values() for key in commits if key[0] == group_id)

    def has_group(self, group_id: str) -> bool:
        """Return whether a group has pending offsets."""
        return any(key[0] == group_id for commits in self._producers.values() for key in commits)

    def overtake(self, commit: PutGroupOffset) -> list[DropPendingOffset]:
        """Remove the pending offsets that a non-transactional commit supersedes: the later commit wins."""
        key = commit.group_id, commit.topic_id, commit.partition
        return [self._drop(producer_id, key) for producer_id in self._with(key)]

    def drop_topic(self, topic_id: UUID) -> None:
        """Remove all pending offsets of a deleted topic."""
        self._drop_where(lambda key: key[1] == topic_id)

    def drop_group(self, group_id: str) -> None:
        """Remove all pending offsets of a deleted group."""
        self._drop_where(lambda key: key[0] == group_id)

    def _with(self, key: _Key) -> tuple[int, ...]:
        return tuple(producer_id for producer_id, commits in self._producers.items() if key in commits)

    def _drop_where(self, is_meant: Callable[[_Key], bool]) -> None:
        for producer_id, commits in tuple(self._producers.items()):
            for key in [key for key in commits if is_meant(key)]:
                self._drop(producer_id, key)

    def _drop(self, producer_id: int, key: _Key) -> DropPendingOffset:
        commits = self._producers[producer_id]
        del commits[key]
        if not commits:
            del self._producers[producer_id]
        group_id, topic_id, partition = key
        return DropPendingOffset(producer_id=producer_id, group_id=group_id, topic_id=topic_id, partition=partition)
