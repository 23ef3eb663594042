"""Demotion of a partition that brokers lead, with replicas and a controller in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from unittest.mock import Mock
from uuid import UUID

import pytest

from klamm.admin import TopicPartition
from klamm.kafka_client.errors import ConnectionLostError
from klamm.kraft.image import NO_LEADER
from klamm.mirror.records.source_offsets import EpochFloor
from klamm.mirror.replica.demotion import Demotion, DemotionDeniedError
from klamm.mirror.replica.errors import PromotionError, PromotionWaitsError
from klamm.mirror.replica.leader_partition import LeaderPartition, Leadership, Presence, ReplicaProgress
from klamm.mirror.replica.node import ReplicaNode
from klamm.mirror.replica.target_brokers import ReplicaFetch, TargetBrokers
from klamm.protocol.messages.fetch import FetchResponse
from tests.support.replicas import FakeMember, image_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from klamm.kraft.image import ClusterImage, PartitionImage
    from klamm.kraft.member import IsrChange, IsrState
    from klamm.protocol.errors import KafkaApiError

P = ParamSpec("P")
T = TypeVar("T")

KLAMM = 9
REPLICAS = (1, 2, 3)
TOPIC_ID = UUID(int=7)
REMOTE = TopicPartition("remote", 0)
END = 12


class Member(FakeMember):
    """Its controller makes klamm the only in-sync replica."""

    elr: tuple[int, ...] = ()

    @property
    def partition(self) -> PartitionImage:
        return self.image.topics[TOPIC_ID].partitions[0]

    def change(self, partition: PartitionImage) -> None:
        topic = self.image.topics[TOPIC_ID]
        changed = replace(partition, partition_epoch=partition.partition_epoch + 1)
        self.publish(replace(self.image, topics={TOPIC_ID: replace(topic, partitions={0: changed})}))

    def wait_for(self, predicate: Callable[[ClusterImage], bool], timeout_s: float) -> ClusterImage:
        if not predicate(self.image):
            raise TimeoutError
        return self.image

    def alter_partitions(
        self, changes: Mapping[tuple[UUID, int], IsrChange]
    ) -> Mapping[tuple[UUID, int], IsrState | KafkaApiError]:
        ((_, change),) = changes.items()
        assert (change.isr, self.partition.leader) == ({KLAMM: 1}, KLAMM)
        self.change(replace(self.partition, isr=(KLAMM,), elr=self.elr))
        return {}


class Target(TargetBrokers):
    """Brokers and a controller that do what Kafka's do with a partition."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.steps: list[str] = []
        self.are_known = False
        self.end = END
        self.records = b""

    def refresh(self, topics: Collection[str]) -> None:
        assert set(topics) <= {REMOTE.topic}
        self.are_known = True

    def log_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, self.end)

    def reassign(self, replicas: Mapping[TopicPartition, Sequence[int]]) -> None:
        assert self.are_known, "no broker to send it to"
        self.steps.append(f"reassign {replicas[REMOTE]}")
        before, after = self.member.partition, tuple(replicas[REMOTE])
        removed = set(before.replicas) - set(after)
        isr = tuple(node for node in before.isr if node not in removed)
        if not isr:
            self.member.change(replace(before, replicas=(*after, *removed), removing=tuple(removed)))
        elif set(after) <= set(isr):
            leader = before.leader if before.leader in after else after[0]
            self.member.change(replace(before, replicas=after, isr=isr, leader=leader))
        else:
            self.member.change(replace(before, replicas=after, adding=tuple(set(after) - set(before.replicas))))

    def fetch_as_replica(
        self, partitions: Mapping[tuple[UUID, int], ReplicaFetch], broker_epoch: int
    ) -> Mapping[tuple[UUID, int], FetchResponse.PartitionData]:
        assert partitions == {(TOPIC_ID, 0): ReplicaFetch(1, 4, END)}
        self.steps.append("fetch")
        if not self.records:
            self.member.change(replace(self.member.partition, isr=(*REPLICAS, KLAMM), adding=()))
        answer = FetchResponse.PartitionData(high_watermark=END, records=self.records)
        return {(TOPIC_ID, 0): answer}

    def elect_preferred(self, partitions: Collection[TopicPartition]) -> None:
        self.steps.append("elect")
        self.member.change(replace(self.member.partition, leader=self.member.partition.replicas[0], leader_epoch=5))


