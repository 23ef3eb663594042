"""Promotion of partitions that klamm leads, with a source, replicas and a controller in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from uuid import UUID

import pytest

from klamm.admin import TopicPartition
from klamm.kafka_client.errors import ConnectionLostError, api_error
from klamm.mirror.copy.equal_offsets import ReplaySettings
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.records.source_offsets import EpochFloor
from klamm.mirror.replica.errors import PromotionError, PromotionWaitsError
from klamm.mirror.replica.leader_partition import LeaderPartition, Leadership
from klamm.mirror.replica.node import ReplicaNode
from klamm.mirror.replica.promotion import EndedTransactions, Promotion, describe, describe_collisions
from klamm.mirror.replica.target_brokers import ProducerState, TargetBrokers
from klamm.protocol.errors import ErrorCode
from tests.support.replicas import FakeMember, KafkaFollower, SourceLog, copy_once, image_of, stored_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from klamm.kraft.image import ClusterImage
    from klamm.kraft.member import IsrChange, IsrState
    from klamm.protocol.errors import KafkaApiError

P = ParamSpec("P")
T = TypeVar("T")

KLAMM = 9
REPLICAS = (1, 2, 3)
TOPIC_ID = UUID(int=7)
NOW = 100.0
REMOTE = TopicPartition("remote", 0)


class Member(FakeMember):
    """Its controller can reject AlterPartition, or not respond."""

    rejects = is_silent = loses_answer = False

    def alter_partitions(
        self, changes: Mapping[tuple[UUID, int], IsrChange]
    ) -> Mapping[tuple[UUID, int], IsrState | KafkaApiError]:
        if self.is_silent:
            raise TimeoutError
        if self.loses_answer:  # the member repeats the request
            super().alter_partitions(changes)
        return super().alter_partitions(changes)

    def _alter(self, topic_id: UUID, index: int, change: IsrChange) -> IsrState | KafkaApiError:
        if self.rejects:
            return api_error(ErrorCode.INELIGIBLE_REPLICA)
        return super()._alter(topic_id, index, change)


class Giver:
    """A broker with blocks of a hundred producer ids, and a producer for each."""

    def __init__(self, first: int = 0) -> None:
        self.next = first

    def next_producer_id(self) -> int:
        self.next += 100
        return self.next - 100


class Brokers(TargetBrokers):
    """Brokers of the target. All of them know the same producers."""

    def __init__(self) -> None:
        self.known: list[ProducerState] = []
        self.known_by: dict[int, list[ProducerState]] = {}
        self.givers: list[Giver] = []
        self.names: dict[int, str] = {}
        self.failure: Exception | None = None
        """Error of ListTransactions."""
        self.aborted: list[int] = []
        self.is_away = False
        self.on_producers: Callable[[], object] = lambda: None
        self.reordered: Callable[[Sequence[int]], object] = lambda _: None

    def refresh(self, topics: Collection[str]) -> None:
        assert set(topics) == {REMOTE.topic}

    def leader(self, partition: TopicPartition) -> tuple[int, int]:
        assert partition == REMOTE
        return 1, 7

    def producers(self, places: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Sequence[ProducerState]]:
        if self.is_away:
            raise ConnectionLostError("broker 1 does not respond")
        assert set(places.values()) <= set(REPLICAS)
        self.on_producers()
        return {partition: self.known_by.get(node_id, self.known) for partition, node_id in places.items()}

    def transactional_ids(self, producer_ids: Collection[int]) -> Mapping[int, str]:
        if self.failure:
            raise self.failure
        return {each: name for each, name in self.names.items() if each in producer_ids}

    def givers_of_producer_ids(self) -> Sequence[Callable[[], int]]:
        return [each.next_producer_id for each in self.givers]

    def reassign(self, replicas: Mapping[TopicPartition, Sequence[int]]) -> None:
        self.reordered(replicas[REMOTE])

    def abort(self, partition: TopicPartition, producers: Sequence[ProducerState]) -> None:
        assert partition == REMOTE
        self.aborted += [each.producer_id for each in producers]


def producer(producer_id: int, start: int = -1) -> ProducerState:
    """Return a producer, with the first offset of its open transaction."""
    return ProducerState(producer_id=producer_id, producer_epoch=0, current_txn_start_offset=start)


class Node(ReplicaNode):
    """Node without threads: replicas fetch while it waits."""

    member: Member

    def __init__(self) -> None:
        image = image_of(REMOTE.topic, TOPIC_ID, KLAMM, REPLICAS)
        topic = image.topics[TOPIC_ID]
        spread = replace(topic.partitions[0], adding=REPLICAS, removing=(KLAMM,))
        self.member = Member(replace(image, topics={TOPIC_ID: replace(topic, partitions={0: spread})}), KLAMM)
        self.member.subscribe(self._apply)
        self.source = SourceLog()
        self.brokers = Brokers()
        self.remembered: list[int] = []
        self.leader = LeaderPartition(REMOTE.topic, TOPIC_ID, 0)
        self.followers = [KafkaFollower(each) for each in REPLICAS]
        self.stopped: set[int] = set()
        self.slow: set[int] = set()
        """Replicas whose responses are lost."""
        self.now = NOW
        self.live = frozenset(REPLICAS)
        self._apply(self.member.image)

        self.brokers.reordered = self._reorder

    def _reorder(self, replicas: Sequence[int]) -> None:
        topic = self.member.image.topics[TOPIC_ID]
        before = topic.partitions[0]
        after = replace(before, replicas=(*replicas, KLAMM), partition_epoch=before.partition_epoch + 1)
        self.member.publish(replace(self.member.image, topics={TOPIC_ID: replace(topic, partitions={0: after})}))

    def _apply(self, image: ClusterImage) -> None:
        partition = image.topics[TOPIC_ID].partitions[0]
        if partition.leader == KLAMM:
            self.leader.lead(
                Leadership(
                    leader_epoch=partition.leader_epoch,
                    partition_epoch=partition.partition_epoch,
                    replicas=frozenset(partition.replicas) - {KLAMM},
                    live=self.live,
                    removing=frozenset(partition.removing) - {KLAMM},
                ),
                NOW,
            )
        else:
            self.leader.resign(is_replaced=partition.leader >= 0)

    def partition(self, topic: str, index: int) -> LeaderPartition | None:
        return self.leader if topic == REMOTE.topic else None

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        assert timeout_s > 0
        self.replicate()
        return condition()

    def admit(self, topics: Collection[str]) -> None:
        raise AssertionError(topics)

    def replicate(self) -> None:
        """Let the replicas fetch, and the leader read the source and raise its epoch where it must."""
        self.leader.begin(self.source.log_start, self.source.end)
        for _ in range(len(self.source.batches) + 8):
            self.now += 0.01
            for follower in self.followers:
                if follower.node_id in self.slow:
                    replace(follower, batches=[*follower.batches]).fetch(self.leader, self.now)
                elif follower.node_id not in self.stopped:
                    follower.fetch(self.leader, self.now)
            copy_once(self.source, self.leader, self.now)
            leadership = self.leader.leadership
            if leadership is not None and self.leader.wanted_epoch > leadership.leader_epoch:
                self.member.fence(True)
                self.member.fence(False)

    def promotion(self) -> Promotion:
        return Promotion(self, KLAMM, self.brokers, lambda ends: self.remembered.append(ends[REMOTE]))


def test_handed_over_partition_is_led_by_a_broker_with_all_replicas_in_sync() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()

    handed_over = node.promotion().hand_over([REMOTE])

    partition = node.member.observer.image.topics[TOPIC_ID].partitions[0]
    assert (partition.replicas, partition.isr, partition.leader) == (REPLICAS, REPLICAS, 1)
    assert handed_over[REMOTE].log_end == 3
    assert node.remembered == [3]
    assert node.promotion().is_handed_over(REMOTE)


def test_transactions_open_before_the_log_end_are_aborted_and_those_of_new_producers_are_not() -> None:
    node = Node()
    node.brokers.known = [producer(5, 0), producer(6), producer(7, 2), producer(9_000, 3)]

    ended = node.promotion().end_transactions({REMOTE: 3})

    assert node.brokers.aborted == [5, 7]
    assert ended == {REMOTE: (7, 2)}


def test_producer_ids_of_the_target_are_above_those_in_the_log() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()
    node.brokers.known = [producer(4_321)]
    node.brokers.givers = [Giver(0), Giver(700)]

    handed_over = node.promotion().hand_over([REMOTE])

    assert handed_over[REMOTE].producer_ids_from == 5_100
    assert all(giver.next > 5_000 for giver in node.brokers.givers)


def test_result_names_the_transactional_ids_of_the_target_whose_producer_ids_are_in_the_log() -> None:
    # given
    node = Node()
    node.source.produce(3)
    node.replicate()
    node.brokers.known = [producer(7)]
    node.brokers.names = {7: "pay", 8: "other"}
    # when
    handed_over = node.promotion().hand_over([REMOTE])[REMOTE]
    # then
    assert describe(handed_over, EndedTransactions(7, 0), "").endswith(
        ", new producer ids from 1000; transactional ids of the target whose producer ids are in the log: pay. A "
        "restart keeps these. Before their producers write to the topic, let them use other transactional ids, or wait "
        "for producer.id.expiration.ms"
    )


def test_topic_is_handed_over_if_the_transactional_ids_of_the_target_are_not_known() -> None:
    # given
    node = Node()
    node.source.produce(3)
    node.replicate()
    node.brokers.known = [producer(7)]
    node.brokers.failure = ConnectionLostError("broker 1 is loading")
    # when
    handed_over = node.promotion().hand_over([REMOTE])[REMOTE]
    # then
    assert handed_over.collisions == (
        "the transactional ids of the target with producer ids of the log are not known: broker 1 is loading"
    )


@pytest.mark.parametrize(
    ("count", "names"), [(0, ""), (11, "tx1, tx2, tx3, tx4, tx5, tx6, tx7, tx8, tx9, tx10 and 1 more.")]
)
def test_description_of_collisions_is_short(count: int, names: str) -> None:
    transactional_ids = {each: f"tx{each}" for each in range(1, count + 1)}
    text = describe_collisions({*transactional_ids, 99}, transactional_ids)
    assert names in text
    assert bool(text) == bool(names)


def test_topic_that_a_flow_with_replay_wrote_on_the_source_is_handed_over() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()
    replay = ReplaySettings(id_prefix="Z->A").producer_id(PartitionId("orders", 0, "orders"))
    node.brokers.known = [producer(replay), producer(4_321)]
    node.brokers.givers = [Giver(0)]

    assert node.promotion().hand_over([REMOTE])[REMOTE].producer_ids_from == 5_100


def test_partition_with_a_replica_out_of_sync_is_mirrored_again() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()
    node.stopped = {2}
    node.source.produce(3)
    node.replicate()

    with pytest.raises(PromotionError, match="replicas 2 of remote-0 do not have offset 6"):
        node.promotion().hand_over([REMOTE])

    assert not node.leader.is_sealed
    assert node.remembered == []
    node.stopped = set()
    node.replicate()
    assert node.promotion().hand_over([REMOTE])[REMOTE].log_end == 6


def test_promotion_with_accepted_loss_ends_at_log_end_of_next_leader() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()
    node.stopped = {2}
    node.source.produce(3)
    node.replicate()

    handed_over = node.promotion().hand_over([REMOTE], accepts_loss=True)

    assert handed_over[REMOTE].log_end == node.followers[0].end == 6
    assert node.promotion().is_handed_over(REMOTE)


def test_promotion_with_accepted_loss_elects_the_replica_with_the_longest_log() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()
    node.slow = {1}
    node.source.produce(3)
    node.replicate()

    handed_over = node.promotion().hand_over([REMOTE], accepts_loss=True)

    partition = node.member.observer.image.topics[TOPIC_ID].partitions[0]
    assert (partition.leader, partition.replicas) == (2, (2, 1, 3))
    assert handed_over[REMOTE].log_end == node.followers[1].end == 6
    assert node.remembered == [6]


@pytest.mark.parametrize("mirrored_on", [0, 2])
def test_promotion_with_accepted_loss_elects_no_longer_log_of_an_older_leader_epoch(mirrored_on: int) -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()
    # broker 1 led with epoch 4 and died with records that were never committed; then klamm took the partition back
    topic = node.member.image.topics[TOPIC_ID]
    taken_back = replace(topic.partitions[0], leader_epoch=6, partition_epoch=5)
    node.live = frozenset({2, 3})
    node.stopped = {1}
    node.member.publish(replace(node.member.image, topics={TOPIC_ID: replace(topic, partitions={0: taken_back})}))
    node.leader.floors = (EpochFloor(3, 6, 0),)
    node.leader.tail = None
    if mirrored_on:
        node.source.produce(mirrored_on)
    node.replicate()
    returning = node.followers[0]
    returning.batches.append(stored_batch(3, 3, 4))
    returning.end = 6
    node.live, node.stopped = frozenset(REPLICAS), set()
    node._apply(node.member.image)
    node.replicate()
    assert node.leader.halted

    handed_over = node.promotion().hand_over([REMOTE], accepts_loss=True)

    assert node.member.image.topics[TOPIC_ID].partitions[0].leader == 2
    assert handed_over[REMOTE].log_end == node.followers[1].end == 3 + mirrored_on


def test_replicas_get_nothing_more_once_the_log_end_of_a_promotion_with_accepted_loss_is_known() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()
    node.slow = set(REPLICAS)
    node.source.produce(3)
    node.replicate()

    def catch_up() -> None:
        if node.leader.is_frozen:
            node.slow = set()
            node.replicate()

    node.brokers.on_producers = catch_up

    assert node.promotion().hand_over([REMOTE], accepts_loss=True)[REMOTE].log_end == 3
    assert [follower.end for follower in node.followers] == [3] * 3


def test_producer_ids_that_one_replica_alone_knows_are_not_assigned() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()
    node.brokers.known_by = {3: [producer(8_000)]}
    node.brokers.givers = [Giver(0)]

    assert node.promotion().hand_over([REMOTE])[REMOTE].producer_ids_from >= 9_000


def test_halted_partition_is_handed_over_if_losses_are_accepted() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()
    node.source.end, node.source.batches = 0, []
    node.leader.restart(NOW)
    node.replicate()
    with pytest.raises(PromotionError, match="promote the topic with --accept-loss"):
        node.promotion().hand_over([REMOTE])

    handed_over = node.promotion().hand_over([REMOTE], accepts_loss=True)

    assert handed_over[REMOTE].log_end == 3
    assert node.promotion().is_handed_over(REMOTE)


def test_lost_broker_that_a_reassignment_removes_does_not_hold_up_the_promotion() -> None:
    node = Node()
    topic = node.member.image.topics[TOPIC_ID]
    moving = replace(topic.partitions[0], replicas=(*REPLICAS, 4, KLAMM), removing=(4, KLAMM), partition_epoch=1)
    node.member.publish(
        replace(node.member.image, topics={TOPIC_ID: replace(topic, partitions={0: moving})}),
    )
    node.source.produce(3)
    node.replicate()

    assert node.promotion().hand_over([REMOTE])[REMOTE].log_end == 3

    assert node.member.image.topics[TOPIC_ID].partitions[0].isr == REPLICAS


def test_reassignment_that_never_completes_denies_the_promotion() -> None:
    """An operator has changed it to fewer brokers while it was in progress."""
    node = Node()
    topic = node.member.image.topics[TOPIC_ID]
    shrunk = replace(topic.partitions[0], adding=REPLICAS, removing=(2, KLAMM), partition_epoch=1)
    node.member.publish(replace(node.member.image, topics={TOPIC_ID: replace(topic, partitions={0: shrunk})}))
    node.source.produce(3)
    node.replicate()

    with pytest.raises(PromotionWaitsError, match=r"adds and removes replicas 2: reassign it to brokers 1, 2, 3, or"):
        node.promotion().hand_over([REMOTE])

    assert node.member.image.topics[TOPIC_ID].partitions[0].isr == (KLAMM,)


def test_topic_deleted_in_between_is_not_handed_over() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()
    node.brokers.on_producers = lambda: node.leader.resign(is_replaced=True) if node.leader.is_sealed else None

    with pytest.raises(PromotionError, match=r"remote-0"):
        node.promotion().hand_over([REMOTE])
    node = Node()
    node.source.produce(3)
    node.replicate()

    def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
        assert timeout_s > 0
        node.leader.followers.clear()
        return condition()

    node.wait_for = wait_for  # type: ignore[method-assign]

    with pytest.raises(PromotionError, match="replicas 1, 2, 3 of remote-0 do not"):
        node.promotion().hand_over([REMOTE], accepts_loss=True)


def test_replica_that_returns_with_an_empty_log_after_the_seal_is_not_elected() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()

    def return_empty() -> None:
        if node.leader.is_sealed:
            node.followers[0] = KafkaFollower(1)
            node.followers[0].fetch(node.leader, NOW)

    node.brokers.on_producers = return_empty

    with pytest.raises(PromotionError, match="replicas 1 of remote-0 do not have offset 3"):
        node.promotion().hand_over([REMOTE])

    assert not node.promotion().is_handed_over(REMOTE)
    assert not node.leader.is_sealed


def test_attempt_ends_at_once_when_a_replica_needs_batches_that_are_not_read_any_more() -> None:
    """It restarted after the log ended. The other replicas and producers wait no longer than that."""
    node = Node()
    node.source.produce(3)
    node.replicate()
    waits: list[bool] = []

    def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
        assert timeout_s > 0
        node.followers[0] = KafkaFollower(1)
        node.followers[0].fetch(node.leader, NOW)
        waits.append(condition())
        return waits[-1]

    node.wait_for = wait_for  # type: ignore[method-assign]

    with pytest.raises(PromotionError, match="replicas 1 of remote-0 do not have offset 3"):
        node.promotion().hand_over([REMOTE])

    assert waits == [True]


def test_replica_that_has_restarted_since_its_last_fetch_is_not_elected() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()

    def register_again() -> None:
        if node.leader.is_sealed:
            brokers = node.member.image.brokers
            again = {**brokers, 1: replace(brokers[1], broker_epoch=2)}
            node.member.publish(replace(node.member.image, brokers=again))

    node.brokers.on_producers = register_again

    with pytest.raises(PromotionError, match=ErrorCode.INELIGIBLE_REPLICA.name):
        node.promotion().hand_over([REMOTE])

    assert not node.leader.is_sealed


def test_partition_is_not_sealed_while_a_replica_reads_the_source_again() -> None:
    node = Node()
    node.source.produce(3)
    node.stopped = {2}
    node.live = frozenset({1, 3})
    node._apply(node.member.image)
    node.replicate()
    node.live, node.stopped = frozenset(REPLICAS), set()
    node._apply(node.member.image)
    node.followers[1].fetch(node.leader, NOW)
    seals: list[int] = []
    node.leader.seal = lambda: seals.append(1)  # type: ignore[method-assign]

    with pytest.raises(PromotionWaitsError, match="remote-0: replicas 2 do not have offset 3 yet"):
        node.promotion().hand_over([REMOTE])

    assert seals == []


def test_partition_with_a_dead_replica_is_not_handed_over() -> None:
    node = Node()
    node.live = frozenset({1, 3})
    node._apply(node.member.observer.image)

    with pytest.raises(PromotionError, match="remote-0: replicas 2 are not live"):
        node.promotion().hand_over([REMOTE])


def test_partition_is_mirrored_again_when_the_controller_rejects_it_or_a_broker_is_away() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()
    node.member.rejects = True
    with pytest.raises(PromotionError, match=ErrorCode.INELIGIBLE_REPLICA.name):
        node.promotion().hand_over([REMOTE])
    assert not node.leader.is_sealed
    node.brokers.is_away = True
    with pytest.raises(ConnectionLostError):
        node.promotion().hand_over([REMOTE])

    assert not node.leader.is_sealed
    assert not node.promotion().is_handed_over(REMOTE)


def test_partition_stays_sealed_when_the_answer_of_the_controller_is_lost() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()
    node.member.is_silent = True
    with pytest.raises(TimeoutError):
        node.promotion().hand_over([REMOTE])
    assert node.leader.is_sealed
    node.member.is_silent = False

    assert node.promotion().hand_over([REMOTE])[REMOTE].log_end == 3


def test_partition_is_handed_over_when_a_repeated_request_is_answered_as_stale() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()
    node.member.loses_answer = True

    assert node.promotion().hand_over([REMOTE])[REMOTE].log_end == 3


def test_partition_in_doubt_stays_sealed_until_newer_metadata_decide() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()
    node.member._alter = lambda *_: api_error(ErrorCode.FENCED_LEADER_EPOCH)  # type: ignore[method-assign]
    with pytest.raises(PromotionError, match=ErrorCode.FENCED_LEADER_EPOCH.name):
        node.promotion().hand_over([REMOTE])
    node.leader.unseal()
    assert node.leader.is_sealed
    assert node.leader.leadership is not None
    assert node.leader.wanted_epoch > node.leader.leadership.leader_epoch
    node.source.produce(3)

    node.leader.lead(replace(node.leader.leadership, leader_epoch=1, partition_epoch=1), NOW)

    assert not node.leader.is_sealed
    assert node.leader.wanted_epoch < 1


def test_producer_ids_are_raised_before_the_log_ends() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()
    node.brokers.known = [producer(4_321)]
    seals: list[bool] = []

    def allocate() -> range:
        seals.append(node.leader.is_sealed)
        return FakeMember.allocate_producer_ids(node.member)

    node.member.allocate_producer_ids = allocate  # type: ignore[method-assign]
    node.brokers.givers = [Giver(0)]

    node.promotion().hand_over([REMOTE])

    assert seals == [False] * 5


def test_partition_that_klamm_does_not_lead_is_not_handed_over() -> None:
    with pytest.raises(PromotionError, match="other-0: klamm does not lead it"):
        Node().promotion().hand_over([TopicPartition("other", 0)])
