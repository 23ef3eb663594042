"""Offsets that are committed when a transaction is: kept apart until then (KIP-98, KIP-447). No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.storage.changes import DropPendingOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from klamm.storage.changes import PutGroupOffset, PutPendingOffset

_Key: TypeAlias = "tuple[str, UUID, int]"
"""Group, topic and partition."""
_NOTHING: Final = frozenset[tuple["UUID", int]]()


class PendingOffsets:
    """The offsets of every open transaction, by producer id. Loop-confined: no lock."""

    def __init__(self, stored: Iterable[PutPendingOffset] = ()) -> None:
        self._producers: dict[int, dict[_Key, PutGroupOffset]] = {}
        for pending in stored:
            self.put(pending.producer_id, pending.commit)

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self._producers)

    def put(self, producer_id: int, commit: PutGroupOffset) -> None:
        """Take an offset; the last one of a transaction counts."""
        self._producers.setdefault(producer_id, {})[commit.group_id, commit.topic_id, commit.partition] = commit

    def take(self, producer_id: int) -> tuple[PutGroupOffset, ...]:
        """Return a producer's offsets, which are no longer pending."""
        return tuple(self._producers.pop(producer_id, {}).values())

    def of_group(self, group_id: str) -> frozenset[tuple[UUID, int]]:
        """Return the partitions of a group whose commits some transaction may still change."""
        if not self._producers:
            return _NOTHING
        return frozenset(key[1:] for commits in self._producers.values() for key in commits if key[0] == group_id)

    def has_group(self, group_id: str) -> bool:
        """Tell whether some transaction may still commit for a group."""
        return any(key[0] == group_id for commits in self._producers.values() for key in commits)

    def overtake(self, commit: PutGroupOffset) -> list[DropPendingOffset]:
        """Forget what a commit outside of any transaction makes old: whoever commits last counts."""
        key = commit.group_id, commit.topic_id, commit.partition
        return [self._drop(producer_id, key) for producer_id in self._with(key)]

    def drop_topic(self, topic_id: UUID) -> None:
        """Forget all of a topic that is gone."""
        self._drop_where(lambda key: key[1] == topic_id)

    def drop_group(self, group_id: str) -> None:
        """Forget all of a group that is deleted."""
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
