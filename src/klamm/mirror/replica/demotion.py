"""Demotion: klamm leads partitions again that it handed over, if nothing was written to them since.

Each step begins where the target's metadata show that an earlier attempt ended, also that of another process:

==========  ===========================================================================================================
Step        What happens
==========  ===========================================================================================================
check       The log ends where it ended at the promotion, and all replicas are in sync.
join        klamm becomes the first replica by a reassignment, and fetches from the leader at the log end. The leader
            takes it into the ISR only if it ends there, too. From now on, no record is committed without klamm.
lead        The controller elects klamm, the preferred leader. All replicas fetch from it, and get no records.
be alone    When all of them end where klamm does, klamm is the only in-sync replica.
note        The leader epoch of klamm is stored on the target: batches get no lower one from here on (``EpochFloor``).
release     A reassignment to the other replicas begins, which removes klamm and stays in progress, as after the
            creation (``placement``). Only now klamm serves batches of the source, see ``Leadership.is_safe``. If an
            operator cancels it, only this step is repeated.
==========  ===========================================================================================================

If klamm dies before "be alone", a broker leads the partition again, with the same log. If records are found that klamm
did not hand over, the partitions are given back to the brokers.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from klamm.kraft.image import NO_LEADER
from klamm.kraft.member import IsrChange
from klamm.mirror.records.source_offsets import EpochFloor
from klamm.mirror.replica.errors import PromotionError, PromotionWaitsError
from klamm.mirror.replica.leader_partition import UNKNOWN
from klamm.mirror.replica.promotion import listed, member_of, state_of
from klamm.mirror.replica.target_brokers import ReplicaFetch
from klamm.protocol.errors import ErrorCode, KafkaApiError, error_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from klamm.kraft.image import ClusterImage, PartitionImage
    from klamm.mirror.replica.leader_partition import LeaderPartition
    from klamm.mirror.replica.node import ReplicaNode
    from klamm.mirror.replica.target_brokers import TargetBrokers
    from klamm.protocol.types import TopicPartition

STEP_S: Final = 10.0
"""Seconds in which each step must be done."""
_FETCH_EVERY_S: Final = 0.05
_ELIGIBLE: Final = "it has eligible leader replicas: set min.insync.replicas=1 for its topic until it is promoted again"


class DemotionDeniedError(PromotionError):
    """The replicas have other records than klamm handed over. Brokers keep the partitions."""


class Demotion:
    """Demotion of partitions that a node handed over. Confined to one thread; calls block for some seconds.

    Args:
        node: Node that leads partitions.
        node_id: Its node id.
        brokers: Brokers of the target.
        remember: Stores the leader epochs from which on partitions of a topic are mirrored again.
    """

    def __init__(
        self,
        node: ReplicaNode,
        node_id: int,
        brokers: TargetBrokers,
        remember: Callable[[Mapping[TopicPartition, EpochFloor]], None],
        *,
        step_s: float = STEP_S,
    ) -> None:
        self._node = node
        self._node_id = node_id
        self._brokers = brokers
        self._remember = remember
        self._step_s = step_s

    def is_due(self, partition: TopicPartition) -> bool:
        """Return whether brokers have a partition that klamm does not lead as one that it mirrors."""
        state = state_of(self._node, partition)
        return state is not None and state.replicas != (self._node_id,) and not self._is_safe(state)

    def is_alone(self, partition: TopicPartition) -> bool:
        """Return whether klamm is the only in-sync replica: no broker leads the partition, and none can be elected."""
        state = state_of(self._node, partition)
        return state is not None and state.isr == (self._node_id,) and not state.elr

    def check_metadata(self, partitions: Collection[TopicPartition]) -> None:
        """Check what the target's metadata show of partitions that are due. Nothing is requested.

        Raises:
            PromotionWaitsError: One cannot be taken back yet.
        """
        for partition in partitions:
            state = self._state(partition)
            if state.leader == NO_LEADER:
                raise PromotionWaitsError(f"{partition.name} has no leader on the target")
            if state.leader == self._node_id:
                if state.isr == (self._node_id,) and state.elr:
                    raise PromotionWaitsError(f"{partition.name}: {_ELIGIBLE}")
            elif late := set(state.replicas) - set(state.isr) - {self._node_id}:
                raise PromotionWaitsError(f"replicas {listed(late)} of {partition.name} are not in sync")

    def take_back(self, ends: Mapping[TopicPartition, int]) -> None:
        """Let klamm lead all partitions again. Those that it leads already stay as they are.

        Args:
            ends: Log end at the promotion of each partition of a remote topic.

        Raises:
            DemotionDeniedError: One has other records than it had at the promotion. All stay with the brokers.
            PromotionError: klamm cannot lead them now. Repeating the call is safe.
            KafkaApiError, ConnectionError, TimeoutError: The target rejects a request, or does not respond.
            MembershipError: klamm is no longer a broker of the target.
        """
        due = {partition: end for partition, end in ends.items() if self.is_due(partition)}
        self.check_metadata(due)
        if shared := {partition: end for partition, end in due.items() if not self.is_alone(partition)}:
            self._brokers.refresh(sorted({partition.topic for partition in shared}))
            try:
                self._check(shared)
                self._join(shared)
                self._lead(shared)
                self._be_alone(shared)
            except DemotionDeniedError:
                self.give_back(shared)
                raise
            finally:
                self._node.admit(())
        self.release(due)
        self._wait(due, self._is_safe, "the reassignment to the brokers does not begin")

    def release(self, ends: Mapping[TopicPartition, int]) -> None:
        """Let the reassignment to the brokers begin, and store the leader epochs of klamm before, where they are due.

        Partitions whose replicas are beyond the log end of the promotion were mirrored on already, and their
        reassignment was cancelled: an epoch was stored then.

        Args:
            ends: Log end at the promotion of each remote partition. -1: klamm did not hand it over.

        Raises:
            PromotionError: The log ends of the replicas are not known.
        """
        floors = {}
        for partition, end in ends.items():
            if end != UNKNOWN and self.is_alone(partition) and self.is_due(partition):
                epoch = self._state(partition).leader_epoch
                if max(self._replica_ends(partition).values()) == end:
                    floors[partition] = EpochFloor(end, epoch)
        if floors:
            self._remember(floors)
        self.give_back(ends)

    def _replica_ends(self, partition: TopicPartition) -> Mapping[int, int]:
        """Return the log ends of the live replicas of a partition that klamm leads.

        Raises:
            PromotionError: Not all of them fetch.
        """
        leader = self._node.partition(*partition)
        if leader is None or self._state(partition).leader != self._node_id:
            raise PromotionError(f"klamm does not lead {partition.name} at present")
        self._node.wait_for(lambda: _all_fetch(leader), self._step_s)
        ends = {node: own.fetch_offset for node, own in self._node.call(leader.followers.copy).items()}
        if not ends or not self._node.call(_all_fetch, leader):
            raise PromotionError(f"not all replicas of {leader.name} fetch from klamm")
        return ends

    def give_back(self, partitions: Collection[TopicPartition]) -> None:
        """Let the other replicas keep partitions without klamm. If klamm alone is in sync, this stays in progress."""
        others = {}
        for partition in partitions:
            state = state_of(self._node, partition)
            if state is not None and self._node_id in state.replicas and self._node_id not in state.removing:
                others[partition] = [node for node in state.replicas if node != self._node_id]
        if left := {partition: nodes for partition, nodes in others.items() if nodes}:
            self._brokers.refresh(sorted({partition.topic for partition in left}))
            self._brokers.reassign(left)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _check(self, ends: Mapping[TopicPartition, int]) -> None:
        led_by_brokers = [each for each in ends if self._state(each).leader != self._node_id]
        for partition, end in self._brokers.log_ends(led_by_brokers).items():
            if end != ends[partition]:
                raise DemotionDeniedError(_written(partition, end, ends[partition]))

    def _join(self, ends: Mapping[TopicPartition, int]) -> None:
        outside = {
            each: (self._node_id, *state.replicas)
            for each in ends
            if self._node_id not in (state := self._state(each)).replicas
        }
        if outside:
            self._node.admit({partition.topic for partition in ends})
            self._wait_for_image(self._is_admitted, "the controller still places no partitions on klamm")
            self._brokers.reassign(outside)
            self._wait(
                outside, lambda state: self._node_id in state.replicas, "klamm does not become one of its replicas"
            )
            self._node.admit(())  # at once: the target may place other partitions on klamm
        deadline = time.monotonic() + self._step_s
        while left := [each for each in ends if self._node_id not in self._state(each).isr]:
            if time.monotonic() > deadline:
                raise PromotionError(f"klamm does not become an in-sync replica of {left[0].name}")
            self._fetch({each: ends[each] for each in left})
            time.sleep(_FETCH_EVERY_S)

    def _fetch(self, ends: Mapping[TopicPartition, int]) -> None:
        """Fetch from the leaders at the log ends.

        Raises:
            DemotionDeniedError: A leader has records behind one.
        """
        keys = {self._key(partition): partition for partition in ends}
        fetches = {
            key: ReplicaFetch((state := self._state(partition)).leader, state.leader_epoch, ends[partition])
            for key, partition in keys.items()
        }
        for key, answer in self._brokers.fetch_as_replica(fetches, member_of(self._node).broker_epoch).items():
            partition = keys[key]
            if answer.records or answer.high_watermark > ends[partition]:
                raise DemotionDeniedError(_written(partition, None, ends[partition]))
            if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise DemotionDeniedError(f"the log of {partition.name} does not reach offset {ends[partition]}")
            if answer.error_code:
                raise PromotionError(f"{partition.name} cannot be fetched: {error_name(answer.error_code)}")

    def _lead(self, ends: Mapping[TopicPartition, int]) -> None:
        if others := [each for each in ends if self._state(each).leader != self._node_id]:
            self._brokers.elect_preferred(others)
            self._wait(others, lambda state: state.leader == self._node_id, "klamm is not elected")

    def _be_alone(self, ends: Mapping[TopicPartition, int]) -> None:
        for partition, end in ends.items():
            for node_id, replica_end in self._replica_ends(partition).items():
                if replica_end != end:
                    of_replica = f"replica {node_id} of {partition.name}"
                    raise DemotionDeniedError(_written(partition, replica_end, end, of_replica))
        self._shrink_isr([each for each in ends if self._state(each).isr != (self._node_id,)])
        self._wait(ends, lambda state: state.isr == (self._node_id,), "klamm is not the only in-sync replica")
        if eligible := [each for each in ends if self._state(each).elr]:
            raise PromotionError(f"{eligible[0].name}: {_ELIGIBLE}")

    def _shrink_isr(self, partitions: Sequence[TopicPartition]) -> None:
        if not partitions:
            return
        member = member_of(self._node)
        changes = {
            self._key(each): IsrChange(
                leader_epoch=(state := self._state(each)).leader_epoch,
                partition_epoch=state.partition_epoch,
                isr={self._node_id: member.broker_epoch},
            )
            for each in partitions
        }
        for outcome in member.alter_partitions(changes).values():
            if isinstance(outcome, KafkaApiError):
                raise PromotionError(f"the controller does not make klamm the only in-sync replica: {outcome}")

    # --- metadata of the target ---------------------------------------------------------------------------------------

    @property
    def _image(self) -> ClusterImage:
        return member_of(self._node).observer.image

    def _is_admitted(self, image: ClusterImage) -> bool:
        klamm = image.brokers.get(self._node_id)
        return klamm is not None and not klamm.cordoned_log_dirs

    def _is_safe(self, state: PartitionImage) -> bool:
        """Return whether klamm mirrors a partition, also while it is fenced and so no broker leads it."""
        return state.isr == (self._node_id,) and not state.elr and self._node_id in state.removing

    def _key(self, partition: TopicPartition) -> tuple[UUID, int]:
        leader = self._node.partition(*partition)
        if leader is None:
            raise PromotionError(f"{partition.name} was deleted on the target")
        return leader.topic_id, partition.partition

    def _state(self, partition: TopicPartition) -> PartitionImage:
        state = self._image.partition(*self._key(partition))
        if state is None:
            raise PromotionError(f"{partition.name} was deleted on the target")
        return state

    def _wait(
        self, partitions: Collection[TopicPartition], condition: Callable[[PartitionImage], bool], reason: str
    ) -> None:
        """Wait until the metadata show a condition for all partitions.

        Raises:
            PromotionError: They do not, for this reason.
        """
        keys = {self._key(each): each.name for each in partitions}

        def is_met(image: ClusterImage) -> bool:
            return all((state := image.partition(*key)) is not None and condition(state) for key in keys)

        self._wait_for_image(is_met, f"{next(iter(keys.values()), '')}: {reason}")

    def _wait_for_image(self, condition: Callable[[ClusterImage], bool], reason: str) -> None:
        try:
            member_of(self._node).observer.wait_for(condition, self._step_s)
        except TimeoutError as error:
            raise PromotionError(reason) from error


def _all_fetch(leader: LeaderPartition) -> bool:
    """Return whether all live replicas fetch from klamm, which leads the partition."""
    return leader.leadership is not None and leader.leadership.live <= leader.followers.keys()


def _written(partition: TopicPartition, end: int | None, promoted_end: int, of_replica: str = "") -> str:
    where = "has records after offset" if end is None else f"ends at offset {end}, not at"
    return (
        f"{of_replica or partition.name} {where} {promoted_end}, where klamm handed it over: records or markers of "
        "aborted transactions were written to it. Promote it again, or delete the remote topic to mirror it again"
    )
