"""The group coordinator, used by the handlers of the group APIs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from klamm.broker.groups.commits import OffsetService
from klamm.broker.groups.consumer.group import ConsumerGroup
from klamm.broker.groups.consumer.migration import to_classic
from klamm.broker.groups.consumer.timings import TimingSource
from klamm.broker.groups.consumer_coordinator import ConsumerGroupCoordinator
from klamm.broker.groups.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    NonEmptyGroupError,
    UnknownMemberIdError,
    check_group_id,
)
from klamm.broker.groups.model import GroupState, JoinReply, SyncReply
from klamm.broker.groups.registry import MAX_ID_BYTES, GroupRegistry
from klamm.broker.groups.served_clock import ServedClock
from klamm.broker.groups.settings import GroupCoordinatorSettings
from klamm.protocol.errors import ErrorCode, InvalidRequestError, KafkaApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from klamm.broker.groups.classic import ClassicGroup
    from klamm.broker.groups.consumer.model import ConsumerGroupState
    from klamm.broker.groups.kinds import AnyGroup
    from klamm.broker.groups.model import JoinAttempt, MemberIdentity, SyncAttempt
    from klamm.broker.groups.registry import Entry
    from klamm.broker.topics.catalog import TopicCatalog
    from klamm.storage.metadata.store import MetadataStore

Reply = TypeVar("Reply")

CLASSIC_TYPE: Final = "classic"
CONSUMER_TYPE: Final = "consumer"

MAX_MEMBER_METADATA_BYTES: Final = 1_048_588
"""Largest metadata of one member for all its protocols. Kafka's limit for storing them (``message.max.bytes``)."""

PROTOCOL_OVERHEAD_BYTES: Final = 64
"""Memory used by a protocol without metadata, counted towards the limit so that a million of them are rejected."""

