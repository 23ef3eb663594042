"""The coordinator of consumer groups (KIP-848), used by the handlers of their APIs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from klamm.broker.groups.consumer.group import ConsumerGroup
from klamm.broker.groups.consumer.migration import can_become_consumer, to_consumer
from klamm.broker.groups.consumer.model import FIRST_EPOCH, JOIN_EPOCH
from klamm.broker.groups.errors import GroupIdNotFoundError, NotCoordinatorError

if TYPE_CHECKING:
    from klamm.broker.groups.consumer.model import HeartbeatAttempt, HeartbeatReply
    from klamm.broker.groups.registry import Entry, GroupRegistry
    from klamm.broker.groups.settings import GroupCoordinatorSettings, TimingSource
    from klamm.broker.topics.catalog import TopicCatalog

HOLD_SHARE: Final = 0.2
"""Share of the heartbeat interval for which a heartbeat response may be held until the member gets partitions."""
MAX_HOLD_S: Final = 5.0
"""Upper limit of that time in seconds, well below ``request.timeout.ms`` of clients (30 s by default)."""


class ConsumerGroupCoordinator:
    """Consumer groups of a broker. Every reply is sent when the change of the group is on disk."""

    def __init__(
        self,
        registry: GroupRegistry,
        settings: GroupCoordinatorSettings,
        topics: TopicCatalog,
        timings: TimingSource,
    ) -> None:
        self.settings = settings
        self.timings = timings
        """Session timeout and heartbeat interval of each member."""
        self._registry = registry
        self._topics = topics

    async def heartbeat(self, group_id: str, attempt: HeartbeatAttempt) -> HeartbeatReply:
        """Let a member join a group, stay in it, or take the next step to its target.

        Members that join while the group is being written get their new target assignment together, after that.

        A member without partitions whose target belongs to other members gets its reply as soon as one of them has
        given up a partition for it, at the latest after a fifth of the heartbeat interval, or 5 s if that is less.
        Otherwise a member whose heartbeat comes just before the release would wait a whole interval longer.

        Raises:
            GroupIdNotFoundError: The group does not exist, or it is a classic group that cannot be converted.
            KafkaApiError: An error of ``ConsumerGroup.heartbeat``, or the change could not be written.
        """
        if not attempt.member_id:
            attempt = replace(attempt, member_id=str(uuid4()))
        is_join = attempt.member_epoch == JOIN_EPOCH
        entry = self._registry.entry_or_new(group_id) if is_join else self._entry(group_id)
        try:
            group = self._group(entry, is_join=is_join)
            now = self._registry.now()
            reply = group.heartbeat(attempt, self._topics, now, computes_target=not entry.is_being_written)
            needs_target = group.may_assign(now)
            if entry.group is not group:
                self._registry.replace(entry, group)
        finally:
            self._registry.after_step(entry)
        await self._registry.settle(entry)
        if needs_target:
            reply = await self._continued(entry, group, reply, attempt)
        if await self._waits_for_partitions(entry, group, reply):
            reply = await self._continued(entry, group, reply, attempt)
        return reply

    async def leave(self, group_id: str, member_id: str, instance_id: str | None, epoch: int) -> HeartbeatReply:
        """Remove a member, or keep the partitions of a static member until its session expires.

        Raises:
            GroupIdNotFoundError: The group does not exist, or it is a classic group.
            KafkaApiError: An error of ``ConsumerGroup.leave``, or the change could not be written.
        """
        entry = self._registry.entry(group_id)
        reply = self._group(entry, is_join=False).leave(member_id, instance_id, epoch, self._registry.now())
        self._registry.after_step(entry)
        await self._registry.settle(entry)
        return reply

    def describe(self, group_id: str) -> ConsumerGroup:
        """Return a group, to be read only.

        Raises:
            GroupIdNotFoundError: The group does not exist, or it is a classic group.
        """
        return self._group(self._registry.entry(group_id), is_join=False)

    async def _continued(
        self, entry: Entry, group: ConsumerGroup, reply: HeartbeatReply, attempt: HeartbeatAttempt
    ) -> HeartbeatReply:
        """Let the member of a reply take its next step, and return the reply that follows."""
        if not self._registry.is_current(entry):
            raise NotCoordinatorError("The group was read again from the disk, because a later change was not stored")
        if entry.group is group:
            reply = group.continued(reply, attempt.member_epoch, attempt.owned, self._topics, self._registry.now())
            self._registry.after_step(entry)
            await self._registry.settle(entry)
        return reply

    async def _waits_for_partitions(self, entry: Entry, group: ConsumerGroup, reply: HeartbeatReply) -> bool:
        """Hold back the reply to a member that waits for partitions, and return whether one is released meanwhile."""
        awaited = group.awaited(reply)
        if not awaited:
            return False
        if not all(group.is_owned(*partition) for partition in awaited):
            return True
        share_s = reply.heartbeat_interval_ms / 1000 * HOLD_SHARE
        return await entry.held.wait(awaited, min(share_s, MAX_HOLD_S))

    def _entry(self, group_id: str) -> Entry:
        if self._registry.find(group_id) is None:
            raise GroupIdNotFoundError(f"Consumer group {group_id} not found.")
        return self._registry.entry(group_id)

    def _group(self, entry: Entry, *, is_join: bool) -> ConsumerGroup:
        """Return the consumer group of an entry, or the one that its classic group becomes when a member joins."""
        group = entry.group
        if isinstance(group, ConsumerGroup):
            return group
        limits, now = self.settings.consumer_limits, self._registry.now()
        if is_join and group.is_empty:
            empty = ConsumerGroup(group.group_id, limits, now)
            empty.group_epoch = empty.assignment_epoch = max(group.generation_id, FIRST_EPOCH)
            return empty
        if is_join and can_become_consumer(group, limits):
            return to_consumer(group, self._topics, limits, now)
        raise GroupIdNotFoundError(f"Group {group.group_id} is not a consumer group.")
