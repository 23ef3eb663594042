"""Offsets that take effect when their transaction commits (KIP-98, KIP-447). No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.storage.metadata.changes import DropPendingOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from klamm.storage.metadata.changes import PutGroupOffset, PutPendingOffset

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
