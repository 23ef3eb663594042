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
longer than the source                          STOPPED; later, if the source's metadata are older than the records
                                                that were mirrored.
written by a newer mirror of the flow           STOPPED.
==============================================  ======================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.clock import wall_clock_ms
from klamm.kafka_client.data.batches import ProducerStamp
from klamm.kafka_client.data.cluster import EARLIEST, LATEST
from klamm.kafka_client.data.transactions import init_all
from klamm.kafka_client.errors import ConnectionLostError, TransactionLostError
from klamm.kafka_client.internal_topic import read_partition
from klamm.lazy_dataclass import dataclass
from klamm.mirror.copy.equal_offsets import MAX_EPOCH, ReplaySettings
from klamm.mirror.copy.partition import UNKNOWN_EPOCH, PartitionCopy
from klamm.mirror.copy.start import Start
from klamm.mirror.records.source_offsets import resume_offset
from klamm.mirror.replay.partition import ReplayCopy
from klamm.mirror.replay.tails import CheckedPartition, TailCheck
from klamm.mirror.replay.target_log import NextSequence, producer_states, topics_with_log_append_time
from klamm.protocol.errors import KafkaApiError, ProtocolError

if TYPE_CHECKING:
    from collections import defaultdict
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

    def note(self, copy: ReplayCopy) -> None:
        """Keep what the next copy has to know of one that is discarded."""
        self.is_in_doubt |= copy.is_in_doubt
        self.max_bytes = min(self.max_bytes, copy.max_bytes)


