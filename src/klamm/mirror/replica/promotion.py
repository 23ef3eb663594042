"""Promotion: klamm hands partitions that it leads over to the brokers of the target.

Steps, for all partitions of a topic at once, when their replicas have what the source had at the beginning:

==========  ===========================================================================================================
Step        What happens
==========  ===========================================================================================================
check       klamm must lead the partition, with a reassignment to live brokers in progress.
raise       The target's producer ids are raised above those in the log.
seal        The log ends where it was read, and the replicas fetch the rest, whose producer ids count too.
remember    The log end is stored on the target.
hand over   AlterPartition with all replicas as in-sync replicas. The controller completes the reassignment and elects
            one of them: NEW_LEADER_ELECTED is the success.
abort       Transactions that are open before the log end are aborted by WriteTxnMarkers to the new leader, as
            ``kafka-transactions.sh abort`` does (KIP-664). No coordinator of the target knows them.
==========  ===========================================================================================================

A failure before "hand over" lets the partition be mirrored again. If it is not known whether the controller handed it
over, the partition stays sealed until newer metadata decide. All steps can be repeated, also by another process: it
finds the partition in the hands of a broker, and the log end on the target.
"""

from __future__ import annotations

import time
from dataclasses import field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.display import counted, printable
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_text
from klamm.kraft.image import NO_LEADER
from klamm.kraft.member import IsrChange
from klamm.lazy_dataclass import dataclass
from klamm.mirror.copy.equal_offsets import RESERVED_PRODUCER_IDS
from klamm.mirror.replica.errors import PromotionError, PromotionWaitsError
from klamm.mirror.replica.leader_partition import UNKNOWN
from klamm.mirror.replica.producer_ids import end_of_block, raise_producer_ids
from klamm.protocol.errors import ErrorCode, KafkaApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from klamm.kraft.image import PartitionImage
    from klamm.kraft.member import BrokerMember
    from klamm.mirror.replica.leader_partition import LeaderPartition, Leadership
    from klamm.mirror.replica.node import ReplicaNode
    from klamm.mirror.replica.target_brokers import TargetBrokers
    from klamm.protocol.types import TopicPartition

SYNC_S: Final = 10.0
"""Seconds in which the replicas must fetch the rest of a sealed partition. Producers wait for it."""
UNKNOWN_COLLISIONS: Final = "the transactional ids of the target with producer ids of the log are not known"
_MAX_NAMES: Final = 10
_UNDECIDED: Final = frozenset(
    {ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.INVALID_REQUEST}
)
"""Errors of AlterPartition that also answer a repeated request whose first answer was lost."""


class HandedOver(NamedTuple):
    """Result of one partition."""

    log_end: int
    """Offset up to which the records come from the source."""
    sealed_at: float
    """Time at which the log ended, in seconds since the epoch."""
    took_s: float
    """Seconds from then until a broker led the partition."""
    producer_ids_from: int
    """Lowest producer id that the target gives to new producers."""
    collisions: str = ""
    """Value of ``describe_collisions``."""


class EndedTransactions(NamedTuple):
    """State of a partition that a broker leads."""

    leader_epoch: int
    aborted: int
    """Number of transactions that were aborted now."""


def describe(handed_over: HandedOver | None, ended: EndedTransactions, later: str) -> str:
    """Return the result of one partition as text.

    Args:
        handed_over: What this process did. None: an earlier process handed it over.
        ended: State of the partition.
        later: What the source got since, as ``SourceLogs.describe_more`` returns it.
    """
    aborted = f"{later}{counted(ended.aborted, 'open transaction')} aborted, leader epoch {ended.leader_epoch}"
    if handed_over is None:
        return f"handed over by an earlier process; {aborted}"
    at = datetime.fromtimestamp(handed_over.sealed_at, UTC).isoformat(timespec="milliseconds")
    ids = f"new producer ids from {handed_over.producer_ids_from}"
    collisions = f"; {handed_over.collisions}" if handed_over.collisions else ""
    return f"handed over at {at} in {handed_over.took_s:.2f} s; {aborted}, {ids}{collisions}"