MAX_ASSIGNMENT_BYTES: Final = 32 * 1_048_576
"""Largest total size of the assignments in one SyncGroup request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A member in DescribeGroups."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """A group in ListGroups and DescribeGroups."""

    group_id: str
    group_type: str
    state: GroupState | ConsumerGroupState
    protocol_type: str
    """Empty if no member has ever joined."""
    member_count: int
    protocol_name: str = ""
    """Empty unless the group is STABLE; the same holds for the metadata of its members."""
    members: tuple[MemberDescription, ...] = ()


class GroupCoordinator:
    """Groups of the classic protocol, and administration of all groups. Used on one event loop only.

    While a consumer group has members with the classic protocol, their requests come here, too.

    JoinGroup and SyncGroup report errors in their replies; the other methods raise ``KafkaApiError``.
    """

    def __init__(
        self,
        store: MetadataStore,
        get_config: Callable[[str], Any],
        topics: TopicCatalog,
        *,
        group_config: Callable[[str], Mapping[str, Any]],
        now: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        """Read the settings; nothing is loaded before ``start``.

        Args:
            store: Metadata store.
            get_config: Function that returns a broker config by Kafka's name.
            topics: Topic catalog.
            group_config: Function that returns the effective configs of a group by group id.
            now: Monotonic clock, seconds.
            wall_ms: Wall clock, milliseconds since the epoch.
        """
        self._settings = GroupCoordinatorSettings.from_config(get_config)
        self._clock = ServedClock(now)
        self._topics = topics
        timings = TimingSource(group_config, get_config)
        self._registry = GroupRegistry(
            store,
            self._settings,
            topics,
            lambda group_id: timings.of_group(group_id).session_timeout_ms,
            now=self._clock.now,
            wall_ms=wall_ms,
        )
        self.consumers: Final = ConsumerGroupCoordinator(self._registry, self._settings, topics, timings)
        """Consumer groups (KIP-848)."""
        self.offsets: Final = OffsetService(self._registry, self._settings, topics)
        """Committed offsets."""
        self._expiration_timer: asyncio.TimerHandle | None = None
        self._is_running = False

    # ---- start and stop

    async def start(self) -> None:
        """Load the stored groups. The session of each member starts now."""
        self._clock.start()
        self._registry.load()
        self._schedule_expiration()
        self._is_running = True

    async def stop(self) -> None:
        """Stop all timers. Answer all parked requests with NOT_COORDINATOR, so that clients find it again."""
        self._is_running = False
        self._clock.stop()
        if self._expiration_timer is not None:
            self._expiration_timer.cancel()
            self._expiration_timer = None
        self._registry.disband(ErrorCode.NOT_COORDINATOR)

    def reload(self) -> None:
        """Replace the state in memory with the stored state, after a commit of the metadata store failed.

        Parked requests are answered with COORDINATOR_NOT_AVAILABLE, which clients retry.
        """
        self._registry.disband(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._registry.load()

    def forget_topic(self, topic_id: UUID) -> None:
        """Drop the committed offsets of a topic that is being deleted."""
        self.offsets.forget_topic(topic_id)

    # ---- members

    async def join(self, group_id: str, attempt: JoinAttempt) -> JoinReply:
        """Join a group (JoinGroup). The reply may wait for the slowest member of the group.

        This method fills in ``attempt.new_member_id``.
        """
        try:
            self._check_join(group_id, attempt)
            entry = self._registry.entry_or_new(group_id) if not attempt.member_id else self._registry.entry(group_id)
            prefix = attempt.client_id if attempt.group_instance_id is None else attempt.group_instance_id
            attempt = replace(attempt, new_member_id=f"{prefix}-{uuid4()}")
            reply = await self._join(entry, attempt)
            await self._registry.settle(entry)
        except GroupIdNotFoundError:
            return JoinReply(error_code=ErrorCode.UNKNOWN_MEMBER_ID, member_id=attempt.member_id)
        except MemberIdRequiredError as error:
            return JoinReply(error_code=error.error_code, member_id=attempt.new_member_id)
        except KafkaApiError as error:
            return JoinReply(error_code=error.error_code, member_id=attempt.member_id)
        return reply

    async def sync(self, group_id: str, attempt: SyncAttempt) -> SyncReply:
        """Exchange assignments (SyncGroup). The reply may wait for the leader's SyncGroup."""
        try:
            self._check_running()
            check_group_id(group_id)
            if sum(len(share) for _, share in attempt.assignments) > MAX_ASSIGNMENT_BYTES:
                raise InvalidRequestError
            entry = self._registry.entry(group_id)
            reply = await self._sync(entry, attempt)
            await self._registry.settle(entry)
        except GroupIdNotFoundError:
            return SyncReply(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        except KafkaApiError as error:
            return SyncReply(error_code=error.error_code)
        return reply

    async def heartbeat(
        self,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        *,
        enforced_session_timeout_ms: int | None = None,
    ) -> None:
        """Extend the session of a member; see ``ClassicGroup.heartbeat`` for the arguments.

        Raises:
            KafkaApiError: Errors of ``ClassicGroup.heartbeat``; UNKNOWN_MEMBER_ID if the group does not exist.
        """
        check_group_id(group_id)
        try:
            entry = self._registry.entry(group_id)
        except GroupIdNotFoundError as error:
            raise UnknownMemberIdError from error
        group, now = entry.group, self._registry.now()
        heartbeat = group.classic_heartbeat if isinstance(group, ConsumerGroup) else group.heartbeat
        heartbeat(
            member_id,
            group_instance_id,
            generation_id,
            now,
            enforced_session_timeout_ms=enforced_session_timeout_ms,
        )
        self._registry.after_step(entry)

    async def leave(self, group_id: str, identities: Sequence[MemberIdentity]) -> tuple[ErrorCode, ...]:
        """Remove members from a group (LeaveGroup), and return one error code per identity.

        Raises:
            InvalidGroupIdError: The group id is empty.
            NotCoordinatorError: The change could not be written.
        """
        check_group_id(group_id)
        try:
            entry = self._registry.entry(group_id)
        except GroupIdNotFoundError:
            return (ErrorCode.UNKNOWN_MEMBER_ID,) * len(identities)
        group, now = entry.group, self._registry.now()
        leave = group.classic_leave if isinstance(group, ConsumerGroup) else group.leave
        codes = leave(identities, now)
        self._registry.after_step(entry)
        await self._registry.settle(entry)
        return codes

    # ---- administration

    def list_groups(self, *, states: Collection[str] = (), types: Collection[str] = ()) -> list[DescribedGroup]:
        """Return all groups, or those with one of the given states and types. Upper and lower case are the same."""
        wanted_states = {state.strip().lower() for state in states}
        wanted_types = {kind.strip().lower() for kind in types}
        return [
            _described(group)
            for group in self._registry
            if (not wanted_states or group.state.value.lower() in wanted_states)
            and (not wanted_types or _type_of(group) in wanted_types)
        ]

    def describe(self, group_id: str) -> DescribedGroup:
        """Return a classic group with its members.

        Raises:
            GroupIdNotFoundError: The group does not exist, or it is a consumer group.
        """
        group = self._registry.entry(group_id).group
        if isinstance(group, ConsumerGroup):
            raise GroupIdNotFoundError(f"Group {group_id} is not a classic group.")
        return replace(
            _described(group),
            protocol_name=(group.protocol_name or "") if group.state is GroupState.STABLE else "",
            members=_members(group),
        )

    async def delete(self, group_id: str) -> None:
        """Delete a group without members, and its offsets.

        Raises:
            GroupIdNotFoundError: The group does not exist.
            NonEmptyGroupError: The group has members.
            NotCoordinatorError: The deletion could not be written.
        """
        entry = self._registry.entry(group_id)
        if not entry.group.is_empty:
            raise NonEmptyGroupError
        await self._registry.delete(entry)

    # ---- internals

    async def _join(self, entry: Entry, attempt: JoinAttempt) -> JoinReply:
        group, now = entry.group, self._registry.now()
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            interval_ms = self.consumers.timings.of_group(group.group_id).assignment_interval_ms
            try:
                return group.join(attempt, self._topics, now, assignment_interval_ms=interval_ms)
            finally:
                self._registry.after_step(entry)
        if isinstance(group, ConsumerGroup):
            group = to_classic(group, self._topics, self._settings.limits, now)
            self._registry.replace(entry, group)
        answer: asyncio.Future[JoinReply] = asyncio.get_running_loop().create_future()
        group.join(attempt, now, partial(_resolve, answer))
        self._registry.after_step(entry)
        return await answer

    async def _sync(self, entry: Entry, attempt: SyncAttempt) -> SyncReply:
        group, now = entry.group, self._registry.now()
        if isinstance(group, ConsumerGroup):
            reply = group.sync(attempt, self._topics, now)
            self._registry.after_step(entry)
            return reply
        answer: asyncio.Future[SyncReply] = asyncio.get_running_loop().create_future()
        group.sync(attempt, now, partial(_resolve, answer))
        self._registry.after_step(entry)
        return await answer

    def _check_join(self, group_id: str, attempt: JoinAttempt) -> None:
        self._check_running()
        check_group_id(group_id)
        settings = self._settings
        if not settings.min_session_timeout_ms <= attempt.session_timeout_ms <= settings.max_session_timeout_ms:
            raise InvalidSessionTimeoutError
        for text in (attempt.client_id, attempt.group_instance_id or ""):
            if len(text.encode()) > MAX_ID_BYTES:
                raise InvalidRequestError(f"An id is longer than {MAX_ID_BYTES} bytes.")
        size = len(attempt.protocol_type) + sum(
            PROTOCOL_OVERHEAD_BYTES + len(name) + len(metadata) for name, metadata in attempt.protocols
        )
        if size > MAX_MEMBER_METADATA_BYTES:
            raise InvalidRequestError(f"The metadata of the member is larger than {MAX_MEMBER_METADATA_BYTES} bytes.")

    def _check_running(self) -> None:
        if not self._is_running:
            raise CoordinatorNotAvailableError

    def _schedule_expiration(self) -> None:
        interval_s = self._settings.offsets_retention_check_interval_ms / 1000
        self._expiration_timer = asyncio.get_running_loop().call_later(interval_s, self._expire_offsets)

    def _expire_offsets(self) -> None:
        self._schedule_expiration()
        self.offsets.expire()


def _resolve(answer: asyncio.Future[Reply], reply: Reply) -> None:
    # The client may have disconnected while its request was parked, which cancels the future.
    if not answer.done():
        answer.set_result(reply)


def _type_of(group: AnyGroup) -> str:
    return CONSUMER_TYPE if isinstance(group, ConsumerGroup) else CLASSIC_TYPE


def _described(group: AnyGroup) -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_type=_type_of(group),
        state=group.state,
        protocol_type=group.protocol_type or "",
        member_count=len(group.members),
    )


def _members(group: ClassicGroup) -> tuple[MemberDescription, ...]:
    is_stable = group.state is GroupState.STABLE
    return tuple(
        MemberDescription(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            metadata=member.metadata(group.protocol_name) if is_stable else b"",
            assignment=member.assignment,
        )
        for member in group.members
    )
