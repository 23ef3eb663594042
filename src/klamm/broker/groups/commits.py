"""Committing, fetching, deleting and expiring offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from klamm.broker.groups.errors import GroupIdNotFoundError, IllegalGenerationError, NonEmptyGroupError
from klamm.broker.groups.model import CONSUMER_PROTOCOL_TYPE, GroupState
from klamm.broker.groups.subscription import is_subscribed
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.storage.changes import DropGroupOffset, DropPendingOffset, PutGroupOffset, PutPendingOffset

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from klamm.broker.groups.classic import ClassicGroup
    from klamm.broker.groups.offsets import OffsetToCommit
    from klamm.broker.groups.registry import Entry, GroupRegistry
    from klamm.broker.groups.settings import GroupSettings
    from klamm.storage.changes import Change

FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND: Final = 9
"""Of OffsetCommit; older clients are told ILLEGAL_GENERATION of a group that does not exist."""

FetchedOffsets: TypeAlias = tuple[tuple[str, tuple[tuple[int, PutGroupOffset | None], ...]], ...]
"""By topic name and partition; None where nothing is committed."""


class Topic(Protocol):
    """What groups need to know of a topic."""

    @property
    def topic_id(self) -> UUID:
        """The id, another one for each topic that ever had this name."""
        ...

    @property
    def name(self) -> str:
        """The name."""
        ...

    def has_partition(self, partition: int, /) -> bool:
        """Tell whether the partition exists."""
        ...


class Topics(Protocol):
    """What groups need of the topic catalog."""

    def get(self, name: str, /) -> Topic | None:
        """Return a topic by name."""
        ...

    def by_id(self, topic_id: UUID, /) -> Topic | None:
        """Return a topic by id."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """Who commits: a member in its generation, or somebody from outside (empty id, generation -1)."""

    group_id: str
    member_id: str = ""
    group_instance_id: str | None = None
    generation_id: int = -1


class OffsetService:
    """Committed offsets of all groups. Topics are kept by id: one made anew under its old name has no commits."""

    def __init__(self, registry: GroupRegistry, settings: GroupSettings, topics: Topics) -> None:
        self._registry = registry
        self._settings = settings
        self._topics = topics

    async def commit(
        self, by: Committer, offsets: Sequence[OffsetToCommit], *, retention_ms: int = -1, api_version: int
    ) -> tuple[ErrorCode, ...]:
        """Commit what can be committed, and return one code per offset when that is on disk.

        Args:
            by: the member.
            offsets: in the order of the answers.
            retention_ms: how long the offsets live at most (OffsetCommit v2-4); -1 leaves it to the broker.
            api_version: of OffsetCommit.
        """

        async def record(commits: Sequence[PutGroupOffset]) -> None:
            await self._record(self._admit(by, api_version), commits)

        return await self._commit(by.group_id, offsets, record, retention_ms=retention_ms)

    async def commit_in_transaction(
        self, by: Committer, producer_id: int, offsets: Sequence[OffsetToCommit], admit: Callable[[], Awaitable[None]]
    ) -> tuple[ErrorCode, ...]:
        """Keep offsets that are committed when a transaction is; returns one code per offset when that is on disk.

        Args:
            by: The member that the producer works for.
            producer_id: Of the transaction.
            offsets: In the order of the answers.
            admit: Checks that the group belongs to the transaction; raises KafkaApiError if it does not.
        """

        async def record(commits: Sequence[PutGroupOffset]) -> None:
            self._check_transactional(by)
            await admit()
            self._check_transactional(by)  # others were served meanwhile
            entry = self._registry.entry_or_new(by.group_id)
            for commit in commits:
                self._registry.pending.put(producer_id, commit)
            if commits:
                self._registry.submit(
                    entry, [PutPendingOffset(producer_id=producer_id, commit=item) for item in commits]
                )
            self._registry.after_step(entry)
            await self._registry.settle(entry)

        return await self._commit(by.group_id, offsets, record)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Commit or forget the offsets of a transaction.

        The changes are submitted right here, so that they reach the disk in one piece with the decision, which the
        caller submits in the same turn of the event loop.
        """
        for commit in self._registry.pending.take(producer_id):
            entry = self._registry.entry_or_new(commit.group_id)
            changes: list[Change] = [
                DropPendingOffset(
                    producer_id=producer_id,
                    group_id=commit.group_id,
                    topic_id=commit.topic_id,
                    partition=commit.partition,
                )
            ]
            if is_commit and self._topics.by_id(commit.topic_id) is not None:
                self._registry.offsets.put(commit)
                changes.append(commit)
            self._registry.submit(entry, changes)
            self._registry.after_step(entry)

    def unstable(self, group_id: str, fetched: FetchedOffsets) -> frozenset[tuple[str, int]]:
        """Return the partitions, by topic name, whose commits an open transaction may still change."""
        pending = self._registry.pending
        if not pending:
            return frozenset()
        return frozenset(
            (name, partition)
            for name, commits in fetched
            if (topic := self._topics.get(name)) is not None
            for partition, _ in commits
            if pending.is_pending(group_id, topic.topic_id, partition)
        )

    async def _commit(
        self,
        group_id: str,
        offsets: Sequence[OffsetToCommit],
        record: Callable[[Sequence[PutGroupOffset]], Awaitable[None]],
        *,
        retention_ms: int = -1,
    ) -> tuple[ErrorCode, ...]:
        topics = [self._topics.get(offset.topic) for offset in offsets]
        codes = [
            ErrorCode.NONE if _has(topic, offset.partition) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for topic, offset in zip(topics, offsets, strict=True)
        ]
        if ErrorCode.NONE not in codes:
            return tuple(codes)
        refused = [
            ErrorCode.OFFSET_METADATA_TOO_LARGE
            if code is ErrorCode.NONE and self._is_too_long(offset.metadata)
            else code
            for code, offset in zip(codes, offsets, strict=True)
        ]
        now_ms = self._registry.now().wall_ms
        expire_ms = None if retention_ms == -1 else now_ms + retention_ms
        commits = [
            _change(group_id, topic.topic_id, offset, now_ms, expire_ms)
            for topic, offset, code in zip(topics, offsets, refused, strict=True)
            if topic is not None and code is ErrorCode.NONE
        ]
        try:
            await record(commits)
        except KafkaApiError as error:
            return tuple(error.error_code if code is ErrorCode.NONE else code for code in codes)
        return tuple(refused)

    async def fetch(self, group_id: str, topics: Sequence[tuple[str, Sequence[int]]] | None) -> FetchedOffsets:
        """Return committed offsets, of the topics asked for or of all (None). An unknown group has none.

        Raises:
            NotCoordinatorError: what was read could not be written.
        """
        if topics is None:
            fetched = self._all_of(group_id)
        else:
            fetched = tuple((name, self._of_topic(group_id, name, partitions)) for name, partitions in topics)
        try:
            entry = self._registry.entry(group_id)
        except GroupIdNotFoundError:
            return fetched
        await self._registry.settle(entry)
        return fetched

    async def delete(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> tuple[ErrorCode, ...]:
        """Delete committed offsets (KIP-496), and return one code per partition when that is on disk.

        Raises:
            GroupIdNotFoundError: no such group.
            NonEmptyGroupError: it has members, and does not speak the consumers' protocol.
            NotCoordinatorError: the deletion could not be written.
        """
        entry = self._registry.entry(group_id)
        group = entry.group
        if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise NonEmptyGroupError
        codes = []
        removals = []
        for name, partition in partitions:
            topic = self._topics.get(name)
            if topic is None or not _has(topic, partition):
                codes.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif is_subscribed(group, name):
                codes.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            else:
                codes.append(ErrorCode.NONE)
                removals.append(DropGroupOffset(group_id=group_id, topic_id=topic.topic_id, partition=partition))
        for removal in removals:
            self._registry.offsets.drop(removal)
        if removals:
            self._registry.submit(entry, removals)
            await self._registry.settle(entry)
        return tuple(codes)

    def forget_topic(self, topic_id: UUID) -> None:
        """Drop what was committed for a topic that is deleted; the store does the same with its ``DropTopic``."""
        self._registry.offsets.drop_topic(topic_id)
        self._registry.pending.drop_topic(topic_id)

    def expire(self) -> None:
        """Remove expired offsets, those of topics that are gone, and groups that nothing is left of."""
        for topic_id in self._registry.offsets.topic_ids():
            if self._topics.by_id(topic_id) is None:
                self.forget_topic(topic_id)
        self._registry.sweep(self._take_expired)

    def _admit(self, by: Committer, api_version: int) -> Entry:
        try:
            entry = self._registry.entry(by.group_id)
        except GroupIdNotFoundError:
            if by.generation_id < 0:
                # Nobody has to join to keep offsets here.
                return self._registry.entry_or_new(by.group_id)
            if api_version >= FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND:
                raise
            raise IllegalGenerationError from None
        entry.group.admit_commit(by.member_id, by.group_instance_id, by.generation_id, self._registry.now())
        return entry

    def _check_transactional(self, by: Committer) -> None:
        try:
            entry = self._registry.entry(by.group_id)
        except GroupIdNotFoundError:
            if by.generation_id >= 0:
                raise IllegalGenerationError from None
        else:
            entry.group.admit_transactional_commit(by.member_id, by.group_instance_id, by.generation_id)

    async def _record(self, entry: Entry, commits: Sequence[PutGroupOffset]) -> None:
        changes: list[Change] = []
        for commit in commits:
            if self._registry.pending:
                changes += self._registry.pending.overtake(commit)
            self._registry.offsets.put(commit)
            changes.append(commit)
        if changes:
            self._registry.submit(entry, changes)
        self._registry.after_step(entry)
        await self._registry.settle(entry)

    def _is_too_long(self, metadata: str) -> bool:
        limit = self._settings.offset_metadata_max_bytes
        return len(metadata) > limit or (not metadata.isascii() and len(metadata.encode("utf-16-le")) // 2 > limit)

    def _of_topic(
        self, group_id: str, name: str, partitions: Sequence[int]
    ) -> tuple[tuple[int, PutGroupOffset | None], ...]:
        topic = self._topics.get(name)
        if topic is None:
            return tuple((partition, None) for partition in partitions)
        return tuple(
            (partition, self._registry.offsets.get(group_id, topic.topic_id, partition)) for partition in partitions
        )

    def _all_of(self, group_id: str) -> FetchedOffsets:
        return tuple(
            (topic.name, tuple(commits.items()))
            for topic_id, commits in self._registry.offsets.of_group(group_id).items()
            if (topic := self._topics.by_id(topic_id)) is not None
        )

    def _take_expired(self, group: ClassicGroup) -> Sequence[Change]:
        removals = self._registry.offsets.expired(
            group,
            wall_ms=self._registry.now().wall_ms,
            retention_ms=self._settings.offsets_retention_ms,
            is_in_use=lambda topic_id: self._is_in_use(group, topic_id),
        )
        for removal in removals:
            self._registry.offsets.drop(removal)
        return removals

    def _is_in_use(self, group: ClassicGroup, topic_id: UUID) -> bool:
        topic = self._topics.by_id(topic_id)
        return topic is not None and is_subscribed(group, topic.name)


def _has(topic: Topic | None, partition: int) -> bool:
    return topic is not None and topic.has_partition(partition)


def _change(
    group_id: str, topic_id: UUID, offset: OffsetToCommit, now_ms: int, expire_ms: int | None
) -> PutGroupOffset:
    return PutGroupOffset(
        group_id=group_id,
        topic_id=topic_id,
        partition=offset.partition,
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp_ms=now_ms,
        expire_timestamp_ms=expire_ms,
    )