class _Opening:
    """Partition that is being started, and what is known of it."""

    def __init__(self, partition_id: PartitionId, incarnation: Incarnation) -> None:
        self.partition_id = partition_id
        self.key: PartitionTuple = (partition_id.topic, partition_id.partition)
        self.remote: PartitionTuple = (partition_id.remote_topic, partition_id.partition)
        self.incarnation = incarnation
        self.is_unproven = incarnation.stamp is None or incarnation.is_in_doubt
        """Whether a marker of an earlier writer may still arrive. Then a new incarnation is needed."""
        self.source = self.target = range(0)
        """Offsets on both sides, from the log start to the log end."""
        self.has_bounds = False
        """Whether these offsets were read."""
        self.state = NextSequence(0, 0)
        """State of the partition's producer in the target's log."""
        self.leader_epoch = UNKNOWN_EPOCH
        """Leader epoch of the source batch before the log end of the target, which reveals a truncated source log."""

    @property
    def name(self) -> str:
        """Remote topic and partition number, for messages."""
        return f"{self.remote[0]}-{self.remote[1]}"

    @property
    def epoch(self) -> int:
        """Epoch of the incarnation. -1: none was taken yet."""
        return -1 if self.incarnation.stamp is None else self.incarnation.stamp.producer_epoch


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
        incarnations: defaultdict[PartitionId, Incarnation],
    ) -> None:
        super().__init__(settings, source, target, store)
        self._replay = replay
        self._incarnations = incarnations
        self._log_append_time: frozenset[str] = frozenset()
        """Remote topics whose broker replaces timestamps."""
        self._stops: dict[PartitionId, str] = {}
        """Reasons why partitions must not be written before an operator has decided."""

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
        openings = [_Opening(partition_id, self._incarnations[partition_id]) for partition_id in ready]
        opened = self._open(openings, stored)
        self._remember({}, [copy.partition_id for copy in opened if copy.is_first_of_topic])
        return [
            *(self._stopped_at_end(opening) for opening in openings if opening.partition_id in self._stops),
            *opened,
        ]

    def _stopped_at_end(self, opening: _Opening) -> PartitionCopy:
        """Return a stopped copy that shows the log ends of both sides, as far as they were read."""
        copy = PartitionCopy(opening.partition_id, start_offset=opening.target.stop, committed=True)
        if opening.has_bounds:
            copy.end_offset = opening.source.stop
        return self._stopped(copy, self._stops[opening.partition_id])

    def _open(self, openings: Sequence[_Opening], stored: StoredSourceOffsets) -> list[ReplayCopy]:
        """Return the copies of the partitions that can start. All calls are made for many partitions at a time.

        The log ends are read after the incarnations are raised, so that any writer that comes later is newer than this
        one.
        """
        for opening in openings:
            if opening.remote[0] in self._log_append_time:
                self._stops[opening.partition_id] = (
                    f"message.timestamp.type=LogAppendTime of {opening.remote[0]}: expected CreateTime; the target "
                    "would replace the timestamps of the records. Change the config and restart the mirror"
                )
        openings = self._left(openings)
        self._raise_epochs([opening for opening in openings if opening.is_unproven])
        openings = self._left(openings)
        self._read_bounds(openings)
        openings = self._left(openings)
        self._read_states(openings)
        openings = self._left(openings)
        self._check_ends(openings)
        openings = self._left(openings)
        for opening in openings:
            if opening.target.stop and self._is_another(opening.partition_id, stored):
                self._stops[opening.partition_id] = _created_again(opening.partition_id)
        openings = self._left(openings)
        self._check_records(openings, stored)
        copies = []
        for opening in self._left(openings):
            try:
                copies.append(self._copy(opening, stored))
            except (ConnectionLostError, KafkaApiError, ProtocolError) as error:  # the others start
                self.reasons[opening.partition_id] = str(error)
        return copies

    def _left(self, openings: Sequence[_Opening]) -> list[_Opening]:
        """Return the partitions that neither stopped nor have to wait."""
        gone = self._stops.keys() | self.reasons.keys()
        return [opening for opening in openings if opening.partition_id not in gone]

    def _raise_epochs(self, openings: Sequence[_Opening]) -> None:
        """Take a new incarnation for each partition: raise the epochs of their transactional ids."""
        by_id = {self._replay.transactional_id(opening.partition_id): opening for opening in openings}
        current = {transactional_id: opening.incarnation.stamp for transactional_id, opening in by_id.items()}
        for transactional_id, result in init_all(self._target, current, timeout_ms=_TIMEOUT_MS).items():
            opening = by_id[transactional_id]
            if isinstance(result, ProducerStamp):
                opening.incarnation.stamp = result
                opening.incarnation.is_in_doubt = True  # until the partition has started
            elif isinstance(result, TransactionLostError) and opening.incarnation.stamp is not None:
                self._stops[opening.partition_id] = NEWER_MIRROR
            else:
                self.reasons[opening.partition_id] = str(result)

    def _read_bounds(self, openings: Sequence[_Opening]) -> None:
        """Read the log start and the log end on both sides, the target's first."""
        first = self._target.list_offsets([opening.remote for opening in openings], EARLIEST)
        ends = self._target_ends(openings)
        target = {remote: range(first[remote], ends[remote]) for remote in first.keys() & ends.keys()}
        source = self._source.log_bounds([opening.key for opening in openings])
        for opening in openings:
            if opening.remote in target and opening.key in source:
                opening.target, opening.source = target[opening.remote], source[opening.key]
                opening.has_bounds = True
            else:
                topic, partition = opening.key if opening.remote in target else opening.remote
                self.reasons[opening.partition_id] = f"the offsets of {topic}-{partition} are not known yet"

    def _target_ends(self, openings: Sequence[_Opening]) -> dict[PartitionTuple, int]:
        """Return the log ends of the target, whether all replicas have them or not: producers' states are of there."""
        return self._target.list_offsets([opening.remote for opening in openings], LATEST, unreplicated=True)

    def _read_states(self, openings: Sequence[_Opening]) -> None:
        """Read the state of each partition's producer in the target's log, and raise incarnations above its epoch."""
        wanted = {opening.remote: self._replay.producer_id(opening.partition_id) for opening in openings}
        states = producer_states(self._target, wanted)
        for opening in openings:
            state = states.get(opening.remote, ConnectionLostError("DescribeProducers: no answer"))
            if isinstance(state, ConnectionLostError):
                self.reasons[opening.partition_id] = str(state)
            else:
                opening.state = state
                if not opening.is_unproven and state.producer_epoch > opening.epoch:
                    self._stops[opening.partition_id] = NEWER_MIRROR
        # The coordinator forgets a transactional id after transactional.id.expiration.ms and begins at 0 again.
        while behind := [
            opening
            for opening in self._left(openings)
            if opening.is_unproven and opening.state.producer_epoch >= opening.epoch
        ]:
            for opening in behind:
                if opening.state.producer_epoch >= MAX_EPOCH:
                    self._stops[opening.partition_id] = (
                        f"the producer epochs of {opening.name} are used up. Delete the remote topic to mirror it again"
                    )
            self._raise_epochs(self._left(behind))

    def _check_ends(self, openings: Sequence[_Opening]) -> None:
        """Let those wait whose log end has moved: the state may belong to a later one than the one that was read.

        With the sequence of a later log end, a batch would be appended there, and not at its offset.
        """
        ends = self._target_ends(openings)
        for opening in openings:
            if ends.get(opening.remote) != opening.target.stop:
                self.reasons[opening.partition_id] = f"a request of an earlier mirror moved the end of {opening.name}"

    def _check_records(self, openings: Sequence[_Opening], stored: StoredSourceOffsets) -> None:
        """Check that each target partition holds what this flow wrote, and the same records as the source."""
        check = TailCheck(self._source, self._target)
        checked: dict[PartitionTuple, CheckedPartition] = {}
        for opening in openings:
            is_longer = opening.target.stop > opening.source.stop
            if is_longer and (stale := self._stale_source(opening.partition_id, stored)):
                self.reasons[opening.partition_id] = stale
            elif is_longer:
                self._stops[opening.partition_id] = (
                    f"{opening.name} ends at offset {opening.target.stop}, but the source ends at offset "
                    f"{opening.source.stop}: the source lost records, or another producer writes the remote topic"
                )
            else:
                producer_id = self._replay.producer_id(opening.partition_id)
                checked[opening.remote] = CheckedPartition(
                    opening.key, opening.source.start, opening.target, producer_id
                )
        check.run(checked)
        for opening in self._left(openings):
            if (offset := check.foreign.get(opening.remote)) is not None:
                self._stops[opening.partition_id] = (
                    f"offset {offset} of {opening.name} was written by another producer. With equal offsets only this "
                    "flow may write the remote topic. Delete the remote topic to mirror it again, or end the flow"
                )
            elif (offset := check.differing.get(opening.remote)) is not None:
                self._stops[opening.partition_id] = (
                    f"offset {offset} of {opening.name} holds another record than the source. Delete the remote topic "
                    "to mirror it again"
                )
            elif (reason := check.unread.get(opening.remote)) is not None:
                self.reasons[opening.partition_id] = reason
            else:
                if resume_offset(stored.offsets.get(opening.key, -1)) == opening.target.stop:
                    opening.leader_epoch = stored.leader_epochs.get(opening.key, UNKNOWN_EPOCH)
                if opening.leader_epoch == UNKNOWN_EPOCH:
                    opening.leader_epoch = check.source_epochs.get(opening.remote, UNKNOWN_EPOCH)

    def _copy(self, opening: _Opening, stored: StoredSourceOffsets) -> ReplayCopy:
        partition_id, target = opening.partition_id, opening.target
        copy = ReplayCopy(
            PartitionCopy(partition_id, start_offset=target.stop, committed=False, leader_epoch=opening.leader_epoch),
            producer=ProducerStamp(self._replay.producer_id(partition_id), opening.state.producer_epoch),
            next_sequence=opening.state.next_sequence,
            incarnation=opening.epoch,
            is_unproven=opening.is_unproven,
            max_bytes=opening.incarnation.max_bytes,
        )
        copy.is_first_of_topic = opening.key not in stored.topic_ids or not target.stop
        if _needs_fillers(opening.source, target, stored.offsets.get(opening.key)):
            copy.begin_with_fillers(opening.source.start, self._first_timestamp(opening.key, opening.source))
        opening.incarnation.is_in_doubt = False
        return copy

    def _first_timestamp(self, partition: PartitionTuple, source: range) -> int:
        """Return the timestamp of the first record of the source, or the current time if it has none."""
        for records, _ in read_partition(self._source, partition, source):
            if records:
                return records[0].timestamp
        return wall_clock_ms()


def _created_again(partition_id: PartitionId) -> str:
    return (
        f"{partition_id.topic} was deleted and created again on the source. Delete {partition_id.remote_topic} to "
        "mirror it again from its beginning"
    )


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
