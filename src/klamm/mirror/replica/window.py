"""Consecutive batches of a source partition in memory, with the offset and leader epoch of each. No I/O."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.kafka_client.data.batches import walk
from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.records.layout import INT32, LEADER_EPOCH_AT, MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from klamm.mirror.records.source_offsets import EpochFloor

UNKNOWN_EPOCH: Final = -1


class BatchEnd(NamedTuple):
    """End of one batch in a chunk, and its leader epoch."""

    next_offset: int
    position: int
    """Position in bytes after the batch."""
    leader_epoch: int
    """-1: the batch has an old format without epochs."""


class Chunk(NamedTuple):
    """Batches of one fetch response. The bytes are never changed after a follower may have read them."""

    data: memoryview
    batches: Sequence[BatchEnd]
    source_epoch: int = UNKNOWN_EPOCH
    """Leader epoch of the last batch on the source. -1: unknown."""
    record_count: int = 0
    max_timestamp: int = -1

    @property
    def next_offset(self) -> int:
        """Return the offset after the last batch."""
        return self.batches[-1].next_offset


def read_chunk(records: memoryview, offset: int, floors: Sequence[EpochFloor] = ()) -> tuple[Chunk | None, str]:
    """Copy the complete batches of a fetch response that end after an offset.

    The first batch may begin before the offset, as in Kafka. The leader epoch of a batch is raised to that of the
    latest floor before it. The checksum does not cover it.

    Args:
        records: Record batches of one partition in a fetch response. A truncated last batch is left out.
        offset: Fetch offset.
        floors: Offsets from which on the leader epochs must be higher than on the source, in ascending order.

    Returns:
        The batches, or None if there are none, and the defect of the batch after them (empty: none).
    """
    data, ends, defect = bytearray(), list[BatchEnd](), ""
    epoch, count, timestamp = UNKNOWN_EPOCH, 0, -1
    try:
        for batch, _, next_offset in walk(records, offset):
            epoch = raised = batch.partition_leader_epoch
            start = len(data)
            data += batch.buffer
            if floors and batch.magic == MAGIC:
                raised = max(epoch, *(each.leader_epoch for each in floors if each.offset <= batch.base_offset), -1)
                INT32.pack_into(data, start + LEADER_EPOCH_AT, raised)
            if not batch.is_control:
                count, timestamp = count + max(0, batch.record_count), max(timestamp, batch.max_timestamp)
            ends.append(BatchEnd(next_offset, len(data), raised))
    except CorruptBatchError as error:
        defect = str(error)
    if not ends:
        return None, defect
    return Chunk(memoryview(data).toreadonly(), ends, epoch, count, timestamp), defect


class Window:
    """Consecutive chunks from one offset on.

    Args:
        offset: Offset of the first batch to append.
        leader_epoch: Leader epoch of the batch before it. -1: unknown.
        source_epoch: The same on the source. None: it is equal.
    """

    def __init__(self, offset: int, leader_epoch: int = UNKNOWN_EPOCH, source_epoch: int | None = None) -> None:
        self.start = self.end = offset
        """First offset, and the offset after the last batch."""
        self.source_epoch = leader_epoch if source_epoch is None else source_epoch
        """Leader epoch that the source must have before the first offset."""
        self._epoch_before = self.last_epoch = leader_epoch
        """Leader epochs of the batch before the window, and of the last batch. -1: unknown."""
        self._chunks: deque[Chunk] = deque()
        self.dropped_bytes = 0
        """Bytes of all chunks that were removed."""

    def __contains__(self, offset: int) -> bool:
        """Return whether the window can serve an offset now, or as soon as the next batch is appended."""
        return self.start <= offset <= self.end

    def append(self, chunk: Chunk) -> None:
        """Append the batches at ``end``."""
        self._chunks.append(chunk)
        self.end = chunk.next_offset
        self.last_epoch = chunk.batches[-1].leader_epoch

    def drop_before(self, offset: int) -> None:
        """Remove the chunks that end at or before an offset."""
        while self._chunks and self._chunks[0].next_offset <= offset:
            chunk = self._chunks.popleft()
            self.start, self._epoch_before = chunk.next_offset, chunk.batches[-1].leader_epoch
            self.dropped_bytes += len(chunk.data)

    def epoch_before(self, offset: int) -> int | None:
        """Return the leader epoch of the last batch before an offset in the window. None: it is not the end of one."""
        if offset == self.start:
            return self._epoch_before
        if offset == self.end:
            return self.last_epoch
        return next((end.leader_epoch for end in self._ends_from(offset) if end.next_offset == offset), None)

    def next_epoch(self, offset: int) -> int | None:
        """Return the leader epoch of the first batch that ends after an offset. None: there is none."""
        return next((end.leader_epoch for end in self._ends_from(offset + 1)), None)

    def _ends_from(self, offset: int) -> Iterator[BatchEnd]:
        for chunk in self._chunks:
            if chunk.next_offset >= offset:
                yield from (end for end in chunk.batches if end.next_offset >= offset)

    def read(self, offset: int, max_bytes: int, max_epoch: int) -> bytes | memoryview:
        """Return whole batches from an offset on: at least one, even if it is larger than ``max_bytes``.

        Args:
            offset: First offset to return.
            max_bytes: Limit of the size.
            max_epoch: Batches from the first one with a higher leader epoch on are left out.
        """
        pieces, size = list[memoryview](), 0
        for chunk in self._chunks:
            if chunk.next_offset <= offset:
                continue
            begin = stop = -1
            is_cut = False
            before = 0
            for end in chunk.batches:
                if end.next_offset > offset:
                    begin = before if begin < 0 else begin
                    if end.leader_epoch > max_epoch or (
                        size + end.position - begin > max_bytes and (pieces or stop >= 0)
                    ):
                        is_cut = True
                        break
                    stop = end.position
                before = end.position
            if stop >= 0:
                pieces.append(chunk.data[begin:stop])
                size += stop - begin
            # Joining pieces copies them, so a response ends with the first large one.
            if is_cut or size >= max_bytes // 2:
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
