"""Batches on their way to the target: what a fetch brought, joined where it is small, halved where it is too large."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.client import batches
from klamm.client.batches import FetchedBatch, ProducerStamp, Treatment
from klamm.client.joining import in_groups, joined
from klamm.protocol.types import MAX_SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from klamm.client.buffers import FrameBuffer
    from klamm.protocol.types import AbortedTransaction

MAX_IN_FLIGHT: Final = 5
"""A broker remembers the last five batches of a producer in a partition; with more a retry could be taken twice."""


@dataclass(slots=True)
class Outgoing:
    """A batch on its way to the target."""

    view: memoryview
    record_count: int
    next_offset: int
    """The source offset that is reached when this batch is acknowledged."""
    max_timestamp: int
    memory: FrameBuffer | None
    """Where ``view`` lies, None for a batch that was made anew."""
    last_offset: int = -1
    """The source offset of the last record, or one between it and the next batch; -1: not known."""
    is_dense: bool = False
    """The source has no gaps between the records."""
    first_timestamp: int = -1
    """Of its first record; -1: not known."""
    base_sequence: int = -1
    producer: ProducerStamp | None = None
    """None until it is stamped."""
    offsets: Sequence[int] = ()
    """Source offsets of the records of a batch that was rebuilt; empty: they end with ``last_offset``, without gaps."""
    leader_epoch: int = -1
    """Leader epoch of the source's batch; -1 when it has none."""

    def stamp(self, producer: ProducerStamp, base_sequence: int) -> None:
        """Make the batch one of a producer's, in place."""
        self.producer, self.base_sequence = producer, base_sequence
        batches.stamp(
            self.view,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=base_sequence,
            transactional=producer.is_transactional,
        )

    def halves(self) -> tuple[Outgoing, Outgoing] | None:
        """Return two batches of half of the records each; None when there is one record only.

        They take the sequence numbers of the whole, so that the batches behind keep theirs.
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
        """Let go of the memory."""
        if self.memory is not None:
            self.memory.release()
            self.memory = None


class LeftOut(NamedTuple):
    """A batch of which nothing goes to the target."""

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
) -> Iterator[Outgoing | LeftOut]:
    """Yield what a fetch brought, in its order.

    Args:
        records: what the fetch answered.
        memory: where it lies; retained for each batch that stays there.
        fetch_offset: the first offset wanted.
        aborted: see ``batches.walk``.
        join_up_to: bytes of the largest batch that is made of several, before it is compressed.
        is_far: answers of the target take so long that it counts how much is on its way at once.

    Raises:
        CorruptBatchError: the source's bytes are damaged; what stands before them was yielded.
    """
    at_once = MAX_IN_FLIGHT if is_far else sys.maxsize
    for group in in_groups(batches.walk(records, fetch_offset, aborted), join_up_to=join_up_to):
        first = group[0]
        if first.treatment is Treatment.COPY:
            for part, view in joined(group, join_up_to=join_up_to, at_once=at_once):
                if view is None:
                    memory.retain()
                    yield _dense(part, part[0].batch.buffer, memory)
                else:
                    yield _dense(part, view, None)
        elif first.treatment is Treatment.REBUILD:
            yield _rebuilt(first, fetch_offset)
        else:
            yield LeftOut(first.next_offset, first.batch.partition_leader_epoch)


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


def _rebuilt(fetched: FetchedBatch, fetch_offset: int) -> Outgoing | LeftOut:
    view, offsets = batches.rebuild(fetched.batch, fetch_offset)
    if not offsets:
        return LeftOut(fetched.next_offset, fetched.batch.partition_leader_epoch)
    return Outgoing(
        view,
        len(offsets),
        fetched.next_offset,
        fetched.batch.max_timestamp,
        None,
        last_offset=fetched.next_offset - 1,
        first_timestamp=fetched.batch.base_timestamp,
        offsets=offsets,
        leader_epoch=fetched.batch.partition_leader_epoch,
    )
