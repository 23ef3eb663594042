"""The group APIs, request by request, on klamm and on Apache Kafka: equal responses.

Each scenario is played in old, middle and new versions of the APIs. Member ids are random and become M1, M2, ... in
the order of their first appearance.
"""

from __future__ import annotations

import re
import struct
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar
from uuid import UUID

import pytest

from klamm.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from klamm.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from klamm.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from klamm.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from klamm.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tests.support.klamm import KlammBroker
from tests.support.processes import wait_until
from tests.support.shared_cluster import unique
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from klamm.protocol.schema import Message
    from tests.support.kafka import KafkaCluster

Answer = TypeVar("Answer", bound="Message")

TOPIC = unique("group-protocol-")
VERSIONS = {8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4), 13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5)}
VERSIONS |= {42: (0, 3), 47: (0, 0)}
"""First and last version of each API that Kafka 4.4 serves."""

AGES = [0, 2, 3, 4, 5, 7, 8, 9, 10]
"""Each API is asked in the version of this number, or in its nearest one."""

MEMBER_ID = re.compile(r"(?:wire|i\d)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
SUBSCRIPTION = struct.pack(">hih", 0, 1, len(TOPIC)) + TOPIC.encode() + struct.pack(">i", -1)
RANGE = (("range", SUBSCRIPTION),)


class Player:
    """Sends requests in versions of one age, and writes down the answers."""

    def __init__(self, address: str, age: int) -> None:
        self.transcript: list[str] = []
        self._address = address
        self.age = age
        self._names: dict[str, str] = {}
        self._stack = ExitStack()
        self._pool = self._stack.enter_context(ThreadPoolExecutor(8))
        self._clients: dict[str, WireClient] = {}
        self.group = f"group-{age}-{time.monotonic_ns()}"
        with WireClient(address) as client:
            self._topic_ids = {TOPIC: client.topic_ids()[TOPIC], "nowhere": UUID(int=99)}
            """Topic ids, which take the place of the names from OffsetCommit v10 and OffsetFetch v10 on."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.close()
        self._stack.close()

    def _version(self, request: type[Message]) -> int:
        first, last = VERSIONS[request.API_KEY]
        return min(max(self.age, first), last)

    def send(self, request: Message, answer: type[Answer], who: str = "main") -> Future[Answer]:
        """Send on the connection of ``who``; the answer is written down by ``take``."""
        if who not in self._clients:
            self._clients[who] = WireClient(self._address, timeout_s=30)
        return self._pool.submit(self._clients[who].ask, request, answer, self._version(type(request)))

    def take(self, future: Future[Answer]) -> Answer:
        """Wait for an answer and write it down."""
        answer = future.result(timeout=30)
        self.transcript.append(self._anonymous(answer))
        return answer

    def ask(self, request: Message, answer: type[Answer], who: str = "main") -> Answer:
        return self.take(self.send(request, answer, who))

    def _anonymous(self, answer: Message) -> str:
        # Kafka lists members in the order of a hash map, so they are compared in the order of their metadata.
        for struct_ in (answer, *getattr(answer, "groups", ())):
            members = getattr(struct_, "members", None)
            if members and not isinstance(answer, LeaveGroupResponse):
                members.sort(key=lambda m: self._name(m.member_id))
        text = MEMBER_ID.sub(lambda match: self._name(match[0]), repr(answer))
        text = re.sub(r"(error_code=[1-9]\d*, error_message=)'[^']*'", r"\1TEXT", text)
        text = re.sub(r"port=\d{2,}", "port=PORT", text)
        for name, topic_id in self._topic_ids.items():
            text = text.replace(str(topic_id), f"id of {name}")
        return text.replace(self.group, "GROUP")

    def _name(self, member_id: str) -> str:
        return self._names.setdefault(member_id, f"M{len(self._names) + 1}") if member_id else ""

    # ---- requests

    def join(
        self,
        member_id: str = "",
        instance_id: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        protocol_type: str = "consumer",
        session_timeout_ms: int = 30_000,
        *,
        who: str = "main",
        group: str | None = None,
    ) -> Future[JoinGroupResponse]:
        request = JoinGroupRequest(
            group_id=self.group if group is None else group,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=30_000,
            member_id=member_id,
            group_instance_id=instance_id if self._version(JoinGroupRequest) >= 5 else None,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols
            ],
            reason=None,
        )
        return self.send(request, JoinGroupResponse, who)

    def enter(self, who: str = "main", **settings: Any) -> Future[JoinGroupResponse]:
        """Join as a new member. Versions that require it first obtain a member id."""
        if self._version(JoinGroupRequest) < 4 or settings.get("instance_id"):
            return self.join(who=who, **settings)
        first = self.take(self.join(who=who, **settings))
        return self.join(first.member_id, who=who, **settings)

    def sync(
        self,
        member_id: str,
        generation_id: int,
        shares: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        who: str = "main",
        protocol: tuple[str | None, str | None] = ("consumer", "range"),
    ) -> Future[SyncGroupResponse]:
        version = self._version(SyncGroupRequest)
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance_id if version >= 3 else None,
            protocol_type=protocol[0] if version >= 5 else None,
            protocol_name=protocol[1] if version >= 5 else None,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=share)
                for member, share in (shares or {}).items()
            ],
        )
        return self.send(request, SyncGroupResponse, who)

    def heartbeat(self, member_id: str, generation_id: int, instance_id: str | None = None) -> int:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance_id if self._version(HeartbeatRequest) >= 3 else None,
        )
        return self.ask(request, HeartbeatResponse).error_code

    def leave(self, *members: tuple[str, str | None]) -> None:
        if self._version(LeaveGroupRequest) < 3:
            for member_id, _ in members:
                self.ask(LeaveGroupRequest(group_id=self.group, member_id=member_id), LeaveGroupResponse)
            return
        identities = [
            LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=instance_id)
            for member_id, instance_id in members
        ]
        self.ask(LeaveGroupRequest(group_id=self.group, members=identities), LeaveGroupResponse)

    def commit(
        self,
        offsets: list[tuple[str, int, int, str | None]],
        member_id: str = "",
        generation_id: int = -1,
        instance_id: str | None = None,
    ) -> None:
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            group_instance_id=instance_id if self._version(OffsetCommitRequest) >= 7 else None,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=self._topic_ids[topic],
                    partitions=[
                        OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=metadata
                        )
                    ],
                )
                for topic, partition, offset, metadata in offsets
            ],
        )
        answer = self.send(request, OffsetCommitResponse).result(timeout=30)
        # Kafka merges and reorders topics; the codes are what counts.
        names = {topic_id: name for name, topic_id in self._topic_ids.items()}
        codes = sorted(
            (t.name or names[t.topic_id], p.partition_index, p.error_code) for t in answer.topics for p in t.partitions
        )
        self.transcript.append(f"OffsetCommit {codes}")

    def fetch(self, topics: dict[str, list[int]] | None, group: str | None = None) -> None:
        group = self.group if group is None else group
        if self._version(OffsetFetchRequest) >= 8:
            several = [
                OffsetFetchRequest.OffsetFetchRequestTopics(
                    name=name, topic_id=self._topic_ids[name], partition_indexes=partitions
                )
                for name, partitions in (topics or {}).items()
            ]
            wanted = OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id=group, topics=None if topics is None else several
            )
            request = OffsetFetchRequest(groups=[wanted])
        else:
            topics_of_group = [
                OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=partitions)
                for name, partitions in (topics or {}).items()
            ]
            has_all = self._version(OffsetFetchRequest) >= 2
            request = OffsetFetchRequest(group_id=group, topics=None if topics is None and has_all else topics_of_group)
        self.ask(request, OffsetFetchResponse)

    def delete_offsets(self, topic: str, partition: int, group: str | None = None) -> None:
        wanted = OffsetDeleteRequest.OffsetDeleteRequestTopic(
            name=topic, partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=partition)]
        )
        self.ask(OffsetDeleteRequest(group_id=group or self.group, topics=[wanted]), OffsetDeleteResponse)

    def describe(self, *groups: str, operations: bool = False) -> None:
        include = operations and self._version(DescribeGroupsRequest) >= 3
        request = DescribeGroupsRequest(groups=list(groups or (self.group,)), include_authorized_operations=include)
        self.ask(request, DescribeGroupsResponse)

    def list_own(self, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> None:
        """List the groups of this test. Other tests may have left more."""
        version = self._version(ListGroupsRequest)
        request = ListGroupsRequest(
            states_filter=list(states) if version >= 4 else [], types_filter=list(types) if version >= 5 else []
        )
        answer = self.send(request, ListGroupsResponse).result(timeout=30)
        answer.groups = [group for group in answer.groups if group.group_id == self.group]
        self.transcript.append(self._anonymous(answer))

    def delete(self, *groups: str) -> None:
        answer = self.send(DeleteGroupsRequest(groups_names=list(groups or (self.group,))), DeleteGroupsResponse)
        answer.result(timeout=30).results.sort(key=lambda result: result.group_id)
        self.take(answer)

    def find(self, key_type: int) -> None:
        version = self._version(FindCoordinatorRequest)
        request = FindCoordinatorRequest(
            key="" if version >= 4 else self.group,
            key_type=key_type if version >= 1 else 0,
            coordinator_keys=[self.group, "other"] if version >= 4 else [],
        )
        self.ask(request, FindCoordinatorResponse)


# ---- scenarios


def member_joins_and_expires(player: Player) -> None:
    player.find(0)
    joined = player.take(player.enter())
    # Nobody asks to see the group yet: Kafka shows it when it is stored, klamm as soon as it is there.
    player.commit([(TOPIC, 0, 1, "")], joined.member_id, joined.generation_id)
    player.take(player.sync(joined.member_id, joined.generation_id, {joined.member_id: b"everything"}))
    player.describe(operations=True)
    player.heartbeat(joined.member_id, joined.generation_id)
    player.commit([(TOPIC, 0, 5, "note"), (TOPIC, 1, 6, None)], joined.member_id, joined.generation_id)
    player.fetch({TOPIC: [0, 1, 2]})
    player.fetch(None)
    player.list_own(states=("stable",), types=("classic",))
    player.list_own(states=("Empty",))
    player.list_own(types=("consumer",))
    player.delete()
    player.delete_offsets(TOPIC, 0)
    player.leave((joined.member_id, None))
    player.describe()
    player.list_own(states=("empty", "dead"))
    player.heartbeat(joined.member_id, joined.generation_id)
    player.commit([(TOPIC, 0, 5, "")], joined.member_id, joined.generation_id)
    player.delete_offsets(TOPIC, 0)
    player.fetch(None)
    player.delete()
    player.describe()
    player.delete()
    player.fetch(None)
    player.fetch({TOPIC: [0]})


def empty_group(player: Player) -> None:
    player.describe(operations=True)
    player.heartbeat("stranger", 1)
    player.leave(("stranger", None), ("", "nobody"))
    player.take(player.join("stranger"))
    player.take(player.sync("stranger", 1))
    player.commit([(TOPIC, 0, 1, "")], "stranger", 1)
    player.commit([(TOPIC, 0, 1, "")], "stranger", -1)
    player.fetch({TOPIC: [0, 7], "nowhere": [0]}, group=f"{player.group}-unknown")
    player.delete_offsets(TOPIC, 0, group=f"{player.group}-unknown")
    player.delete(f"{player.group}-unknown", "")
    player.find(1)
    player.find(2)


def bad_joins(player: Player) -> None:
    player.take(player.join(group=""))
    player.take(player.join(session_timeout_ms=5_999))
    player.take(player.join(session_timeout_ms=1_800_001))
    player.take(player.join(protocols=()))
    player.take(player.join(protocol_type=""))
    joined = player.take(player.enter())
    player.take(player.sync(joined.member_id, joined.generation_id, {joined.member_id: b"all"}))
    player.take(player.join(protocols=(("other", b""),)))
    player.take(player.join(protocol_type="connect"))
    player.take(player.join(joined.member_id, protocol_type="connect"))
    player.take(player.sync(joined.member_id, joined.generation_id + 1))
    player.take(player.sync("stranger", joined.generation_id))
    player.take(player.sync(joined.member_id, joined.generation_id, protocol=("connect", "range")))
    player.take(player.sync(joined.member_id, joined.generation_id, protocol=("consumer", "other")))
    player.heartbeat(joined.member_id, joined.generation_id - 1)
    player.commit([(TOPIC, 0, 1, "")], joined.member_id, joined.generation_id - 1)
    player.commit([(TOPIC, 0, 1, "")])
    player.commit([(TOPIC, 0, 1, "")], "stranger", joined.generation_id)
    player.leave(("stranger", None))


def two_members_share(player: Player) -> None:
    first = player.take(player.enter("one"))
    player.take(player.sync(first.member_id, 1, {first.member_id: b"all"}, who="one"))
    parked = player.enter("two")
    wait_for_rebalance(player, first.member_id, 1)
    player.describe()
    player.take(player.sync(first.member_id, 1, who="one"))
    player.commit([(TOPIC, 0, 3, "")], first.member_id, 1)
    again = player.take(player.join(first.member_id, who="one"))
    second = player.take(parked)
    player.heartbeat(second.member_id, 2)
    player.commit([(TOPIC, 0, 4, "")], second.member_id, 2)
    follower = player.sync(second.member_id, 2, who="two")
    player.take(player.sync(again.member_id, 2, {again.member_id: b"half", second.member_id: b"rest"}, who="one"))
    player.take(follower)
    player.describe()
    player.take(player.join(second.member_id, who="two"))
    player.take(player.sync(second.member_id, 2, who="two"))
    player.leave((first.member_id, None))
    player.heartbeat(second.member_id, 2)
    third = player.take(player.join(second.member_id, who="two"))
    player.take(player.sync(third.member_id, 3, {}, who="two"))
    player.leave((second.member_id, None))
    player.describe()


def static_members_come_back(player: Player) -> None:
    joined = player.take(player.enter(instance_id="i1"))
    player.take(player.sync(joined.member_id, 1, {joined.member_id: b"mine"}, instance_id="i1"))
    player.describe()
    again = player.take(player.join(instance_id="i1"))
    player.take(player.sync(again.member_id, again.generation_id, instance_id="i1"))
    player.heartbeat(joined.member_id, again.generation_id, "i1")
    player.heartbeat(again.member_id, again.generation_id, "i1")
    player.heartbeat(again.member_id, again.generation_id, "i2")
    player.take(player.join(joined.member_id, "i1"))
    player.take(player.sync(joined.member_id, again.generation_id, instance_id="i1"))
    player.commit([(TOPIC, 0, 1, "")], joined.member_id, again.generation_id, "i1")
    player.commit([(TOPIC, 0, 2, "")], again.member_id, again.generation_id, "i1")
    player.leave((joined.member_id, "i1"), ("", "i2"), ("", "i1"))
    player.describe()


def offsets_without_members(player: Player) -> None:
    player.commit([(TOPIC, 0, 7, "x" * 4096), (TOPIC, 1, 8, "x" * 4097), (TOPIC, 3, 9, ""), ("nowhere", 0, 1, "")])
    player.commit([(TOPIC, 2, 3, None)])
    player.fetch({TOPIC: [0, 1, 2, 3], "nowhere": [0]})
    player.describe()
    player.list_own()
    player.delete_offsets(TOPIC, 2)
    player.delete_offsets(TOPIC, 1)
    player.delete_offsets(TOPIC, 9)
    player.delete_offsets("nowhere", 0)
    player.fetch(None)
    player.commit([(TOPIC, 0, 1, "")])
    player.fetch(None)
    player.delete()
    player.fetch(None)


def connectors_are_no_consumers(player: Player) -> None:
    worker: dict[str, Any] = {"protocol_type": "connect", "protocols": (("sessioned", b"1"), ("default", b"2"))}
    joined = player.take(player.enter(**worker))
    player.take(
        player.sync(joined.member_id, 1, {joined.member_id: b"tasks"}, protocol=("connect", joined.protocol_name))
    )
    player.describe()
    player.list_own()
    player.delete_offsets(TOPIC, 0)
    player.leave((joined.member_id, None))


SCENARIOS = [
    member_joins_and_expires,
    empty_group,
    bad_joins,
    two_members_share,
    static_members_come_back,
    offsets_without_members,
    connectors_are_no_consumers,
]

FIRST_AGE = {static_members_come_back: 5}
"""Static members came with JoinGroup v5."""


def wait_for_rebalance(player: Player, member_id: str, generation_id: int) -> None:
    """Heartbeat until the group has noticed who else has sent a join."""
    for _ in range(1000):
        request = HeartbeatRequest(group_id=player.group, generation_id=generation_id, member_id=member_id)
        if player.send(request, HeartbeatResponse).result(timeout=30).error_code:
            return
        time.sleep(0.05)
    pytest.fail("No rebalance")


# ---- both sides


@contextmanager
def klamm_broker() -> Iterator[str]:
    with KlammBroker({"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def addresses(real_kafka: KafkaCluster) -> Iterator[tuple[str, str]]:
    """klamm and real Kafka, both with the topic and a coordinator that is ready."""
    with klamm_broker() as ours:
        theirs = real_kafka.bootstrap_servers
        for address in (ours, theirs):
            with WireClient(address) as client:
                prepare(client)
        yield ours, theirs


def prepare(client: WireClient) -> None:
    if TOPIC not in client.topic_ids():
        client.create_topic(TOPIC, partitions=3)
        wait_until(lambda: TOPIC in client.topic_ids(), timeout_s=60, what="the broker to know the topic")
    for number in range(50):
        # Kafka creates the offsets topic when it is first asked, and loads each of its partitions in its own time.
        for _ in range(300):
            find = FindCoordinatorRequest(key=f"warm-{number}", key_type=number % 2)
            coordinator_code = client.ask(find, FindCoordinatorResponse, 3).error_code
            describe = DescribeGroupsRequest(groups=[f"warm-{number}"])
            loaded = client.ask(describe, DescribeGroupsResponse, 5).groups[0].error_code
            if coordinator_code == loaded == 0:
                break
            time.sleep(0.1)


def transcript_of(scenario: Callable[[Player], None], address: str, age: int) -> list[str]:
    with Player(address, age) as player:
        scenario(player)
        return player.transcript


@pytest.mark.parametrize(
    ("scenario", "age"),
    [(scenario, age) for scenario in SCENARIOS for age in AGES if age >= FIRST_AGE.get(scenario, 0)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_klamm_answers_as_kafka_does(addresses: tuple[str, str], scenario: Callable[[Player], None], age: int) -> None:
    ours, theirs = addresses
    assert transcript_of(scenario, ours, age) == transcript_of(scenario, theirs, age)
