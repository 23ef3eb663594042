"""Reading of source partitions for replicas, and its start: where the most advanced replica of each ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.errors import ConnectionLostError
from klamm.kraft.errors import MembershipError
from klamm.mirror.copy.partition import PartitionCopy, PartitionId
from klamm.mirror.copy.start import Start
from klamm.mirror.progress.partition_progress import NO_REMOTE_TOPIC
from klamm.mirror.records.source_offsets import SourceOffset
from klamm.mirror.replica.leader_partition import KEEP
from klamm.mirror.replica.window import Window, read_chunk
from klamm.properties import SettingsError
from klamm.protocol.errors import CorruptBatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.kafka_client.connection.buffers import FrameBuffer
    from klamm.kafka_client.data.cluster import Cluster
    from klamm.mirror.copy.settings import CopySettings
    from klamm.mirror.copy.source_offset_store import SourceOffsetStore, StoredSourceOffsets
    from klamm.mirror.records.source_offsets import StoredPromotion
    from klamm.mirror.replica.leader_partition import LeaderPartition
    from klamm.mirror.replica.node import ReplicaNode
    from klamm.protocol.types import AbortedTransaction, PartitionTuple

_REFRESH_S: Final = 1.0


class ReplicaCopy(PartitionCopy):
    """Reading of one source partition into one window. Confined to the copier's thread.

    ``acked_offset`` is the high watermark: everything before it is on all live replicas.
    """

    __slots__ = ("_active", "_fed_bytes", "_node", "leader", "window")

    def __init__(
        self,
        partition_id: PartitionId,
        leader: LeaderPartition,
        window: Window,
        node: ReplicaNode,
        active: dict[PartitionTuple, PartitionCopy],
    ) -> None:
        """Start at the end of a window.

        Args:
            partition_id: Source partition and remote topic.
            leader: Leader of the remote partition.
            window: Window to extend.
            node: Broker that owns both.
            active: Partitions with batches in memory, by source topic and partition number.
        """
        super().__init__(partition_id, start_offset=window.end, committed=False, leader_epoch=window.source_epoch)
        self.leader = leader
        self.window = window
        self._node = node
        self._active = active
        self._fed_bytes = window.dropped_bytes

    def take(
        self,
        records: memoryview,
        memory: FrameBuffer,
        aborted: Sequence[AbortedTransaction] | None,
        *,
        join_up_to: int = 0,
        is_far: bool = False,
    ) -> None:
        """Pass the batches of a fetch response to the leader.

        Raises:
            CorruptBatchError: The first batch is damaged. A damaged batch after others is fetched again.
        """
        chunk, defect = read_chunk(records, self.fetch_offset, self.leader.floors)
        if chunk is None and defect:
            raise CorruptBatchError(defect)
        if chunk is not None:
            self.fetch_offset = chunk.next_offset
            self._epochs.begin(chunk.next_offset - 1, chunk.source_epoch)
            self._fed_bytes += len(chunk.data)
            self.bytes_copied += len(chunk.data)
            self.records_copied += chunk.record_count
            self.last_timestamp = max(self.last_timestamp, chunk.max_timestamp)
            self._active[self.partition_id[:2]] = self
        if chunk is not None or self.end_offset > self.leader.log_end or self.leader.is_disputed:
            self._node.post(self.leader.extend, self.window, chunk, self.end_offset, time.monotonic())

    def refresh(self) -> None:
        """Take over what the replicas have fetched."""
        self.pending_bytes = self._fed_bytes - self.window.dropped_bytes
        self.acked_offset = max(self.acked_offset, min(self.leader.high_watermark, self.fetch_offset))
        self._epochs.forget_before(self.acked_offset)

    @property
    def is_settled(self) -> bool:
        """Return True: a loss of the source halts the partition at once."""
        return True

    def skip_to(self, offset: int) -> None:
        """Let the replicas start again at the log start of the source, because records were purged there."""
        self._node.post(self.leader.begin, offset, self.leader.log_end)
        self.retry_at = time.monotonic() + _REFRESH_S

    def common_end(self, leader_epoch: int, end_offset: int) -> SourceOffset:
        """Return what the source has: each replica compares it with its own leader epochs."""
        return SourceOffset(end_offset, leader_epoch)

    def can_rewind(self, source_offset: SourceOffset) -> bool:
        """Return whether the replicas may be truncated to what they have in common with the source.

        The leader epochs of a partition that was taken back are not those of the source, so its end is not known.
        """
        return self.leader.may_lose and source_offset.leader_epoch >= 0 and not self.leader.floors

    def rewind(self, source_offset: SourceOffset) -> None:
        """Let the replicas truncate their logs at an earlier offset, where the source differs."""
        common = source_offset.leader_epoch, source_offset.next_offset
        self._node.post(self.leader.truncate, self.window, self.last_fetched_epoch, common, time.monotonic())
        self.retry_at = time.monotonic() + _REFRESH_S

    def stop(self, reason: str) -> None:
        """Change the state to STOPPED, and let the leader halt."""
        self._node.post(self.leader.halt, reason)
        super().stop(reason)


class ReplicaStart(Start):
    """Start of partitions that klamm leads: where their most advanced replica ends. Used once."""

    def __init__(
        self,
        settings: CopySettings,
        source: Cluster,
        target: Cluster,
        store: SourceOffsetStore,
        *,
        node: ReplicaNode,
        active: dict[PartitionTuple, PartitionCopy],
    ) -> None:
        super().__init__(settings, source, target, store)
        self._node = node
        self._active = active

    def copies(self, partitions: Sequence[PartitionId]) -> list[PartitionCopy]:
        """Return the copies of all partitions that can start. Some of them may be STOPPED.

        Raises:
            ConnectionLostError: A cluster is unavailable, or klamm cannot be a broker of the target at present.
        """
        try:
            self._node.start()
        except (OSError, MembershipError, SettingsError) as error:
            raise ConnectionLostError(f"klamm cannot join the target as a broker: {error}") from error
        self._source.refresh(sorted({p.topic for p in partitions}))
        ready = [(each, leader) for each in partitions if (leader := self._leader(each)) is not None]
        if not ready:
            return []
        stored = self._read_source_offsets()
        if reason := self._another_cluster(stored):
            return [self._halted(each, leader, reason) for each, leader in ready]
        keys = [partition_id[:2] for partition_id, _ in ready]
        bounds = self._source.log_bounds(keys)
        self._remember({}, [each for each, _ in ready if each[:2] not in stored.topic_ids])
        out: list[PartitionCopy] = []
        for partition_id, leader in ready:
            key: PartitionTuple = partition_id[:2]
            if self._is_another(partition_id, stored):
                reason = (
                    f"{partition_id.topic} was deleted and created again on the source. Nothing is changed on the "
                    f"target. Delete {partition_id.remote_topic} to mirror it again. {KEEP}"
                )
                out.append(self._halted(partition_id, leader, reason))
            elif reason := self._stale_source(partition_id, stored):
                self.reasons[partition_id] = reason
            elif key not in bounds:
                self.reasons[partition_id] = "the offsets of the source are not known yet"
            else:
                promotion = stored.promotions.get(partition_id.topic)
                if (copy := self._open(partition_id, leader, bounds[key], promotion)) is not None:
                    out.append(copy)
        return out

    def _another_cluster(self, stored: StoredSourceOffsets) -> str:
        """Return why no partition may be mirrored: the source is another cluster than before. Store its id if new."""
        cluster_id, alias = self._source.cluster_id, self._settings.source_alias
        if stored.cluster_id is None and cluster_id:
            self._store.write_cluster_id(cluster_id)
        if stored.cluster_id in (None, cluster_id):
            return ""
        return (
            f"{alias} is cluster {cluster_id}, but cluster {stored.cluster_id} was mirrored before. Nothing is changed "
            f"on the target. Correct {alias}.bootstrap.servers, or mirror the other cluster under another alias. "
            f"{KEEP}"
        )

    def _leader(self, partition_id: PartitionId) -> LeaderPartition | None:
        topic, index, remote_topic = partition_id
        leader = self._node.partition(remote_topic, index)
        if leader is None:
            self.reasons[partition_id] = NO_REMOTE_TOPIC
        elif self._source.leader(topic, index) is None:
            self.reasons[partition_id] = f"{topic}-{index} has no leader on the source"
        elif leader.leadership is None:
            self.reasons[partition_id] = f"klamm does not lead {remote_topic}-{index} on the target"
        elif not leader.leadership.is_safe:
            self.reasons[partition_id] = f"{remote_topic}-{index} is not reassigned to brokers of the target yet"
        else:
            return leader
        return None

    def _open(
        self,
        partition_id: PartitionId,
        leader: LeaderPartition,
        bounds: range,
        promotion: StoredPromotion | None,
    ) -> PartitionCopy | None:
        floors = () if promotion is None else promotion.floors_of(leader.topic_id, leader.partition)
        self._node.call(leader.begin, bounds.start, bounds.stop, floors)
        window = self._node.call(leader.open_tail, time.monotonic())
        if leader.halted:
            return self._halted(partition_id, leader, leader.halted)
        if window is None:
            rejected = f"; klamm rejected {self._node.access.rejection}" if self._node.access.rejection else ""
            self.reasons[partition_id] = f"{leader.reason_of_closed_tail}{rejected}"
            return None
        return ReplicaCopy(partition_id, leader, window, self._node, self._active)

    def _halted(self, partition_id: PartitionId, leader: LeaderPartition, reason: str) -> PartitionCopy:
        return self._stopped(ReplicaCopy(partition_id, leader, Window(0), self._node, self._active), reason)