def describe_collisions(producer_ids: Collection[int], transactional_ids: Mapping[int, str]) -> str:
    """Return which transactional ids of the target have producer ids that are in a mirrored log. Empty: none.

    The transaction coordinator increments only the epoch of a producer that restarts. Where the source's epoch is
    higher, its batches are rejected. Where the epochs are equal, the first ones count as duplicates and are lost.

    Args:
        producer_ids: Producer ids in the log.
        transactional_ids: Transactional ids of the target by producer id.
    """
    names = [printable(transactional_ids[each]) for each in sorted(transactional_ids.keys() & producer_ids)]
    if not names:
        return ""
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return (
        f"transactional ids of the target whose producer ids are in the log: {', '.join(names[:_MAX_NAMES])}{more}. A "
        "restart keeps these. Before their producers write to the topic, let them use other transactional ids, or wait "
        "for producer.id.expiration.ms"
    )


@dataclass(slots=True, eq=False)
class _Promoting:
    """A partition in promotion."""

    partition: TopicPartition
    leader: LeaderPartition
    replicas: frozenset[int]
    """Node ids of the replicas after the reassignment."""
    first: int
    """The one that the controller elects: the first that is in sync."""
    sealed_at: float = 0.0
    end: int = 0
    """Log end when the replicas had fetched the rest."""
    producer_ids: set[int] = field(default_factory=set[int])
    """Producer ids that the replicas know, without reserved ones."""

    @property
    def name(self) -> str:
        """Topic and partition."""
        return self.leader.name

    @property
    def key(self) -> tuple[UUID, int]:
        """Topic id and partition number."""
        return self.leader.topic_id, self.leader.partition

    @property
    def is_in_sync(self) -> bool:
        """Return whether all replicas are live and have everything."""
        return self.leader.in_sync() >= self.replicas

    @property
    def is_stuck(self) -> bool:
        """Return whether a replica needs batches that are not in memory. For a sealed partition, none are read."""
        tail, followers = self.leader.tail, self.leader.followers
        return tail is not None and any(
            follower.fetch_offset < tail.start for node, follower in followers.items() if node in self.replicas
        )

    @property
    def missing(self) -> str:
        """The replicas that do not have everything."""
        missing = self.replicas - self.leader.in_sync()
        return f"replicas {listed(missing)} of {self.name} do not have offset {self.leader.log_end}"

    @property
    def log_ends(self) -> dict[int, int]:
        """Offset up to which each replica has the records of the source.

        Raises:
            PromotionError: A replica no longer fetches from klamm.
        """
        followers = self.leader.followers
        if absent := self.replicas - followers.keys():
            raise PromotionError(f"replicas {listed(absent)} of {self.name} do not fetch any more")
        return {node: followers[node].fetch_offset for node in self.replicas}

    @property
    def latest(self) -> int:
        """Node id of the replica whose log is the latest as in KIP-595. ``first`` if others have no more.

        That is the highest leader epoch of the last batch, then the largest log end. A longer log of an older epoch
        holds records that only a former leader had. Errors as of ``log_ends``.
        """
        ends, leader = self.log_ends, self.leader
        return max(ends, key=lambda node: (leader.epoch_of(leader.followers[node]), ends[node], node == self.first))

    @property
    def log_end(self) -> int:
        """Offset up to which the next leader has the records of the source. Errors as of ``log_ends``."""
        return self.log_ends[self.first]

    def change(self, node_id: int, broker_epoch: int, *, accepts_loss: bool) -> IsrChange:
        """Return the change with which the controller hands the partition over.

        The broker epochs are those of the fetches: the controller rejects a replica that has restarted since (KIP-903).

        Args:
            node_id: Node id of klamm.
            broker_epoch: Broker epoch of klamm.
            accepts_loss: Whether replicas may be behind the next leader.

        Raises:
            PromotionError: Something has changed since the replicas had everything.
        """
        leader, leadership = self.leader, self.leader.leadership
        if leadership is None or not leader.is_sealed:
            raise PromotionError(f"{self.name}: klamm does not lead it any more, or leads it again")
        if leadership.remaining != self.replicas or not leadership.live >= self.replicas:
            raise PromotionError(f"{self.name}: its replicas have changed, or one is no longer live")
        if self.log_end < self.end or not (accepts_loss or self.is_in_sync):
            raise PromotionError(self.missing)
        epochs = {node: leader.followers[node].presence.replica_epoch for node in self.replicas}
        return IsrChange(
            leader_epoch=leadership.leader_epoch,
            partition_epoch=leadership.partition_epoch,
            isr={**epochs, node_id: broker_epoch},
        )