class Node(ReplicaNode):
    """Node whose replicas fetch when it waits."""

    member: Member

    def __init__(self) -> None:
        image = image_of(REMOTE.topic, TOPIC_ID, KLAMM, REPLICAS)
        topic = image.topics[TOPIC_ID]
        promoted = replace(topic.partitions[0], replicas=REPLICAS, isr=REPLICAS, removing=(), leader=1, leader_epoch=4)
        self.member = Member(replace(image, topics={TOPIC_ID: replace(topic, partitions={0: promoted})}), KLAMM)
        self.target = Target(self.member)
        self.leader = LeaderPartition(REMOTE.topic, TOPIC_ID, 0)
        self.ends = dict.fromkeys(REPLICAS, END)
        self.floors: dict[TopicPartition, EpochFloor] = {}

    def partition(self, topic: str, index: int) -> LeaderPartition | None:
        return self.leader if topic == REMOTE.topic else None

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        nodes = frozenset(REPLICAS)
        self.leader.lead(Leadership(leader_epoch=5, partition_epoch=9, replicas=nodes, live=nodes, isr=nodes), 0)
        for node, end in self.ends.items():
            self.leader.followers[node] = ReplicaProgress(end, 4, Presence(0))
        return condition()

    def admit(self, topics: Collection[str]) -> None:
        assert set(topics) <= {REMOTE.topic}

    def take_back(self) -> None:
        Demotion(self, KLAMM, self.target, self.floors.update, step_s=0.1).take_back({REMOTE: END})


def test_klamm_is_alone_in_sync_before_the_reassignment_to_the_brokers_begins() -> None:
    node = Node()

    node.take_back()

    partition = node.member.partition
    assert (partition.replicas, partition.isr, partition.removing) == ((*REPLICAS, KLAMM), (KLAMM,), (KLAMM,))
    assert (partition.leader, node.floors) == (KLAMM, {REMOTE: EpochFloor(END, 5)})
    assert node.target.steps == ["reassign (9, 1, 2, 3)", "fetch", "elect", "reassign [1, 2, 3]"]
    node.take_back()
    assert len(node.target.steps) == 4


def test_partition_with_another_log_end_stays_with_the_brokers() -> None:
    node = Node()
    node.target.end = END + 1
    with pytest.raises(DemotionDeniedError, match="remote-0 ends at offset 13, not at 12, where klamm handed it over"):
        node.take_back()
    assert node.target.steps == []


def test_record_that_is_not_committed_yet_gives_the_partition_back() -> None:
    node = Node()
    node.target.records = b"a record"
    with pytest.raises(DemotionDeniedError, match="remote-0 has records after offset 12"):
        node.take_back()
    assert node.target.steps[-1] == "reassign [1, 2, 3]"
    assert (node.member.partition.replicas, node.member.partition.leader) == (REPLICAS, 1)


def test_replica_with_a_record_of_the_former_leader_gives_the_partition_back() -> None:
    node = Node()
    node.ends[2] = END + 1
    with pytest.raises(DemotionDeniedError, match="replica 2 of remote-0 ends at offset 13, not at 12"):
        node.take_back()
    partition = node.member.partition
    assert (partition.replicas, partition.isr, partition.leader) == (REPLICAS, REPLICAS, 1)
    assert node.floors == {}


def test_replicas_out_of_sync_are_awaited() -> None:
    node = Node()
    node.member.change(replace(node.member.partition, isr=(1, 3)))
    with pytest.raises(PromotionError, match="replicas 2 of remote-0 are not in sync"):
        node.take_back()
    assert node.target.steps == []


