"""Start offsets of partitions.

=========================================  ===========================================================================
Stored source offset and remote topic      Start
=========================================  ===========================================================================
offset stored, same (or unknown) topic id  Resume after the stored offset.
offset stored, other topic id              The topic was recreated: STOPPED, or from the earliest source offset with
                                           ``klamm.on.source.loss=continue``.
no offset, remote partition empty          ``auto.offset.reset``; the offset is stored before any record is sent.
no offset, ``auto.offset.reset=none``      STOPPED.
no offset, remote partition has records    STOPPED: the offsets may be lost, and records would be duplicated. If other
                                           flows write to it, too: ``auto.offset.reset``.
no leader on the source or the target      Not started; retried later with the reason.
=========================================  ===========================================================================
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from klamm.clock import wall_clock_ms
from klamm.kafka_client.data import cluster as clusters
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.copy.fetcher import ON_LOSS_KEY
from klamm.mirror.copy.partition import UNKNOWN_EPOCH, PartitionCopy, stop_and_log
from klamm.mirror.records import source_offsets
from klamm.mirror.records.source_offsets import SourceOffset
from klamm.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from klamm.kafka_client.data.cluster import Cluster
    from klamm.mirror.copy.partition import PartitionId
    from klamm.mirror.copy.settings import CopySettings
    from klamm.mirror.copy.source_offset_store import SourceOffsetStore, StoredSourceOffsets
    from klamm.mirror.copy.transactions import ShardTransactions
    from klamm.protocol.types import PartitionTuple

logger = logging.getLogger(__name__)

_PLAN_ATTEMPTS: Final = 5


class Start:
    """Search for the start offsets of some partitions. Used once."""

    def __init__(
        self,
        settings: CopySettings,
        source: Cluster,
        target: Cluster,
        store: SourceOffsetStore,
        transactions: ShardTransactions | None = None,
    ) -> None:
        self._settings = settings
        self._source = source
        self._target = target
        self._store = store
        self._transactions = transactions
        self.reasons: dict[PartitionId, str] = {}
        """Reasons why partitions could not be started yet."""

    def copies(self, partitions: Sequence[PartitionId]) -> list[PartitionCopy]:
        """Return the copies of all partitions that can start. Some of them may be STOPPED.

        A partition without a stored source offset starts where ``auto.offset.reset`` says. That offset is stored before
        any record is sent: otherwise, after a crash, the first records would look like records of unknown origin.

        Raises:
            ConnectionLostError: A cluster is unavailable.
            TransactionLostError: Another process writes the same shard.
        """
        self._source.refresh(sorted({p.topic for p in partitions}))
        self._target.refresh(sorted({p.remote_topic for p in partitions}))
        ready = [partition for partition in partitions if self._has_leaders(partition)]
        if not ready:
            return []
        stored = self._read_source_offsets()
        fresh = [partition for partition in ready if _key(partition) not in stored.offsets]
        again = [partition for partition in ready if partition not in fresh and self._is_another(partition, stored)]
        going_on = [partition for partition in ready if partition not in fresh and partition not in again]
        self._remember({}, [partition for partition in going_on if _key(partition) not in stored.topic_ids])
        out = [self._resumed(partition, stored) for partition in going_on]
        if self._settings.continue_after_loss:
            out += self._from_the_beginning(again)
        else:
            out += [self._stopped(self._resumed(partition, stored), _created_again(partition)) for partition in again]
        return out + self._first_time(fresh)

    def _read_source_offsets(self) -> StoredSourceOffsets:
        """Return the stored source offsets. With transactions, fence all other writers of the shard first."""
        if self._transactions is None:
            return self._store.read()
        for _ in range(_PLAN_ATTEMPTS):
            self._transactions.fence()
            # A predecessor with another number of shards uses other transactional ids. Its plan is read only after our
            # own id is fenced, so in any order at least one of the two processes sees the plan of the other.
            stored = self._store.read()
            if self._transactions.is_planned(stored.shard_plan):
                return stored
            self._transactions.take_over(stored.shard_plan)
        raise ConnectionLostError("another process mirrors the same flow with another number of shards")

    def _has_leaders(self, partition_id: PartitionId) -> bool:
        if self._source.leader(partition_id.topic, partition_id.partition) is None:
            self.reasons[partition_id] = f"{partition_id.topic}-{partition_id.partition} has no leader on the source"
        elif self._target.leader(partition_id.remote_topic, partition_id.partition) is None:
            self.reasons[partition_id] = (
                f"{partition_id.remote_topic}-{partition_id.partition} does not exist on the target yet, "
                "or has no leader"
            )
        else:
            return True
        return False

    def _is_another(self, partition_id: PartitionId, stored: StoredSourceOffsets) -> bool:
        remembered = stored.topic_ids.get(_key(partition_id))
        now = self._source.topic_id(partition_id.topic)
        return remembered is not None and now not in (ZERO_UUID, remembered)

    def _stale_source(self, partition_id: PartitionId, stored: StoredSourceOffsets) -> str:
        """Return why the source's metadata are older than the records that were mirrored. Empty: they are not.

        A broker with stale metadata names a former leader, whose log may end before the mirrored records. The epoch of
        a later leader is never lower, also after an unclean election.
        """
        key = _key(partition_id)
        epoch, mirrored = self._source.leader_epoch(*key), stored.leader_epochs.get(key, UNKNOWN_EPOCH)
        is_same_topic = stored.topic_ids.get(key) == self._source.topic_id(partition_id.topic)
        if not is_same_topic or not 0 <= epoch < mirrored:
            return ""
        return (
            f"the source names leader epoch {epoch} of {key[0]}-{key[1]}, but records of leader epoch {mirrored} were "
            "mirrored: a broker of the source has stale metadata. If this reason stays, the source was restored to an "
            f"earlier state. Then delete {partition_id.remote_topic} to mirror it again"
        )

    @staticmethod
    def _resumed(partition_id: PartitionId, stored: StoredSourceOffsets) -> PartitionCopy:
        offset = source_offsets.resume_offset(stored.offsets[_key(partition_id)])
        leader_epoch = stored.leader_epochs.get(_key(partition_id), -1)
        return PartitionCopy(partition_id, start_offset=offset, committed=True, leader_epoch=leader_epoch)

    def _stopped(self, copy: PartitionCopy, reason: str) -> PartitionCopy:
        stop_and_log(copy, self._settings.flow, reason)
        return copy

    def _from_the_beginning(self, partitions: Sequence[PartitionId]) -> list[PartitionCopy]:
        """Copy recreated topics from their beginning, after the records of the deleted topics."""
        begin = self._source_offsets(partitions, clusters.EARLIEST)
        for topic in sorted({partition_id.topic for partition_id in begin}):
            logger.warning(
                "%s: %s was deleted and created again on the source; it is mirrored from its beginning",
                self._settings.flow, topic,
            )  # fmt: skip
        return self._begun(begin)

    def _first_time(self, partitions: Sequence[PartitionId]) -> list[PartitionCopy]:
        if not partitions:
            return []
        remote = [(p.remote_topic, p.partition) for p in partitions]
        first = self._target.list_offsets(remote, clusters.EARLIEST)
        end = self._target.list_offsets(remote, clusters.LATEST)
        begin = self._reset_offsets(partitions)
        stopped = []
        for partition_id in list(begin):
            key = (partition_id.remote_topic, partition_id.partition)
            if key not in first or key not in end:
                self.reasons[partition_id] = "the offsets of its leader are not known yet"
                del begin[partition_id]
            elif end[key] > first[key] and partition_id.topic not in self._settings.shared_topics:
                copy = PartitionCopy(partition_id, start_offset=begin.pop(partition_id), committed=True)
                stopped.append(self._stopped(copy, self._unknown_origin(partition_id)))
            elif self._settings.auto_offset_reset == "none":
                copy = PartitionCopy(partition_id, start_offset=begin.pop(partition_id), committed=True)
                stopped.append(self._stopped(copy, _without_reset(partition_id)))
            elif end[key] > first[key]:
                logger.warning(
                    "%s: %s-%d starts without a source offset: the records that it holds are taken for those of "
                    "other flows that select the topic",
                    self._settings.flow, *key,
                )  # fmt: skip
        return stopped + self._begun(begin)

    def _reset_offsets(self, partitions: Sequence[PartitionId]) -> dict[PartitionId, int]:
        """Return the offsets that ``auto.offset.reset`` names. ``none`` names none, so any will do.

        Partitions for which the source does not answer every request are missing.
        """
        settings = self._settings
        if settings.auto_offset_reset != "by_duration":
            is_latest = settings.auto_offset_reset == "latest"
            return self._source_offsets(partitions, clusters.LATEST if is_latest else clusters.EARLIEST)
        begin = self._source_offsets(partitions, wall_clock_ms() - settings.reset_duration_ms)
        older = [partition_id for partition_id, offset in begin.items() if offset < 0]
        begin |= self._source_offsets(older, clusters.LATEST) if older else {}
        return {partition_id: offset for partition_id, offset in begin.items() if offset >= 0}

    def _source_offsets(self, partitions: Sequence[PartitionId], where: int) -> dict[PartitionId, int]:
        # As a consumer does. At the high watermark, the copy would skip the earlier records of transactions that are
        # still open and will be committed.
        offsets = self._source.list_offsets(
            [_key(partition_id) for partition_id in partitions], where, read_committed=self._settings.read_committed
        )
        for partition_id in partitions:
            if _key(partition_id) not in offsets:
                self.reasons[partition_id] = "the offsets of its leader are not known yet"
        return {p: offsets[_key(p)] for p in partitions if _key(p) in offsets}

    def _begun(self, begin: Mapping[PartitionId, int]) -> list[PartitionCopy]:
        self._remember(
            {_key(partition_id): SourceOffset(offset) for partition_id, offset in begin.items()}, list(begin)
        )
        return [PartitionCopy(partition_id, start_offset=at, committed=True) for partition_id, at in begin.items()]

    def _remember(self, begin: Mapping[PartitionTuple, SourceOffset], partitions: Sequence[PartitionId]) -> None:
        """Store start offsets, and the topic ids to which partitions belong."""
        ids: dict[PartitionTuple, UUID] = {_key(p): self._source.topic_id(p.topic) for p in partitions}
        ids = {key: topic_id for key, topic_id in ids.items() if topic_id != ZERO_UUID}
        if self._transactions is None:
            self._store.write(begin, ids)
        else:
            self._transactions.write(self._store.records(begin, ids))

    def _unknown_origin(self, partition_id: PartitionId) -> str:
        return (
            f"{partition_id.remote_topic}-{partition_id.partition} holds records, but "
            f"{self._settings.source_offsets_topic} has no source offset for it: copying would duplicate records. "
            "Delete the remote topic. If they are no copies, stop, reset (klamm mirror reset) and resume the topic. If "
            "a connector of a Connect cluster wrote them, name it by klamm.source.connector.name"
        )


def _created_again(partition_id: PartitionId) -> str:
    return (
        f"{partition_id.topic} was deleted and created again on the source. {ON_LOSS_KEY}=continue mirrors it from its "
        f"beginning, after the records that {partition_id.remote_topic} holds"
    )


def _without_reset(partition_id: PartitionId) -> str:
    return (
        f"{partition_id.topic}-{partition_id.partition} was never mirrored, and auto.offset.reset=none names no offset "
        "to start at. Set it to earliest, latest or by_duration"
    )


def _key(partition_id: PartitionId) -> PartitionTuple:
    return partition_id.topic, partition_id.partition
