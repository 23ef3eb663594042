"""The group coordinator: all groups of a broker, their start and stop, and their administration."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from klamm.broker.groups.classic.model import GroupState
from klamm.broker.groups.classic_coordinator import ClassicGroupCoordinator
from klamm.broker.groups.consumer.group import ConsumerGroup
from klamm.broker.groups.consumer_coordinator import ConsumerGroupCoordinator
from klamm.broker.groups.errors import (
    GroupIdNotFoundError,
    NonEmptyGroupError,
)
from klamm.broker.groups.offset_coordinator import OffsetCoordinator
from klamm.broker.groups.registry import GroupRegistry, until_durable
from klamm.broker.groups.settings import GroupCoordinatorSettings, TimingSource
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from uuid import UUID

    from klamm.broker.groups.classic.group import ClassicGroup
    from klamm.broker.groups.consumer.migration import AnyGroup
    from klamm.broker.groups.consumer.model import ConsumerGroupState
    from klamm.broker.topics.catalog import TopicCatalog
    from klamm.storage.metadata.store import MetadataStore

CLASSIC_TYPE: Final = "classic"
CONSUMER_TYPE: Final = "consumer"


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
    """All groups of a broker, with a coordinator for each kind of request. Used on one event loop only."""

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
        timings = TimingSource(group_config, get_config)
        self._registry = GroupRegistry(
            store,
            self._settings,
            topics,
            lambda group_id: timings.of_group(group_id).session_timeout_ms,
            now=self._clock.now,
            wall_ms=wall_ms,
        )
        self.classic: Final = ClassicGroupCoordinator(self._registry, self._settings, topics, timings)
        """Members with the classic protocol."""
        self.consumers: Final = ConsumerGroupCoordinator(self._registry, self._settings, topics, timings)
        """Consumer groups (KIP-848)."""
        self.offsets: Final = OffsetCoordinator(self._registry, self._settings, topics)
        """Coordinator of the committed offsets of all groups."""
        self._expiration_timer: asyncio.TimerHandle | None = None
        self._expiration: asyncio.Task[None] | None = None

    # ---- start and stop

    async def start(self) -> None:
        """Load the stored groups. The session of each member starts now."""
        self._clock.start()
        self._registry.load()
        self._schedule_expiration()
        self.classic.is_running = True

    async def stop(self) -> None:
        """Stop all timers. Answer all parked requests with NOT_COORDINATOR, so that clients find it again."""
        self.classic.is_running = False
        self._clock.stop()
        if self._expiration_timer is not None:
            self._expiration_timer.cancel()
            self._expiration_timer = None
        if self._expiration is not None:
            self._expiration.cancel()
            self._expiration = None
        self._registry.disband(ErrorCode.NOT_COORDINATOR)

    def reload(self) -> None:
        """Replace the state in memory with the stored state, after a commit of the metadata store failed.

        Parked requests are answered with COORDINATOR_NOT_AVAILABLE, which clients retry.
        """
        self._registry.disband(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._registry.load()

    def expire_sessions(self) -> None:
        """Remove members whose sessions are over now, before any request is served, as after a move of the clock."""
        self._registry.run_due_timers()

    def forget_topic(self, topic_id: UUID) -> None:
        """Drop the committed offsets of a topic that is being deleted."""
        self.offsets.forget_topic(topic_id)

    # ---- administration

    def list_groups(self, *, states: Collection[str] = (), types: Collection[str] = ()) -> Iterator[DescribedGroup]:
        """Yield all groups, or those with one of the given states and types. Upper and lower case are the same."""
        wanted_states = {state.strip().lower() for state in states}
        wanted_types = {kind.strip().lower() for kind in types}
        return (
            _described(group)
            for group in self._registry
            if (not wanted_states or group.state.value.lower() in wanted_states)
            and (not wanted_types or _type_of(group) in wanted_types)
        )

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
            NotCoordinatorError: The deletion could not be written, or that of another request.
        """
        try:
            entry = self._registry.entry(group_id)
        except GroupIdNotFoundError:
            if (deletion := self._registry.last_change(group_id)) is not None:
                await until_durable(deletion)
            raise
        if not entry.group.is_empty:
            raise NonEmptyGroupError
        await self._registry.delete(entry)

    # ---- internals

    def _schedule_expiration(self) -> None:
        interval_s = self._settings.offsets_retention_check_interval_ms / 1000
        self._expiration_timer = asyncio.get_running_loop().call_later(interval_s, self._expire_offsets)

    def _expire_offsets(self) -> None:
        self._schedule_expiration()
        if self._expiration is None or self._expiration.done():  # otherwise it takes longer than the interval
            self._expiration = asyncio.create_task(self.offsets.expire(), name="expiration of offsets")


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


_TICK_S: Final = 0.5
_TOLERANCE_S: Final = 0.2
"""Delay of a tick, in seconds, above which the event loop counts as paused."""
_MIN_S: Final = 0.5
_MAX_S: Final = 5.0


class ServedClock:
    """The clock of session timeouts. Used on the event loop only.

    While the event loop is blocked, or the process or machine is suspended, heartbeats wait in the sockets and sessions
    seem to time out. With a plain clock, the first heartbeat that is read would expire all other members of its group.
    So after a pause this clock shows the time at which the pause began, while the waiting requests are served. It does
    so for as long as the pause took, but at least 0.5 and at most 5 seconds.

    Args:
        now: Clock to show, seconds. It may be moved forward: that is not a pause, and this clock follows at once.
        elapsed: Monotonic clock by which pauses are measured, seconds.
    """

    def __init__(self, now: Callable[[], float], elapsed: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._elapsed = elapsed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ticked_at = 0.0
        """Time of ``elapsed``, like the next two."""
        self._stands_at = 0.0
        self._stands_until = 0.0

    def start(self) -> None:
        """Start to detect pauses. Before this, the clock never stops."""
        self._loop = asyncio.get_running_loop()
        self._tick(self._loop)

    def stop(self) -> None:
        """Stop detecting pauses."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop = self._timer = None
        self._stands_until = 0.0

    def now(self) -> float:
        """Return the time in seconds."""
        if self._loop is None:
            return self._now()
        elapsed = self._elapsed()
        self._notice_pause(elapsed)
        return self._now() - (elapsed - self._stands_at if elapsed < self._stands_until else 0.0)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._notice_pause(self._elapsed())
        self._ticked_at = self._elapsed()
        self._timer = loop.call_later(_TICK_S, self._tick, loop)

    def _notice_pause(self, elapsed: float) -> None:
        pause = elapsed - self._ticked_at - _TICK_S
        if pause <= _TOLERANCE_S:
            return
        if elapsed >= self._stands_until:
            self._stands_at = self._ticked_at
        self._stands_until = elapsed + min(max(pause, _MIN_S), _MAX_S)
        self._ticked_at = elapsed
