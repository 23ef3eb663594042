"""Consumer groups (KIP-848), request by request: klamm and Apache Kafka return the same codes and texts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest

from klamm.admin import AdminClient, AlterConfigOp, ConfigEntry, ConfigResource, OpType, ResourceType
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from klamm.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from klamm.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from klamm.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from klamm.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tests.support.kept_up import KeptUp
from tests.support.klamm import KlammBroker
from tests.support.processes import wait_until
from tests.support.shared_cluster import unique
from tests.support.transaction_wire import TransactionClient
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.kafka import KafkaCluster

TOPIC: Final = unique("consumer-group-protocol-")
PARTITIONS: Final = 2
LONG_MS: Final = 15_000
"""Longest time between two assignments that a group may have, so that a slow test stays within it."""
NOTHING: Final = ConsumerGroupHeartbeatResponse.Assignment()


class Player:
    """One client that writes down what it gets."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client = WireClient(address.partition(",")[0], timeout_s=30)
        self.group = f"protocol-{time.monotonic_ns()}"
        self.transcript: list[tuple[object, ...]] = []
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group])
        wait_until(
            lambda: (
                self.client.ask(find, FindCoordinatorResponse, 4).coordinators[0].error_code == 0
                and self.beat("unknown", 1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
            ),
            timeout_s=60,
            what="the coordinator",
        )
        self.transcript.clear()

    def note(self, *facts: object) -> None:
        self.transcript.append(tuple(str(fact).replace(self.group, "GROUP") for fact in facts))

    def beat(self, member_id: str, epoch: int, version: int = 1, **fields: object) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(
            **{"group_id": self.group, "member_id": member_id, "member_epoch": epoch, **fields}  # type: ignore[arg-type]
        )
        reply = self.client.ask(request, ConsumerGroupHeartbeatResponse, version)
        partitions = [sorted(topic.partitions) for topic in (reply.assignment or NOTHING).topic_partitions]
        answer = (reply.member_epoch, partitions if reply.assignment is not None else None)
        self.note("heartbeat", member_id, epoch, reply.error_code, reply.error_message, answer)
        return reply

    def join(self, member_id: str, **fields: object) -> ConsumerGroupHeartbeatResponse:
        first: dict[str, object] = {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": [TOPIC],
            "topic_partitions": [],
        }
        return self.beat(member_id, 0, **{**first, **fields})  # type: ignore[arg-type]

    def describe(self) -> None:
        modern = self.client.ask(
            ConsumerGroupDescribeRequest(group_ids=[self.group]), ConsumerGroupDescribeResponse, 1
        ).groups[0]
        self.note("describe", modern.error_code, modern.error_message, modern.assignor_name, len(modern.members))
        self.note("patterns", *(member.subscribed_topic_regex for member in modern.members))
        classic = self.client.ask(DescribeGroupsRequest(groups=[self.group]), DescribeGroupsResponse, 6).groups[0]
        self.note("describe classic", classic.error_code, classic.error_message, classic.group_state)
        listed = self.client.ask(ListGroupsRequest(), ListGroupsResponse, 5).groups
        self.note("list", *((g.group_type, g.protocol_type) for g in listed if g.group_id == self.group))

    def delete(self) -> None:
        request = DeleteGroupsRequest(groups_names=[self.group])
        self.note("delete", self.client.ask(request, DeleteGroupsResponse, 2).results[0].error_code)

    def set_interval(self, interval_ms: int | None) -> None:
        """Set the time between two assignments, and wait until the coordinator has it."""
        group = ConfigResource(ResourceType.GROUP, self.group)
        entry = ConfigEntry("consumer.assignment.interval.ms", None if interval_ms is None else str(interval_ms))
        op = AlterConfigOp(entry, OpType.DELETE if interval_ms is None else OpType.SET)
        with AdminClient(self.address) as admin, KeptUp(self.address) as broker:
            admin.incremental_alter_configs({group: [op]}).all().result()
            broker.wait_for_effect()

    def remove(self, *members: tuple[str, str | None], version: int = 5) -> None:
        """Remove members as an administrator does, with the classic API."""
        identities = [LeaveGroupRequest.MemberIdentity(member_id=m, group_instance_id=i) for m, i in members]
        request = LeaveGroupRequest(group_id=self.group, member_id=members[0][0], members=identities)
        response = self.client.ask(request, LeaveGroupResponse, version)
        self.note("remove", version, response.error_code, *(member.error_code for member in response.members))

    def commit(self, member_id: str, epoch: int, *indexes: int, version: int = 9) -> None:
        request = OffsetCommitRequest(
            group_id=self.group,
            member_id=member_id,
            generation_id_or_member_epoch=epoch,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=[
                        OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=index, committed_offset=1)
                        for index in indexes or (0,)
                    ],
                )
            ],
        )
        response = self.client.ask(request, OffsetCommitResponse, version)
        codes = [partition.error_code for partition in response.topics[0].partitions]
        self.note("commit", member_id, epoch, indexes, codes)


