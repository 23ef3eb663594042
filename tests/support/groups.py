"""Consumer group whose clock only the test moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from klamm.broker.groups.classic.group import ClassicGroup
from klamm.broker.groups.classic.model import GroupLimits, JoinAttempt, JoinReply, Moment, SyncAttempt, SyncReply
from klamm.broker.groups.consumer.group import ConsumerGroup
from klamm.protocol.errors import ErrorCode, KafkaApiError

if TYPE_CHECKING:
    from klamm.broker.groups.classic.model import GroupState

AnyGroup = TypeVar("AnyGroup", ClassicGroup, ConsumerGroup)
WALL_START_MS = 1_700_000_000_000
CONSUMER_DEFAULTS: dict[str, object] = {
    "group.consumer.assignors": ("uniform", "range"),
    "group.consumer.max.size": 2_147_483_647,
    "group.consumer.min.session.timeout.ms": 45_000,
    "group.consumer.max.session.timeout.ms": 60_000,
    "group.consumer.min.heartbeat.interval.ms": 5_000,
    "group.consumer.max.heartbeat.interval.ms": 15_000,
    "group.consumer.regex.refresh.interval.ms": 600_000,
    "group.consumer.migration.policy": "bidirectional",
    "group.coordinator.rebalance.protocols": ("classic", "consumer", "streams"),
}
COORDINATOR_CONFIG: dict[str, object] = {
    **CONSUMER_DEFAULTS,
    "group.min.session.timeout.ms": 6_000,
    "group.max.session.timeout.ms": 1_800_000,
    "offset.metadata.max.bytes": 4_096,
    "offsets.retention.minutes": 60,
    "offsets.retention.check.interval.ms": 600_000,
    "group.initial.rebalance.delay.ms": 0,
    "group.max.size": 100,
}
"""Kafka's defaults of the broker configs of consumer groups."""
GROUP_CONFIGS = {
    "consumer.session.timeout.ms": 45_000,
    "consumer.heartbeat.interval.ms": 5_000,
    "consumer.assignment.interval.ms": 0,
}
"""Kafka's defaults of the configs of a group, but for the assignment interval: most tests do not wait for it."""
PROTOCOLS = (("range", b"subscription"),)


def attempt(
    member_id: str = "",
    instance_id: str | None = None,
    *,
    protocols: tuple[tuple[str, bytes], ...] = PROTOCOLS,
    protocol_type: str = "consumer",
    session_timeout_ms: int = 10_000,
    enforced_session_timeout_ms: int | None = None,
    rebalance_timeout_ms: int = 60_000,
    new_member_id: str = "new",
    version: int = 9,
) -> JoinAttempt:
    """Return a JoinGroup request of the given version."""
    return JoinAttempt(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id="client",
        client_host="/127.0.0.1",
        session_timeout_ms=session_timeout_ms,
        enforced_session_timeout_ms=enforced_session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocol_type=protocol_type,
        protocols=protocols,
        new_member_id=new_member_id,
        requires_known_member_id=version >= 4,
        supports_skipping_assignment=version >= 9,
    )


class TimedGroup(Generic[AnyGroup]):
    """Clock of one group, whose timers fire while it moves."""

    group: AnyGroup

    def __init__(self) -> None:
        self.seconds = 1000.0

    @property
    def now(self) -> Moment:
        """The time of the clock."""
        return Moment(seconds=self.seconds, wall_ms=WALL_START_MS + round((self.seconds - 1000.0) * 1000))

    def wait(self, seconds: float) -> None:
        """Move the clock. The group's timers fire at their times."""
        end = self.seconds + seconds
        while self.group.wake_at <= end:
            self.seconds = max(self.seconds, self.group.wake_at)
            self.group.on_time(self.now)
        self.seconds = end


class ClassicGroupClients(TimedGroup[ClassicGroup]):
    """Requests against one group. Responses are appended to lists, in order."""

    def __init__(self, *, initial_delay_ms: int = 3000, max_size: int = 1000) -> None:
        super().__init__()
        self.group = ClassicGroup(
            "group", GroupLimits(initial_rebalance_delay_ms=initial_delay_ms, max_size=max_size), self.now
        )

    @property
    def state(self) -> GroupState:
        """The group's state."""
        return self.group.state

    def send_join(self, request: JoinAttempt) -> list[JoinReply]:
        """Send a JoinGroup; the returned list receives the response."""
        replies: list[JoinReply] = []
        self.group.join(request, self.now, replies.append)
        return replies

    def send_sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_type: str | None = "consumer",
        protocol_name: str | None = "range",
    ) -> list[SyncReply]:
        """Send a SyncGroup; the returned list receives the response."""
        replies: list[SyncReply] = []
        request = SyncAttempt(
            member_id=member_id,
            group_instance_id=instance_id,
            generation_id=generation_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=tuple((assignments or {}).items()),
        )
        self.group.sync(request, self.now, replies.append)
        return replies

    def heartbeat(
        self, member_id: str, generation_id: int, instance_id: str | None = None, *, enforced_ms: int | None = None
    ) -> ErrorCode:
        """Send a Heartbeat and return its error code."""
        try:
            self.group.heartbeat(
                member_id, instance_id, generation_id, self.now, enforced_session_timeout_ms=enforced_ms
            )
        except KafkaApiError as error:
            return error.error_code
        return ErrorCode.NONE

    def commit(self, member_id: str, generation_id: int, instance_id: str | None = None) -> ErrorCode:
        """Return the error code of an OffsetCommit."""
        try:
            self.group.admit_commit(member_id, instance_id, generation_id, self.now)
        except KafkaApiError as error:
            return error.error_code
        return ErrorCode.NONE

    def new_dynamic(self, member_id: str, **settings: object) -> list[JoinReply]:
        """Request a member id and join with it, as clients do since JoinGroup v4."""
        first = self.send_join(attempt(new_member_id=member_id, **settings))  # type: ignore[arg-type]
        assert first[0].error_code == ErrorCode.MEMBER_ID_REQUIRED, first
        return self.send_join(attempt(member_id, **settings))  # type: ignore[arg-type]

    def stable(self, *member_ids: str, **settings: object) -> int:
        """Bring the group to its first stable generation with these members. The first one is the leader."""
        joins = [self.new_dynamic(member_id, **settings) for member_id in member_ids]
        self.wait(3)
        self.wait(3 if len(member_ids) > 1 else 0)
        generation_id = joins[0][0].generation_id
        self.sync_all(generation_id, *member_ids)
        return generation_id

    def sync_all(self, generation_id: int, *member_ids: str) -> None:
        """Sync all members, the leader with an assignment for each."""
        shares = {member_id: b"share of " + member_id.encode() for member_id in member_ids}
        replies = [
            self.send_sync(member_id, generation_id, shares if member_id == self.group.members.leader_id else None)
            for member_id in member_ids
        ]
        assert all(reply[0].error_code == ErrorCode.NONE for reply in replies), replies
