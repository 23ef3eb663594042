"""Committed offsets by group, topic id and partition, and their expiration (KIP-211). No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.storage.metadata.changes import DropGroupOffset, PutGroupOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from uuid import UUID

    from klamm.broker.groups.kinds import AnyGroup

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
        is_in_use: Callable[[UUID], bool],
    ) -> list[DropGroupOffset]:
        """Return the removals for the expired offsets of one group. Offsets of subscribed topics never expire.

        Args:
            group: Group. Its state decides whether offsets expire, and from when the retention counts.
            wall_ms: Milliseconds since the epoch.
            retention_ms: ``offsets.retention.minutes``, in milliseconds.
            is_in_use: Function that returns whether the group is subscribed to a topic.
        """
        since_ms = group.offsets_expire_since_ms
        if since_ms is None:
            return []
        return [
            DropGroupOffset(group_id=group.group_id, topic_id=topic_id, partition=commit.partition)
            for topic_id, partitions in self.of_group(group.group_id).items()
            if not is_in_use(topic_id)
            for commit in partitions.values()
            if _expires_at(commit, since_ms, retention_ms) <= wall_ms
        ]


def _expires_at(commit: PutGroupOffset, since_ms: int, retention_ms: int) -> int:
    if commit.expire_timestamp_ms is not None:
        return commit.expire_timestamp_ms
    return max(commit.commit_timestamp_ms, since_ms) + retention_ms