def wrong_requests(player: Player) -> None:
    player.join("")
    player.join("m", group_id="")
    player.join("m", instance_id="")
    player.join("m", rack_id="")
    player.join("m", rebalance_timeout_ms=-1)
    player.join("m", topic_partitions=None)
    player.join("m", topic_partitions=[ConsumerGroupHeartbeatRequest.TopicPartitions(partitions=[0])])
    player.join("m", subscribed_topic_names=None)
    player.join("m", server_assignor="sticky")
    player.beat("m", -2)
    player.beat("m", -3)
    player.beat("m", 5)
    player.beat("m", -1)
    player.beat("", 5, version=0)
    player.describe()
    player.delete()


def a_member(player: Player) -> None:
    reply = player.join("m", server_assignor="range")
    player.beat("m", reply.member_epoch + 7)
    player.beat("n", 3)
    player.commit("m", reply.member_epoch)
    player.commit("m", reply.member_epoch + 7)
    player.commit("m", reply.member_epoch, version=8)
    player.commit("n", reply.member_epoch)
    player.commit("", -1)
    player.describe()
    player.delete()
    classic = HeartbeatRequest(group_id=player.group, member_id="m", generation_id=reply.member_epoch)
    player.note("classic heartbeat", player.client.ask(classic, HeartbeatResponse, 4).error_code)
    player.beat("m", -1)
    player.beat("m", -1)
    player.describe()
    player.commit("", -1)
    player.delete()
    player.describe()


def static_members(player: Player) -> None:
    reply = player.join("m", instance_id="i")
    player.join("n", instance_id="i")
    player.beat("n", reply.member_epoch, instance_id="i")
    player.beat("m", reply.member_epoch, instance_id="other")
    player.beat("n", -2, instance_id="i")
    player.beat("m", -2, instance_id="i")
    player.join("n", instance_id="i")
    player.beat("m", reply.member_epoch, instance_id="i")
    player.beat("m", -1, instance_id="i")
    player.beat("n", -1, instance_id="i")


def members_that_join_again(player: Player) -> None:
    """A member that is fenced gives up its partitions and joins again with its id (KIP-848)."""
    player.set_interval(LONG_MS)
    player.join("m")
    player.beat("m", 9, topic_partitions=[])
    player.join("m")
    player.join("m", subscribed_topic_names=[])
    player.join("m")
    player.join("n", instance_id="i")
    player.join("n", instance_id="i")
    player.describe()
    player.set_interval(None)


def members_that_are_removed(player: Player) -> None:
    player.set_interval(LONG_MS)
    player.join("m")
    player.join("n", instance_id="i")
    player.remove(("unknown", None), ("", "unknown"), ("m", "i"))
    player.describe()
    player.remove(("m", None), ("", "i"))
    player.join("m")
    player.remove(("m", None), version=2)
    player.beat("m", 3)
    player.describe()
    player.set_interval(None)


