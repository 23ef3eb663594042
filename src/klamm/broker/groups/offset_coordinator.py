"""The coordinator of committed offsets: commit, fetch, delete, expire, and the offsets of open transactions."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.broker.groups.classic.model import CONSUMER_PROTOCOL_TYPE
from klamm.broker.groups.consumer.consumer_protocol import read_topics
from klamm.broker.groups.consumer.group import ConsumerGroup
from klamm.broker.groups.errors import (
    GroupIdNotFoundError,
    IllegalGenerationError,
    NonEmptyGroupError,
    StaleMemberEpochError,
)
from klamm.broker.groups.registry import until_durable
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.server.time_slice import TimeSlice
from klamm.storage.metadata.changes import DropGroupOffset, DropPendingOffset, PutGroupOffset, PutPendingOffset

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from uuid import UUID

    from klamm.broker.groups.classic.rebalance import Rebalance
    from klamm.broker.groups.consumer.migration import AnyGroup
    from klamm.broker.groups.offsets import OffsetToCommit
    from klamm.broker.groups.registry import Entry, GroupRegistry
    from klamm.broker.groups.settings import GroupCoordinatorSettings
    from klamm.broker.topics.catalog import TopicCatalog
    from klamm.storage.metadata.changes import Change

FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND: Final = 9
"""Version of OffsetCommit. For an unknown group, older clients receive ILLEGAL_GENERATION instead."""

_UNKNOWN_TOPIC: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Error codes of partitions that do not exist. An error of the group does not replace them."""
_NEVER_MS: Final = 2**63 - 1
"""Latest time that the metadata store can keep, milliseconds since the epoch."""
_FEW: Final = 500
"""Up to this number of topics, commits are copied topic by topic; above it, all commits of the group are copied."""
_ByTopic: TypeAlias = "dict[UUID, dict[int, PutGroupOffset]]"
"""The last commit of each partition."""


class Instability(Enum):
    """Reasons why a fetch does not return a committed offset."""

    UNSTABLE = "unstable"
    """An open transaction may still change the offset (KIP-447, UNSTABLE_OFFSET_COMMIT)."""


