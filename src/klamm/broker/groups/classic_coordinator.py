"""The coordinator of classic groups, used by the handlers of JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import uuid4

from klamm.broker.groups.classic.model import JoinReply, SyncReply
from klamm.broker.groups.consumer.group import ConsumerGroup
from klamm.broker.groups.consumer.migration import to_classic
from klamm.broker.groups.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    UnknownMemberIdError,
    check_group_id,
)
from klamm.broker.groups.registry import MAX_ID_BYTES, GroupRegistry
from klamm.protocol.errors import ErrorCode, InvalidRequestError, KafkaApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.groups.classic.model import JoinAttempt, MemberIdentity, SyncAttempt
    from klamm.broker.groups.registry import Entry
    from klamm.broker.groups.settings import GroupCoordinatorSettings, TimingSource
    from klamm.broker.topics.catalog import TopicCatalog

Reply = TypeVar("Reply")

MAX_MEMBER_METADATA_BYTES: Final = 1_048_588
"""Largest metadata of one member for all its protocols. Kafka's limit for storing them (``message.max.bytes``)."""

PROTOCOL_OVERHEAD_BYTES: Final = 64
"""Memory used by a protocol without metadata, counted towards the limit so that a million of them are rejected."""

MAX_ASSIGNMENT_BYTES: Final = 32 * 1_048_576
"""Largest total size of the assignments in one SyncGroup request."""


class ClassicGroupCoordinator:
    """Requests of members with the classic protocol. Used on one event loop only.

    While a consumer group has members with the classic protocol, their requests come here, too.

    JoinGroup and SyncGroup report errors in their replies; the other methods raise ``KafkaApiError``.
    """

    def __init__(
        self, registry: GroupRegistry, settings: GroupCoordinatorSettings, topics: TopicCatalog, timings: TimingSource
    ) -> None:
        self.is_running = False
        """Whether members may join and synchronize; otherwise they get COORDINATOR_NOT_AVAILABLE."""
        self._registry = registry
        self._settings = settings
        self._topics = topics
        self._timings = timings

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

    async def _join(self, entry: Entry, attempt: JoinAttempt) -> JoinReply:
        group, now = entry.group, self._registry.now()
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            interval_ms = self._timings.of_group(group.group_id).assignment_interval_ms
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
        if not self.is_running:
            raise CoordinatorNotAvailableError


def _resolve(answer: asyncio.Future[Reply], reply: Reply) -> None:
    # The client may have disconnected while its request was parked, which cancels the future.
    if not answer.done():
        answer.set_result(reply)