class Promotion:
    """Promotion of partitions that a node leads. Confined to one thread; calls block for some seconds.

    Args:
        node: Node that leads the partitions.
        node_id: Its node id.
        brokers: Brokers of the target.
        remember: Stores the log ends of partitions of a topic on the target.
    """

    def __init__(
        self,
        node: ReplicaNode,
        node_id: int,
        brokers: TargetBrokers,
        remember: Callable[[Mapping[TopicPartition, int]], None],
        *,
        sync_s: float = SYNC_S,
    ) -> None:
        self._node = node
        self._node_id = node_id
        self._brokers = brokers
        self._remember = remember
        self._sync_s = sync_s

    def is_handed_over(self, partition: TopicPartition) -> bool:
        """Return whether klamm is not a replica of a partition. Brokers lead it as soon as one is live."""
        state = state_of(self._node, partition)
        return state is not None and self._node_id not in state.replicas

    def hand_over(
        self, partitions: Collection[TopicPartition], *, accepts_loss: bool = False
    ) -> dict[TopicPartition, HandedOver]:
        """Hand all partitions over, or none of them unless the controller rejects some.

        Args:
            partitions: Partitions of a remote topic.
            accepts_loss: Whether partitions that halted are handed over, and replicas may be behind the others. Records
                that not all have may be lost.

        Raises:
            PromotionError: They cannot be handed over now.
            KafkaApiError, ConnectionError, TimeoutError: The target rejects a request, or does not respond.
            MembershipError: klamm is no longer a broker of the target.
        """
        all_of = self._checked(partitions, accepts_loss=accepts_loss)
        self._raise_producer_ids(all_of)
        collisions = self._collisions(all_of)  # before producers wait
        try:
            self._seal(all_of, accepts_loss=accepts_loss)
            producer_ids_from = self._raise_producer_ids(all_of)
            self._remember({each.partition: each.end for each in all_of})
            self._hand_over(all_of, accepts_loss=accepts_loss)
        finally:
            self._node.call(_unseal, all_of)
        now = time.time()
        return {
            each.partition: HandedOver(
                each.end, each.sealed_at, now - each.sealed_at, producer_ids_from, collisions[each.partition]
            )
            for each in all_of
        }

    def end_transactions(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, EndedTransactions]:
        """Abort the transactions that are open before the log ends of partitions that brokers lead.

        Args:
            ends: Offset of each remote partition up to which its records come from the source.

        Raises:
            ConnectionLostError: A leader does not respond. Repeating the call is safe.
        """
        self._brokers.refresh(sorted({partition.topic for partition in ends}))
        leaders = {partition: self._brokers.leader(partition) for partition in ends}
        described = self._brokers.producers({partition: leader for partition, (leader, _) in leaders.items()})
        ended = {}
        for partition, end in ends.items():
            hanging = [each for each in described[partition] if 0 <= each.current_txn_start_offset < end]
            if hanging:
                self._brokers.abort(partition, hanging)
            ended[partition] = EndedTransactions(leaders[partition][1], len(hanging))
        return ended

    # --- steps --------------------------------------------------------------------------------------------------------

    def _checked(self, partitions: Collection[TopicPartition], *, accepts_loss: bool) -> list[_Promoting]:
        all_of, failures = list[_Promoting](), list[str]()
        for partition in partitions:
            checked = self._node.call(self._checked_one, partition, accepts_loss=accepts_loss)
            if isinstance(checked, str):
                failures.append(f"{partition.name}: {checked}")
            else:
                all_of.append(checked)
        if failures:
            raise PromotionWaitsError("; ".join(failures))
        return all_of

    def _checked_one(self, partition: TopicPartition, *, accepts_loss: bool) -> _Promoting | str:
        """Return the partition, or why it cannot be handed over."""
        leader, state = self._node.partition(*partition), state_of(self._node, partition)
        leadership = None if leader is None else leader.leadership
        if leader is None or leadership is None or state is None:
            return "klamm does not lead it"
        if leader.halted and not accepts_loss:
            return leader.halted
        replicas = leadership.remaining
        order = [node for node in state.replicas if node in replicas]
        if self._node_id not in state.removing or not order:
            return "no reassignment to the brokers is in progress"
        if both := set(state.adding) & set(state.removing):
            # The controller adds nothing new, so it keeps what was added (``PartitionReassignmentReplicas``), and waits
            # for these to be in sync. klamm would not be alone in the ISR any more, and could mirror nothing.
            return (
                f"the target never completes its reassignment, which adds and removes replicas {listed(both)}: "
                f"reassign it to brokers {listed(state.adding)}, or to another one in place of {listed(both)}"
            )
        return _missing(leader, leadership, accepts_loss=accepts_loss) or _Promoting(
            partition, leader, replicas, order[0]
        )

    def _seal(self, all_of: Sequence[_Promoting], *, accepts_loss: bool) -> None:
        def seal() -> None:
            for each in all_of:
                each.sealed_at = time.time()
                each.leader.seal()

        def note_ends() -> None:
            for each in all_of:
                each.end = each.log_end

        self._node.call(seal)

        def is_over() -> bool:
            # Those that halted get nothing more.
            is_complete = all(each.is_in_sync or each.leader.halted for each in all_of)
            return is_complete or (not accepts_loss and any(each.is_stuck for each in all_of))

        self._node.wait_for(is_over, self._sync_s)
        if accepts_loss:
            self._freeze(all_of)
            self._prefer_latest(all_of)
        else:
            _raise_if([each.missing for each in all_of if not each.is_in_sync])
        self._node.call(note_ends)

    def _freeze(self, all_of: Sequence[_Promoting]) -> None:
        """Serve no more batches, and await the next fetch of each replica, which shows its log end."""

        def freeze() -> dict[_Promoting, Mapping[int, float]]:
            for each in all_of:
                each.leader.is_frozen = True
            return {each: {node: own.presence.at for node, own in each.leader.followers.items()} for each in all_of}

        def have_fetched() -> bool:
            return all(
                (own := each.leader.followers.get(node)) is not None and own.presence.at > at
                for each, fetched_at in before.items()
                for node, at in fetched_at.items()
                if node in each.replicas
            )

        before = self._node.call(freeze)
        self._node.wait_for(have_fetched, self._sync_s)

    def _prefer_latest(self, all_of: Sequence[_Promoting]) -> None:
        """Let the controller elect the replicas with the latest logs: the first ones of the reassignment."""
        order: dict[TopicPartition, Sequence[int]] = {}
        for each, latest in zip(all_of, self._node.call(lambda: [own.latest for own in all_of]), strict=True):
            if latest != each.first:
                each.first = latest
                order[each.partition] = [latest, *sorted(each.replicas - {latest})]
        if not order:
            return
        self._brokers.reassign(order)

        def is_reordered() -> bool:
            states = {partition: state_of(self._node, partition) for partition in order}
            return all(state is not None and state.replicas[0] == order[each][0] for each, state in states.items())

        if not self._node.wait_for(is_reordered, self._sync_s):
            raise PromotionError(f"the replicas of {', '.join(map(str, order))} are not reassigned")

    def _raise_producer_ids(self, all_of: Sequence[_Promoting]) -> int:
        """Raise the producer ids above those that the replicas know. Older ones no longer matter to them.

        Reserved ids are left out: a flow with replay wrote them to the source, and brokers never assign them.
        """
        self._brokers.refresh(sorted({each.partition.topic for each in all_of}))
        for node in sorted(frozenset[int]().union(*(each.replicas for each in all_of))):
            own = {each.partition: each for each in all_of if node in each.replicas}
            for partition, producers in self._brokers.producers(dict.fromkeys(own, node)).items():
                own[partition].producer_ids |= {
                    each.producer_id for each in producers if each.producer_id < RESERVED_PRODUCER_IDS
                }
        return raise_producer_ids(
            member_of(self._node).allocate_producer_ids,
            self._brokers.givers_of_producer_ids(),
            end_of_block(max((producer_id for each in all_of for producer_id in each.producer_ids), default=-1)),
        )

    def _collisions(self, all_of: Sequence[_Promoting]) -> dict[TopicPartition, str]:
        """Return ``HandedOver.collisions`` of partitions. That they are not known does not prevent the promotion."""
        try:
            names = self._brokers.transactional_ids(set[int]().union(*(each.producer_ids for each in all_of)))
        except CLUSTER_ERRORS as error:
            return {each.partition: f"{UNKNOWN_COLLISIONS}: {error_text(error)}" for each in all_of}
        return {each.partition: describe_collisions(each.producer_ids, names) for each in all_of}

    def _hand_over(self, all_of: Sequence[_Promoting], *, accepts_loss: bool) -> None:
        member = member_of(self._node)

        def changes() -> dict[tuple[UUID, int], IsrChange]:
            out = {
                each.key: each.change(self._node_id, member.broker_epoch, accepts_loss=accepts_loss) for each in all_of
            }
            for each in all_of:
                each.leader.in_doubt_epoch = out[each.key].partition_epoch
            return out

        outcomes = member.alter_partitions(self._node.call(changes))
        failures = dict[_Promoting, str]()
        for each in all_of:
            outcome = outcomes.get(each.key)
            code = outcome.error_code if isinstance(outcome, KafkaApiError) else None
            if code is not ErrorCode.NEW_LEADER_ELECTED:
                failures[each] = f"{each.name}: the controller does not complete the reassignment: {outcome}"
                if code not in _UNDECIDED:
                    each.leader.in_doubt_epoch = UNKNOWN

        def is_decided(each: _Promoting) -> bool:
            return is_led_by_broker(each) or not each.leader.is_in_doubt

        def is_led_by_broker(each: _Promoting) -> bool:
            state = state_of(self._node, each.partition)
            return state is not None and state.leader != NO_LEADER and self._node_id not in state.replicas

        self._node.wait_for(lambda: all(map(is_decided, all_of)), self._sync_s)
        _raise_if(
            [failures.get(each, f"no broker leads {each.name} yet") for each in all_of if not is_led_by_broker(each)]
        )