def test_eligible_leader_replicas_keep_klamm_from_mirroring() -> None:
    node = Node()
    node.member.elr = (1, 2)
    with pytest.raises(PromotionError, match=r"set min\.insync\.replicas=1"):
        node.take_back()
    assert node.floors == {}
    steps = len(node.target.steps)
    with pytest.raises(PromotionWaitsError, match=r"set min\.insync\.replicas=1"):
        node.take_back()
    assert len(node.target.steps) == steps
    node.member.change(replace(node.member.partition, elr=()))
    node.take_back()
    assert node.floors == {REMOTE: EpochFloor(END, 5)}


def test_eligible_leader_replicas_are_reported_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    node.member.elr = (1, 2)
    monkeypatch.setattr(
        node.member, "wait_for", lambda met, _: pytest.fail("waits") if not met(node.member.image) else 0
    )
    with pytest.raises(PromotionError, match=r"set min\.insync\.replicas=1"):
        node.take_back()


def cancelled(leader_epoch: int = 8) -> Node:
    """Return the node of a new process after one took a partition back and its reassignment was cancelled."""
    node = Node()
    node.take_back()
    node.target.are_known = False
    node.floors.clear()
    node.target.steps.clear()
    node.member.change(replace(node.member.partition, removing=(), leader_epoch=leader_epoch))
    return node


@pytest.mark.parametrize("ends", [(50, 50, 50), (END, END, 50)])
def test_cancelled_reassignment_of_a_partition_that_was_mirrored_on_begins_again(ends: tuple[int, ...]) -> None:
    node = cancelled()
    node.ends = dict(zip(REPLICAS, ends, strict=True))
    node.take_back()  # the stored source offset lags
    assert node.target.steps == ["reassign [1, 2, 3]"]
    assert (node.member.partition.removing, node.floors) == ((KLAMM,), {})


def test_reassignment_that_another_process_did_not_begin_stores_the_leader_epoch_first() -> None:
    node = cancelled()
    Demotion(node, KLAMM, node.target, node.floors.update).release({REMOTE: END})
    assert (node.target.steps, node.floors) == (["reassign [1, 2, 3]"], {REMOTE: EpochFloor(END, 8)})


def test_log_ends_of_replicas_that_do_not_fetch_are_not_guessed() -> None:
    node = cancelled()
    node.ends = {}
    node.leader.followers.clear()
    with pytest.raises(PromotionError, match="not all replicas of remote-0 fetch from klamm"):
        node.take_back()
    assert (node.target.steps, node.floors) == ([], {})


def test_partition_of_a_klamm_that_is_fenced_is_not_due() -> None:
    node = Node()
    demotion = Demotion(node, KLAMM, node.target, node.floors.update)
    assert demotion.is_due(REMOTE)
    node.take_back()
    node.member.change(replace(node.member.partition, leader=NO_LEADER))
    assert not demotion.is_due(REMOTE)
    node.member.change(replace(node.member.partition, removing=()))
    with pytest.raises(PromotionWaitsError, match="remote-0 has no leader on the target"):
        node.take_back()


def test_partition_that_was_deleted_is_not_taken_back() -> None:
    node = Node()
    with pytest.raises(PromotionError, match="gone-0 was deleted on the target"):
        Demotion(node, KLAMM, node.target, node.floors.update)._join({TopicPartition("gone", 0): END})


def test_target_without_a_live_broker_lets_the_demotion_wait() -> None:
    brokers = TargetBrokers(Mock(node_ids=frozenset({KLAMM, KLAMM + 1})), KLAMM, frozenset)
    with pytest.raises(ConnectionLostError, match="the target has no live broker with storage"):
        brokers.reassign({REMOTE: REPLICAS})


def test_brokers_that_are_asked_have_storage() -> None:
    cluster = Mock(node_ids=frozenset({1, KLAMM, KLAMM + 1}))
    brokers = TargetBrokers(cluster, KLAMM, lambda: {2, 1})
    assert len(brokers.givers_of_producer_ids()) == 2
    assert [call.args for call in cluster.connection.call_args_list] == [(1,), (2,)]
    cluster.node_ids = frozenset({KLAMM, KLAMM + 1})
    with pytest.raises(ConnectionLostError, match="the brokers of the target are not found yet"):
        brokers.elect_preferred([REMOTE])
