"""A consumer group of KIP-848 under the test's clock, and members that the test controls."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import UUID

from klamm.broker.groups.consumer.group import ConsumerGroup
from klamm.broker.groups.consumer.model import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Assignment,
    ConsumerLimits,
    HeartbeatAttempt,
    HeartbeatReply,
    MemberTimings,
)
from klamm.broker.groups.consumer.requests import matching_topics
from klamm.broker.topics.catalog import Topic, TopicCatalog
from klamm.protocol.errors import ErrorCode, KafkaApiError
from tests.support.groups import TimedGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from collections.abc import Set as AbstractSet

TIMINGS = MemberTimings(session_timeout_ms=45_000, heartbeat_interval_ms=5_000)


class FakeTopics(TopicCatalog):
    """A catalog of topics; the id of a topic is its number."""

    def __init__(self, **partitions: int) -> None:
        self.changes = 0
        self._topics: dict[str, Topic] = {}
        for name, number in partitions.items():
            self.add(name, number)

    def add(self, name: str, partitions: int) -> Topic:
        """Create a topic, or give it this number of partitions."""
        self.changes += 1
        topic_id = self._topics[name].topic_id if name in self._topics else UUID(int=self.changes)
        self._topics[name] = Topic(topic_id=topic_id, name=name, partitions=((1,),) * partitions)
        return self._topics[name]

    def remove(self, name: str) -> None:
        """Delete a topic."""
        self.changes += 1
        del self._topics[name]

    def names(self) -> list[str]:
        """Return the names of all topics."""
        return list(self._topics)

    def get(self, name: str) -> Topic | None:
        """Return a topic by name."""
        return self._topics.get(name)

    def existing(self, names: AbstractSet[str]) -> dict[str, Topic]:
        """Return the topics among these."""
        return {name: self._topics[name] for name in self._topics.keys() & names}

    def by_id(self, topic_id: UUID) -> Topic | None:
        """Return a topic by id."""
        return next((topic for topic in self._topics.values() if topic.topic_id == topic_id), None)


@dataclass(kw_only=True)
class FakeMember:
    """A member that takes what it is given and revokes at once what it has to."""

    member_id: str
    instance_id: str | None = None
    topics: Collection[str] = ()
    is_full: bool = False
    """Whether the next heartbeat repeats everything, as that of a real client does when it missed a response."""
    epoch: int = JOIN_EPOCH
    owned: set[tuple[UUID, int]] = field(default_factory=set)

    def take(self, reply: HeartbeatReply) -> None:
        """Apply a reply."""
        self.epoch = reply.member_epoch
        self.is_full = False
        if reply.assignment is not None:
            self.owned = {(topic, index) for topic, indexes in reply.assignment.items() for index in indexes}

    @property
    def assignment(self) -> Assignment:
        """What the member owns."""
        return {
            topic_id: frozenset(index for topic, index in self.owned if topic == topic_id)
            for topic_id in {topic for topic, _ in self.owned}
        }


class ConsumerGroupClients(TimedGroup[ConsumerGroup]):
    """Plays heartbeats against one group."""

    def __init__(self, **partitions: int) -> None:
        super().__init__()
        self.topics = FakeTopics(**partitions)
        self.group = ConsumerGroup("group", ConsumerLimits(), self.now)
        self.may_describe: Callable[[str], bool] = lambda _: True
        self.interval_ms = 0
        """Shortest time between two target assignments."""
        self.computes_target = True
        """Whether heartbeats compute a new target at once."""

    @property
    def state(self) -> str:
        """The name of the group's state."""
        return self.group.state.name

    def send(
        self,
        member_id: str,
        epoch: int,
        *,
        topics: Collection[str] | None = None,
        regex: str | None = None,
        owned: Assignment | None = None,
        instance_id: str | None = None,
        assignor: str | None = None,
        is_full: bool = False,
    ) -> HeartbeatReply:
        """Send one heartbeat. A member that joins sends a full request."""
        is_join = epoch == JOIN_EPOCH
        return self.group.heartbeat(
            HeartbeatAttempt(
                member_id=member_id,
                member_epoch=epoch,
                client_id="client",
                client_host="/127.0.0.1",
                timings=replace(TIMINGS, assignment_interval_ms=self.interval_ms),
                resolve=lambda pattern: matching_topics(pattern, self.topics.names(), self.may_describe),
                instance_id=instance_id,
                rebalance_timeout_ms=60_000 if is_join or is_full else -1,
                topic_names=None if topics is None else frozenset(topics),
                topic_regex=regex,
                server_assignor=assignor,
                owned={} if is_join and owned is None else owned,
            ),
            self.topics,
            self.now,
            computes_target=self.computes_target,
        )

    def rejected(self, send: Callable[[], object]) -> ErrorCode:
        """Return the code of the error with which a request ends; NONE if it does not."""
        try:
            send()
        except KafkaApiError as error:
            return error.error_code
        return ErrorCode.NONE

    def join(self, member_id: str, *topics: str, instance_id: str | None = None) -> FakeMember:
        """Let a member join."""
        member = FakeMember(member_id=member_id, instance_id=instance_id, topics=topics)
        member.take(self.send(member_id, JOIN_EPOCH, topics=topics, instance_id=instance_id))
        return member

    def beat(self, member: FakeMember) -> None:
        """Send the heartbeat of a member with all that it owns."""
        member.take(
            self.send(
                member.member_id,
                member.epoch,
                topics=member.topics if member.is_full else None,
                owned=member.assignment,
                instance_id=member.instance_id,
                is_full=member.is_full,
            )
        )

    def settle(self, *members: FakeMember) -> None:
        """Send heartbeats until nothing changes any more."""
        for _ in range(4):
            for member in members:
                self.beat(member)

    def leave(self, member: FakeMember, epoch: int = LEAVE_EPOCH) -> None:
        """Let a member leave."""
        self.group.leave(member.member_id, member.instance_id, epoch, self.now)