def member_of(node: ReplicaNode) -> BrokerMember:
    """Return the membership of a node.

    Raises:
        PromotionError: It has none.
    """
    if node.member is None:
        raise PromotionError("klamm is not a broker of the target")
    return node.member


def state_of(node: ReplicaNode, partition: TopicPartition) -> PartitionImage | None:
    """Return the state of a partition in the target's metadata. None: it does not exist there."""
    leader = node.partition(*partition)
    return None if leader is None else member_of(node).observer.image.partition(leader.topic_id, partition.partition)


def _missing(leader: LeaderPartition, leadership: Leadership, *, accepts_loss: bool) -> str:
    """Return which replicas keep a partition from being sealed. Empty: none."""
    if absent := leadership.remaining - leadership.live:
        return f"replicas {listed(absent)} are not live"
    if absent := leadership.remaining - leader.followers.keys():
        return f"replicas {listed(absent)} do not fetch yet"
    # Sealing also ends the reading of the source for those that are before the tail.
    start = UNKNOWN if accepts_loss or leader.tail is None else leader.tail.start
    late = [node for node in leadership.remaining if leader.followers[node].fetch_offset < start]
    return f"replicas {listed(late)} do not have offset {start} yet" if late else ""


def _unseal(all_of: Sequence[_Promoting]) -> None:
    """Mirror the partitions again that were surely not handed over."""
    for each in all_of:
        if not each.leader.is_in_doubt:
            each.leader.unseal()


def listed(nodes: Collection[int]) -> str:
    """Return node ids as text."""
    return ", ".join(map(str, sorted(nodes)))


def _raise_if(failures: Sequence[str]) -> None:
    if failures:
        raise PromotionError("; ".join(failures))
