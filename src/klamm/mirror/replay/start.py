"""Start of partitions that keep their offsets: at the log end of the target.

==============================================  ======================================================================
Target partition                                Start
==============================================  ======================================================================
empty                                           Offset 0. If the source begins later, fillers up to its log start are
                                                written first and then deleted, so that both logs start there.
only fillers so far (no stored source offset,   The fillers are continued.
or the remote topic was created again)
records of this flow, equal to the source's     Its log end.
a record of another producer, or one that       STOPPED, with the offset.
differs from the source's at the same offset
longer than the source                          STOPPED.
written by a newer mirror of the flow           STOPPED.
==============================================  ======================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from klamm.clock import wall_clock_ms
from klamm.kafka_client.data import cluster as clusters
from klamm.kafka_client.data.batches import ProducerStamp
from klamm.kafka_client.data.transactions import TransactionManager
from klamm.kafka_client.errors import ConnectionLostError, TransactionLostError
from klamm.kafka_client.internal_topic import read_partition
from klamm.mirror.copy.equal_offsets import MAX_EPOCH, ReplaySettings
from klamm.mirror.copy.partition import PartitionCopy
from klamm.mirror.copy.start import Start
from klamm.mirror.records.source_offsets import resume_offset
from klamm.mirror.replay.partition import ReplayCopy
from klamm.mirror.replay.target_log import (
    NextSequence,
    differing_offset,
    foreign_offset,
    producer_state,
    topics_with_log_append_time,
)
from klamm.protocol.errors import KafkaApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.kafka_client.data.cluster import Cluster
    from klamm.mirror.copy.partition import PartitionId
    from klamm.mirror.copy.settings import CopySettings
    from klamm.mirror.copy.source_offset_store import SourceOffsetStore, StoredSourceOffsets
    from klamm.protocol.types import PartitionTuple

_TIMEOUT_MS: Final = 60_000
NEWER_MIRROR: Final = (
    "a newer mirror of this flow writes this partition. Stop one of the two; restart this one to take over again"
)


@dataclass(slots=True)
class Incarnation:
    """Writer of a partition in this process. It outlives the copies that are discarded after failures."""

    stamp: ProducerStamp | None = None
    """Latest producer id and epoch of the transactional id. None: not requested yet."""
    is_in_doubt: bool = False
    """Whether the next copy needs a new epoch."""
    max_bytes: int = 0x7FFFFFFF
    """Size in bytes above which batches are split, because the target rejected a larger one."""


@dataclass(slots=True)
class Incarnations:
    """Writers of this process by partition."""

    by_partition: dict[PartitionId, Incarnation] = field(default_factory=dict)

    def of(self, partition_id: PartitionId) -> Incarnation:
        """Return the writer of a partition."""
        return self.by_partition.setdefault(partition_id, Incarnation())

    def note(self, copy: ReplayCopy) -> None:
        """Keep what the next copy has to know of one that is discarded."""
        incarnation = self.of(copy.partition_id)
        incarnation.is_in_doubt |= copy.is_in_doubt
        incarnation.max_bytes = min(incarnation.max_bytes, copy.max_bytes)


class _StoppedError(Exception):
    """The partition must not be written before an operator has decided."""


class ReplayStart(Start):
    """Search for the start offsets of partitions that keep their offsets. Used once."""

    def __init__(
        self,
        settings: CopySettings,
        source: Cluster,
        target: Cluster,
        store: SourceOffsetStore,
        *,
        replay: ReplaySettings,
        incarnations: Incarnations,
    ) -> None:
        super().__init__(settings, source, target, store)
        self._replay = replay
        self._incarnations = incarnations
        self._log_append_time: frozenset[str] = frozenset()
        """Remote topics whose broker replaces timestamps."""

    def copies(self, partitions: Sequence[PartitionId]) -> list[PartitionCopy]:
        """Return the copies of all partitions that can start. Some of them may be STOPPED.

        Raises:
            ConnectionLostError: A cluster is unavailable.
        """
        self._source.refresh(sorted({p.topic for p in partitions}))
        self._target.refresh(sorted({p.remote_topic for p in partitions}))
        ready = [partition for partition in partitions if self._has_leaders(partition)]
        if not ready:
            return []
        stored = self._read_source_offsets()
        remote = sorted({partition_id.remote_topic for partition_id in ready})
        via = (ready[0].remote_topic, ready[0].partition)
        self._log_append_time = topics_with_log_append_time(self._target, remote, via)
        copies: list[PartitionCopy] = []
        opened: list[ReplayCopy] = []
        for partition_id in ready:
            try:
                opened.append(self._open(partition_id, stored))
            except _StoppedError as error:
                stopped = PartitionCopy(partition_id, start_offset=0, committed=True)
                copies.append(self._stopped(stopped, str(error)))
            except (ConnectionLostError, KafkaApiError, TransactionLostError) as error:
                self.reasons[partition_id] = str(error)
        self._remember({}, [copy.partition_id for copy in opened if copy.is_first_of_topic])
        return [*copies, *opened]

    def _open(self, partition_id: PartitionId, stored: StoredSourceOffsets) -> ReplayCopy:
        """Return the copy of a partition.

        The log end is read after the incarnation is raised, so that any writer that comes later is newer than this one.
        """
        key, remote = partition_id[:2], (partition_id.remote_topic, partition_id.partition)
        if remote[0] in self._log_append_time:
            raise _StoppedError(
                f"message.timestamp.type=LogAppendTime of {remote[0]}: expected CreateTime; the target would replace "
                "the timestamps of the records. Change the config and restart the mirror"
            )
        incarnation = self._incarnations.of(partition_id)
        stamp = incarnation.stamp
        is_unproven = stamp is None or incarnation.is_in_doubt
        if stamp is None or incarnation.is_in_doubt:
            stamp = self._raise_epoch(partition_id, incarnation)
        producer_id = self._replay.producer_id(partition_id)
        target = self._bounds(self._target, remote)
        source = self._bounds(self._source, key)
        state = producer_state(self._target, remote, producer_id) or NextSequence(0, 0)
        if state.producer_epoch > stamp.producer_epoch and not is_unproven:
            raise _StoppedError(NEWER_MIRROR)
        while is_unproven and state.producer_epoch >= stamp.producer_epoch:
            if state.producer_epoch >= MAX_EPOCH:
                raise _StoppedError(
                    f"the producer epochs of {remote[0]}-{remote[1]} are used up. Delete the remote topic to mirror it "
                    "again"
                )
            # The coordinator forgets a transactional id after transactional.id.expiration.ms and begins at 0 again.
            stamp = self._raise_epoch(partition_id, incarnation)
        incarnation.is_in_doubt = False
        self._check_topic_id(partition_id, stored, is_empty=not target.stop)
        self._check_records(partition_id, source, target, producer_id)
        copy = ReplayCopy(
            PartitionCopy(partition_id, start_offset=target.stop, committed=False),
            producer=ProducerStamp(producer_id, state.producer_epoch),
            next_sequence=state.next_sequence,
            incarnation=stamp.producer_epoch,
            is_unproven=is_unproven,
            max_bytes=incarnation.max_bytes,
        )
        copy.is_first_of_topic = key not in stored.topic_ids or not target.stop
        if _needs_fillers(source, target, stored.offsets.get(key)):
            copy.begin_with_fillers(source.start, self._first_timestamp(key, source))
        return copy

    def _raise_epoch(self, partition_id: PartitionId, incarnation: Incarnation) -> ProducerStamp:
        """Raise the epoch of the partition's transactional id.

        Raises:
            _StoppedError: Another process has raised it since this one did.
        """
        transactional_id = self._replay.transactional_id(partition_id)
        coordinator = TransactionManager(self._target, transactional_id)
        try:
            stamp = coordinator.init(timeout_ms=_TIMEOUT_MS, current=incarnation.stamp)
        except TransactionLostError as error:
            if incarnation.stamp is None:
                raise
            raise _StoppedError(NEWER_MIRROR) from error
        incarnation.stamp = stamp
        return stamp

    def _bounds(self, cluster: Cluster, partition: PartitionTuple) -> range:
        first = cluster.list_offsets([partition], clusters.EARLIEST).get(partition)
        end = cluster.list_offsets([partition], clusters.LATEST).get(partition)
        if first is None or end is None:
            raise ConnectionLostError(f"the offsets of {partition[0]}-{partition[1]} are not known yet")
        return range(first, end)

    def _check_topic_id(self, partition_id: PartitionId, stored: StoredSourceOffsets, *, is_empty: bool) -> None:
        if not is_empty and self._is_another(partition_id, stored):
            raise _StoppedError(
                f"{partition_id.topic} was deleted and created again on the source. Delete {partition_id.remote_topic} "
                "to mirror it again from its beginning"
            )

    def _check_records(self, partition_id: PartitionId, source: range, target: range, producer_id: int) -> None:
        """Check that the target holds what this flow wrote, and the same records as the source."""
        remote = (partition_id.remote_topic, partition_id.partition)
        if target.stop > source.stop:
            raise _StoppedError(
                f"{remote[0]}-{remote[1]} ends at offset {target.stop}, but the source ends at offset {source.stop}: "
                "the source lost records, or another producer writes the remote topic"
            )
        foreign = foreign_offset(self._target, remote, target, producer_id)
        if foreign is not None:
            raise _StoppedError(
                f"offset {foreign} of {remote[0]}-{remote[1]} was written by another producer. With equal offsets only "
                "this flow may write the remote topic. Delete the remote topic to mirror it again, or end the flow"
            )
        differing = differing_offset((self._source, partition_id[:2], source.start), (self._target, remote, target))
        if differing is not None:
            raise _StoppedError(
                f"offset {differing} of {remote[0]}-{remote[1]} holds another record than the source. Delete the "
                "remote topic to mirror it again"
            )

    def _first_timestamp(self, partition: PartitionTuple, source: range) -> int:
        """Return the timestamp of the first record of the source, or the current time if it has none."""
        for records, _ in read_partition(self._source, partition, source):
            if records:
                return records[0].timestamp
        return wall_clock_ms()


def _needs_fillers(source: range, target: range, last_mirrored: int | None) -> bool:
    """Return whether the beginning of the target is to be filled up to the log start of the source.

    If records were mirrored up to the end of the target, and the source has purged the records after them since,
    records are lost. That is decided when they are fetched.

    Args:
        source: Offsets of the source partition.
        target: Offsets of the remote partition.
        last_mirrored: Stored source offset. None: nothing was mirrored yet.
    """
    if target.start >= source.start or target.stop > source.start:
        return False
    # A remote topic that is shorter than what was mirrored was deleted and created again.
    return last_mirrored is None or resume_offset(last_mirrored) > target.stop