FetchedOffset: TypeAlias = PutGroupOffset | Instability | None
FetchedOffsets: TypeAlias = "tuple[tuple[str, Sequence[tuple[int, FetchedOffset]]], ...]"
"""Fetched offsets by topic name and partition; None where nothing is committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """Client that commits offsets: a member in its generation, or an outside client (empty id, generation -1)."""

    group_id: str
    member_id: str = ""
    group_instance_id: str | None = None
    generation_id: int = -1


class OffsetCoordinator:
    """Committed offsets of all groups.

    Offsets belong to topic ids, not names: a topic that is deleted and created again has no committed offsets.

    All methods serve other requests in between when there are many partitions (``TimeSlice``), so topics, groups and
    members can change meanwhile. Each method therefore prepares in slices first. Then it checks the group again and
    applies and submits the change, without an await between the check and the change.
    """

    def __init__(self, registry: GroupRegistry, settings: GroupCoordinatorSettings, topics: TopicCatalog) -> None:
        self._registry = registry
        self._settings = settings
        self._topics = topics

    def of_group(self, group_id: str) -> Mapping[UUID, Mapping[int, PutGroupOffset]]:
        """Return a group's committed offsets by topic id and partition; empty if it has none."""
        return self._registry.offsets.of_group(group_id)

    async def commit(
        self,
        by: Committer,
        offsets: Sequence[OffsetToCommit],
        *,
        retention_ms: int = -1,
        api_version: int,
        time_slice: TimeSlice | None = None,
    ) -> tuple[ErrorCode, ...]:
        """Commit the offsets that are valid, and return one error code per offset when they are on disk.

        Valid offsets are committed together, in one change of the metadata store.

        Args:
            by: Committing client.
            offsets: Offsets, in the order of the error codes.
            retention_ms: Retention of these offsets (OffsetCommit v2-4); -1 for the broker's retention.
            api_version: Version of OffsetCommit.
            time_slice: Time slice of the request; None for a new one.
        """
        slices = TimeSlice() if time_slice is None else time_slice

        async def record(commits: Sequence[PutGroupOffset]) -> None:
            by_topic = await _by_topic(commits, slices)
            gone = {topic_id for topic_id in by_topic if self._topics.by_id(topic_id) is None}
            if gone:  # topics deleted while other requests were served
                commits = [commit for commit in commits if commit.topic_id not in gone]
                by_topic = {topic_id: partitions for topic_id, partitions in by_topic.items() if topic_id not in gone}
            await self._record(self._admit(by, commits, api_version), commits, by_topic)

        return await self._commit(by.group_id, offsets, record, slices, retention_ms=retention_ms)

    async def commit_in_transaction(
        self,
        by: Committer,
        producer_id: int,
        offsets: Sequence[OffsetToCommit],
        admit: Callable[[], Awaitable[None]],
        *,
        names_group_errors: bool = False,
        time_slice: TimeSlice | None = None,
    ) -> tuple[ErrorCode, ...]:
        """Store offsets that take effect when the transaction commits; return one code per offset once on disk.

        Args:
            by: Member that the producer works for.
            producer_id: Producer id of the transaction.
            offsets: Offsets, in the order of the error codes.
            admit: Function that raises KafkaApiError if the group does not belong to the transaction.
            names_group_errors: Whether a group that does not exist is GROUP_ID_NOT_FOUND, and an old member epoch
                STALE_MEMBER_EPOCH (KIP-1319); otherwise both are ILLEGAL_GENERATION.
            time_slice: Time slice of the request; None for a new one.
        """
        slices = TimeSlice() if time_slice is None else time_slice

        async def record(commits: Sequence[PutGroupOffset]) -> None:
            changes = await slices.listed(PutPendingOffset(producer_id=producer_id, commit=item) for item in commits)
            await admit()  # first, as in Kafka: a fenced producer learns that, whatever its group says
            self._check_transactional(by, commits, names_group_errors=names_group_errors)
            entry = self._registry.entry_or_new(by.group_id)
            for commit in commits:
                self._registry.pending.put(producer_id, commit)
            if changes:
                self._registry.submit(entry, changes)
            self._registry.after_step(entry)
            await self._registry.settle(entry)

        return await self._commit(by.group_id, offsets, record, slices)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Commit or drop the pending offsets of a transaction.

        Committed offsets supersede older pending offsets of other transactions for the same partitions.

        The changes are submitted before this method returns. The caller submits the decision in the same turn of the
        event loop, so the store commits both together or neither.
        """
        overtaken = self._registry.pending.overtake_older(producer_id) if is_commit else {}
        for group_id, commits in self._registry.pending.take(producer_id).items():
            entry = self._registry.entry_or_new(group_id)
            changes: list[Change] = [
                DropPendingOffset(
                    producer_id=producer_id, group_id=group_id, topic_id=commit.topic_id, partition=commit.partition
                )
                for commit in commits
            ]
            if is_commit:
                kept = [commit for commit in commits if self._topics.by_id(commit.topic_id) is not None]
                for commit in kept:
                    self._registry.offsets.put(commit)
                changes += [*overtaken[group_id], *kept]
            self._registry.submit(entry, changes)
            self._registry.after_step(entry)

    async def _commit(
        self,
        group_id: str,
        offsets: Sequence[OffsetToCommit],
        record: Callable[[Sequence[PutGroupOffset]], Awaitable[None]],
        slices: TimeSlice,
        *,
        retention_ms: int = -1,
    ) -> tuple[ErrorCode, ...]:
        now_ms = self._registry.now().wall_ms
        expire_ms = None if retention_ms == -1 else min(now_ms + retention_ms, _NEVER_MS)
        judged = await slices.listed(self._judge(group_id, offset, now_ms, expire_ms) for offset in offsets)
        codes = await slices.listed(item if isinstance(item, ErrorCode) else ErrorCode.NONE for item in judged)
        if all(code in _UNKNOWN_TOPIC for code in codes):
            return tuple(codes)
        try:
            await record(await slices.listed(item for item in judged if not isinstance(item, ErrorCode)))
        except KafkaApiError as error:
            return tuple(code if code in _UNKNOWN_TOPIC else error.error_code for code in codes)
        return tuple(codes)

    def _judge(
        self, group_id: str, offset: OffsetToCommit, now_ms: int, expire_ms: int | None
    ) -> PutGroupOffset | ErrorCode:
        topic_id = offset.topic_id
        topic = self._topics.get(offset.topic) if topic_id is None else self._topics.by_id(topic_id)
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic_id is None else ErrorCode.UNKNOWN_TOPIC_ID
        if not topic.has_partition(offset.partition):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self._is_too_long(offset.metadata):
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return PutGroupOffset(
            group_id=group_id,
            topic_id=topic.topic_id,
            partition=offset.partition,
            offset=offset.offset,
            leader_epoch=offset.leader_epoch,
            metadata=offset.metadata,
            commit_timestamp_ms=now_ms,
            expire_timestamp_ms=expire_ms,
        )

    def admit_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Check that a member of a consumer group may fetch offsets at its epoch. Other requests name no member.

        Raises:
            UnknownMemberIdError: Not a member.
            StaleMemberEpochError: The member has another epoch.
            IllegalGenerationError: The same, for a member with the classic protocol.
        """
        group = self._registry.find(group_id)
        if isinstance(group, ConsumerGroup):
            group.admit_fetch(member_id, member_epoch)

    async def fetch(
        self,
        group_id: str,
        topics: Sequence[tuple[str, Sequence[int]]] | None,
        *,
        require_stable: bool = False,
        time_slice: TimeSlice | None = None,
    ) -> FetchedOffsets:
        """Return the committed offsets of one moment. An unknown group has none.

        Args:
            group_id: Id of the group.
            topics: Topic names with partitions; None for all committed offsets.
            require_stable: Whether to withhold offsets that an open transaction may still change.
            time_slice: Time slice of the request; None for a new one.

        Raises:
            NotCoordinatorError: An offset that was read could not be written to disk.
        """
        slices = TimeSlice() if time_slice is None else time_slice
        last_change = self._registry.last_change(group_id)
        commits = self._copy_of(group_id, None if topics is None else [name for name, _ in topics])
        unstable = self._registry.pending.of_group(group_id) if require_stable else frozenset()
        if topics is None:
            names = ((self._topics.by_id(topic_id), list(partitions)) for topic_id, partitions in commits.items())
            topics = await slices.listed((topic.name, partitions) for topic, partitions in names if topic is not None)
        fetched: list[tuple[str, Sequence[tuple[int, FetchedOffset]]]] = []
        async for name, partitions in slices.over(topics):
            topic = self._topics.get(name)
            topic_id = None if topic is None else topic.topic_id
            committed = {} if topic_id is None else commits.get(topic_id, {})
            of_topic = await slices.listed(
                (index, Instability.UNSTABLE if (topic_id, index) in unstable else committed.get(index))
                for index in partitions
            )
            fetched.append((name, tuple(of_topic)))
        if last_change is not None:
            await until_durable(last_change)
        return tuple(fetched)

    async def delete(
        self, group_id: str, partitions: Sequence[tuple[str, int]], *, time_slice: TimeSlice | None = None
    ) -> tuple[ErrorCode, ...]:
        """Delete committed offsets (KIP-496), and return one error code per partition when the change is on disk.

        The pending offsets that open transactions have for these partitions are dropped, too.

        Raises:
            GroupIdNotFoundError: The group does not exist.
            NonEmptyGroupError: The group has members and another protocol type than "consumer".
            NotCoordinatorError: The deletion could not be written.
        """
        slices = TimeSlice() if time_slice is None else time_slice
        self._group_that_allows_deletion(group_id)
        judged = await slices.listed(self._judge_deletion(group_id, name, index) for name, index in partitions)
        names = frozenset(await slices.listed(name for name, _ in partitions))
        named_removals = await slices.listed(
            (item, name)
            for item, (name, _) in zip(judged, partitions, strict=True)
            if isinstance(item, DropGroupOffset)
        )
        # Check again: other requests were served meanwhile.
        entry = self._group_that_allows_deletion(group_id)
        used = topics_in_use(entry.group, names)
        removals = [removal for removal, name in named_removals if name not in used]
        for removal in removals:
            self._registry.offsets.drop(removal)
        if removals:
            self._registry.submit(entry, [*self._overtake(group_id, removals), *removals])
            await self._registry.settle(entry)
        return tuple(
            await slices.listed(
                item
                if isinstance(item, ErrorCode)
                else (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if name in used else ErrorCode.NONE)
                for item, (name, _) in zip(judged, partitions, strict=True)
            )
        )

    def _group_that_allows_deletion(self, group_id: str) -> Entry:
        entry = self._registry.entry(group_id)
        if not entry.group.is_empty and entry.group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise NonEmptyGroupError
        return entry

    def _judge_deletion(self, group_id: str, name: str, partition: int) -> DropGroupOffset | ErrorCode:
        topic = self._topics.get(name)
        if topic is None or not topic.has_partition(partition):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return DropGroupOffset(group_id=group_id, topic_id=topic.topic_id, partition=partition)

    def forget_topic(self, topic_id: UUID) -> None:
        """Drop all offsets of a deleted topic. The store drops its own copy together with ``DropTopic``."""
        self._registry.offsets.drop_topic(topic_id)
        self._registry.pending.drop_topic(topic_id)

    async def expire(self, time_slice: TimeSlice | None = None) -> None:
        """Remove expired offsets, offsets of deleted topics, and empty groups without offsets."""
        for topic_id in self._registry.offsets.topic_ids():
            if self._topics.by_id(topic_id) is None:
                self.forget_topic(topic_id)
        await self._registry.expire(self._take_expired, TimeSlice() if time_slice is None else time_slice)

    def _admit(self, by: Committer, commits: Sequence[PutGroupOffset], api_version: int) -> Entry:
        try:
            entry = self._registry.entry(by.group_id)
        except GroupIdNotFoundError:
            if by.generation_id < 0:
                # A client may commit offsets without joining: the commit creates the group.
                return self._registry.entry_or_new(by.group_id)
            if api_version >= FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND:
                raise
            raise IllegalGenerationError from None
        group, now = entry.group, self._registry.now()
        if isinstance(group, ConsumerGroup):
            group.admit_commit(by.member_id, by.generation_id, _partitions(commits), api_version=api_version)
        else:
            group.admit_commit(by.member_id, by.group_instance_id, by.generation_id, now)
        return entry

    def _check_transactional(
        self, by: Committer, commits: Sequence[PutGroupOffset], *, names_group_errors: bool
    ) -> None:
        try:
            entry = self._registry.entry(by.group_id)
        except GroupIdNotFoundError:
            if by.generation_id >= 0 and names_group_errors:
                raise
            if by.generation_id >= 0:
                raise IllegalGenerationError from None
            return
        group, member = entry.group, (by.member_id, by.group_instance_id, by.generation_id)
        try:
            if isinstance(group, ConsumerGroup):
                group.admit_transactional_commit(*member, _partitions(commits))
            else:
                group.admit_transactional_commit(*member)
        except StaleMemberEpochError:
            if names_group_errors:
                raise
            raise IllegalGenerationError from None

    async def _record(self, entry: Entry, commits: Sequence[PutGroupOffset], by_topic: _ByTopic) -> None:
        group_id = entry.group.group_id
        changes = self._overtake(group_id, commits)
        if commits:
            self._registry.offsets.put_all(group_id, by_topic)
            changes += commits
        if changes:
            self._registry.submit(entry, changes)
        self._registry.after_step(entry)
        await self._registry.settle(entry)

    def _overtake(self, group_id: str, later: Sequence[PutGroupOffset | DropGroupOffset]) -> list[Change]:
        """Remove the pending offsets that later commits or deletions of one group supersede."""
        changes: list[Change] = []
        pending = self._registry.pending.of_group(group_id)
        if pending:
            for item in later:
                if (item.topic_id, item.partition) in pending:
                    changes += self._registry.pending.overtake(item)
        return changes

    def _is_too_long(self, metadata: str) -> bool:
        limit = self._settings.offset_metadata_max_bytes
        return len(metadata) > limit or (not metadata.isascii() and len(metadata.encode("utf-16-le")) // 2 > limit)

    def _copy_of(self, group_id: str, names: Sequence[str] | None) -> Mapping[UUID, Mapping[int, PutGroupOffset]]:
        """Return a copy of a group's commits: at least those of the named topics, all if ``names`` is None."""
        commits = self._registry.offsets.of_group(group_id)
        if names is None or len(names) > _FEW:
            return {topic_id: dict(partitions) for topic_id, partitions in commits.items()}
        topics = (self._topics.get(name) for name in names)
        ids = {topic.topic_id for topic in topics if topic is not None}
        return {topic_id: dict(commits[topic_id]) for topic_id in ids if topic_id in commits}

    def _take_expired(self, group: AnyGroup) -> Sequence[Change]:
        offsets = self._registry.offsets
        removals = offsets.expired(
            group,
            wall_ms=self._registry.now().wall_ms,
            retention_ms=self._settings.offsets_retention_ms,
            in_use=lambda: self._in_use(group, offsets.of_group(group.group_id)),
        )
        for removal in removals:
            self._registry.offsets.drop(removal)
        return removals

    def _in_use(self, group: AnyGroup, topic_ids: Iterable[UUID]) -> AbstractSet[UUID]:
        topics = [topic for topic_id in topic_ids if (topic := self._topics.by_id(topic_id)) is not None]
        names = topics_in_use(group, {topic.name for topic in topics})
        return {topic.topic_id for topic in topics if topic.name in names}


def _partitions(commits: Sequence[PutGroupOffset]) -> Iterator[tuple[UUID, int]]:
    return ((commit.topic_id, commit.partition) for commit in commits)


async def _by_topic(commits: Sequence[PutGroupOffset], slices: TimeSlice) -> _ByTopic:
    by_topic: _ByTopic = {}
    async for commit in slices.over(commits):
        by_topic.setdefault(commit.topic_id, {})[commit.partition] = commit
    return by_topic


def subscribed_topics(group: Rebalance) -> frozenset[str] | None:
    """Return the topics to which the members of a consumer group are subscribed.

    None means unknown: the group has another protocol type, or a member's metadata cannot be parsed.
    """
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    if not group.members:
        return frozenset()
    return None if group.protocol_name is None else group.members.topics(group.protocol_name, read_topics)


def topics_in_use(group: AnyGroup, topics: AbstractSet[str]) -> AbstractSet[str]:
    """Return those of the topics that the group uses. Consumers with unreadable metadata use every topic."""
    if isinstance(group, ConsumerGroup):
        return topics & frozenset(group.subscribed_names())
    subscribed = subscribed_topics(group)
    if subscribed is None:
        return topics if group.protocol_type == CONSUMER_PROTOCOL_TYPE else frozenset()
    return topics & subscribed
