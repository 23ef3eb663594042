"""Record batches on their way to the target: built from fetch responses, joined when small, split when too large.

Each batch of a fetch response gets one treatment (``klamm.kafka_client.data.batches.Treatment``):

- COPY: the bytes are sent as they are, except for the header (producer id, epoch, sequence; ``Outgoing.stamp``).
  Adjacent small COPY batches are joined into one batch of up to ``batch.size`` bytes. The records have no offset gaps.
- REBUILD: the records are decoded and encoded as a new batch. Needed for an old record format (magic 0 and 1), for a
  batch with offset gaps (compaction), for one that begins before the fetch offset, and for LogAppendTime (each record
  then carries that timestamp itself). ``Outgoing.offsets`` keeps the source offset of each record.
- DROP: no record reaches the target: a control batch, an empty batch or a batch of an aborted transaction. The batch
  becomes a ``SkippedOffsets``, which only advances the source offset.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.kafka_client.data import batches
from klamm.kafka_client.data.batches import FetchedBatch, ProducerStamp, Treatment
from klamm.kafka_client.data.joining import in_groups, joined
from klamm.lazy_dataclass import dataclass
from klamm.protocol.types import MAX_SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from klamm.kafka_client.connection.buffers import FrameBuffer
    from klamm.protocol.types import AbortedTransaction

MAX_IN_FLIGHT: Final = 5
"""Most batches of one partition in flight. A broker remembers the last five batches of a producer per partition: with
more in flight it could append a retried batch twice.
"""
_FRAME_SHARE: Final = 16
"""Batches of a partition are copied if they fill less than one part in 16 of a frame. See ``outgoing_of``."""


@dataclass(slots=True)
class Outgoing:
    """Record batch that is queued for or in flight to the target."""

    view: memoryview
    record_count: int
    next_offset: int
    """Source offset that the partition reaches once this batch is acknowledged.

    More than ``last_offset`` + 1 if dropped batches follow.
    """
    max_timestamp: int
    memory: FrameBuffer | None
    """Frame buffer that holds ``view``. None: ``view`` has its own memory (a joined, rebuilt, split or copied one)."""
    last_offset: int = -1
    """Source offset of the last record, or any offset between it and the next batch. -1: unknown."""
    is_dense: bool = False
    """Whether the source offsets of the records have no gaps."""
    first_timestamp: int = -1
    """Timestamp of the first record in milliseconds since the epoch. -1: unknown."""
    base_sequence: int = -1
    producer: ProducerStamp | None = None
    """Producer id and epoch written into the header. None: not stamped yet."""
    offsets: Sequence[int] = ()
    """Source offset of each record of a rebuilt batch. Empty: the offsets have no gaps and end with ``last_offset``."""
    leader_epoch: int = -1
    """Leader epoch in the source batch. -1: the batch has none."""
    is_in_doubt: bool = False
    """Whether the batch was sent and the target may have appended it without an acknowledgement."""

    def stamp(self, producer: ProducerStamp, base_sequence: int) -> None:
        """Write a producer id, epoch and base sequence into the batch header, in place."""
        self.producer, self.base_sequence = producer, base_sequence
        batches.stamp(
            self.view,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=base_sequence,
            transactional=producer.is_transactional,
        )

    def halves(self) -> tuple[Outgoing, Outgoing] | None:
        """Return two batches with half of the records each. None: the batch holds a single record.

        The halves use the sequence numbers of the whole batch, so the batches behind it keep theirs.
        """
        halves = batches.split(self.view)
        if halves is None:
            return None
        (first_view, count), (second_view, rest) = halves
        middle = self.offsets[count] if self.offsets else self.last_offset + 1 - rest
        first = replace(
            self,
            view=first_view,
            record_count=count,
            memory=None,
            next_offset=middle,
            last_offset=middle - 1,
            offsets=self.offsets[:count],
        )
        second = replace(self, view=second_view, record_count=rest, memory=None, offsets=self.offsets[count:])
        if self.producer is not None:
            first.stamp(self.producer, self.base_sequence)
            second.stamp(self.producer, (self.base_sequence + count) & MAX_SEQUENCE)
        return first, second

    def release(self) -> None:
        """Release the frame buffer."""
        if self.memory is not None:
            self.memory.release()
            self.memory = None


class SkippedOffsets(NamedTuple):
    """Source batch of which no record is sent to the target. It only advances the source offset."""

    next_offset: int
    leader_epoch: int


def outgoing_of(
    records: memoryview,
    memory: FrameBuffer,
    fetch_offset: int,
    aborted: Sequence[AbortedTransaction] | None,
    *,
    join_up_to: int,
    is_far: bool = False,
) -> Iterator[Outgoing | SkippedOffsets]:
    """Yield the batches of a fetch response in offset order.

    A batch that points into the frame holds all of its memory until the target acknowledges the batch. Only its own
    bytes count for the limits of the buffer. So the batches are copied if they are a small part of the frame:
    otherwise, a slow or waiting partition with few records would hold one frame after the other, each full of records
    of other partitions.

    Args:
        records: Record batches of one partition in the fetch response.
        memory: Frame buffer that holds them. Retained once for each yielded batch that still points into it.
        fetch_offset: First source offset to copy. Earlier records of the first batch are left out.
        aborted: Aborted transactions of the response, see ``batches.walk``.
        join_up_to: Largest size in bytes of a joined batch, before compression. 0: no batches are joined.
        is_far: Whether the round trip to the target is so long that the bytes in flight limit the throughput.
            Compressed batches are joined only then.

    Raises:
        CorruptBatchError: A batch of the source is damaged. All batches before it were yielded.
    """
    at_once = MAX_IN_FLIGHT if is_far else sys.maxsize
    is_small_part = len(records) * _FRAME_SHARE < len(memory.data)
    for group in in_groups(batches.walk(records, fetch_offset, aborted), join_up_to=join_up_to):
        first = group[0]
        if first.treatment is Treatment.COPY:
            for part, view in joined(group, join_up_to=join_up_to, at_once=at_once):
                if view is not None:
                    yield _dense(part, view, None)
                elif is_small_part:
                    yield _dense(part, memoryview(bytearray(part[0].batch.buffer)), None)
                else:
                    memory.retain()
                    yield _dense(part, part[0].batch.buffer, memory)
        elif first.treatment is Treatment.REBUILD:
            yield _rebuilt(first, fetch_offset)
        else:
            yield SkippedOffsets(first.next_offset, first.batch.partition_leader_epoch)


def _dense(group: Sequence[FetchedBatch], view: memoryview, memory: FrameBuffer | None) -> Outgoing:
    first, next_offset = group[0].batch, group[-1].next_offset
    return Outgoing(
        view,
        next_offset - first.base_offset,
        next_offset,
        max([fetched.batch.max_timestamp for fetched in group]),
        memory,
        last_offset=next_offset - 1,
        is_dense=True,
        first_timestamp=first.base_timestamp,
        leader_epoch=first.partition_leader_epoch,
    )


def _rebuilt(fetched: FetchedBatch, fetch_offset: int) -> Outgoing | SkippedOffsets:
    view, offsets = batches.rebuild(fetched.batch, fetch_offset)
    if not offsets:
        return SkippedOffsets(fetched.next_offset, fetched.batch.partition_leader_epoch)
    return Outgoing(
        view,
        len(offsets),
        fetched.next_offset,
        fetched.batch.max_timestamp,
        None,
        last_offset=offsets[-1],
        is_dense=offsets[-1] - offsets[0] == len(offsets) - 1,
        first_timestamp=fetched.batch.base_timestamp,
        offsets=offsets,
        leader_epoch=fetched.batch.partition_leader_epoch,
    )