def a_regular_expression(player: Player) -> None:
    player.join("m", subscribed_topic_names=None, subscribed_topic_regex="consumer-group-.*")
    player.transcript.pop()  # Kafka resolves it in the background, klamm at once
    code = player.beat("m", 0, subscribed_topic_regex="(", topic_partitions=[], rebalance_timeout_ms=1000).error_code
    player.transcript[-1] = ("the text is that of the library", code)


def members_that_join_within_the_interval(player: Player) -> None:
    """The first gets everything. The others wait for the next assignment, and a commit may be behind (KIP-1251)."""
    player.set_interval(LONG_MS)
    player.join("m")
    player.join("n")
    player.join("o", subscribed_topic_names=[])
    player.set_interval(0)
    topic = player.client.topic_ids()[TOPIC]
    everything = [ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic, partitions=[0, 1])]
    deadline = time.monotonic() + 30
    while player.beat("n", 2).member_epoch == 2:
        assert time.monotonic() < deadline, "no assignment"
        player.transcript.pop()
        time.sleep(0.05)
    player.set_interval(LONG_MS)
    player.beat("m", 2, topic_partitions=everything)
    everything[0].partitions.pop()
    player.beat("m", 2, topic_partitions=everything)
    for epoch in (1, 2, 3, 4):
        for indexes in ((0,), (1,), (0, 1)):
            player.commit("m", epoch, *indexes)
            player.commit("n", epoch, *indexes)
    player.beat("n", 3)
    player.commit("n", 2, 1)
    player.commit("n", 3, 1)
    player.beat("o", 2)
    # A topic that a member leaves is revoked at once.
    player.beat("m", 3, subscribed_topic_names=[], topic_partitions=everything)
    player.describe()
    player.set_interval(None)


def commits_in_transactions(player: Player) -> None:
    """TxnOffsetCommit with the errors of before KIP-1319 and of today."""
    producer = TransactionClient(player.client, f"id-{player.group}")
    producer.find_coordinator()
    _, identity = producer.init(4)
    player.join("m")
    for version in (5, 6):
        for member_id, epoch in (("m", 2), ("m", 1), ("m", 9), ("n", 2), ("", -1), ("", 2)):
            code = producer.commit_offset(identity, version, player.group, TOPIC, 1, generation=epoch, member=member_id)
            player.note("in a transaction", version, member_id, epoch, code)
        code = producer.commit_offset(identity, version, f"{player.group}-unknown", TOPIC, 1, generation=2, member="m")
        player.note("unknown group", version, code)
    player.note("end", producer.end(identity, 5, commit=False)[0])


@pytest.fixture(scope="module")
def addresses(real_kafka: KafkaCluster) -> Iterator[tuple[str, str]]:
    with KlammBroker() as klamm:
        pair = klamm.bootstrap_servers, real_kafka.bootstrap_servers
        for address in pair:
            with WireClient(address.partition(",")[0]) as client:
                client.create_topic(TOPIC, partitions=PARTITIONS)
            with KeptUp(address) as broker:  # a coordinator that learns of a topic late begins a further epoch
                broker.wait_for_effect()
        yield pair


@pytest.mark.parametrize(
    "play",
    [
        wrong_requests,
        a_member,
        static_members,
        members_that_join_again,
        members_that_are_removed,
        a_regular_expression,
        members_that_join_within_the_interval,
        commits_in_transactions,
    ],
    ids=lambda play: play.__name__,
)
def test_consumer_group_responses_match_kafka(addresses: tuple[str, str], play: object) -> None:
    transcripts = []
    for address in addresses:
        player = Player(address)
        play(player)  # type: ignore[operator]
        player.client.close()
        transcripts.append(player.transcript)

    assert transcripts[0] == transcripts[1]
