"""Record batches of many rows: rows in, one sequence of encoded batches per partition out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from klamm.dataframes.batches import RECORD_OVERHEAD, RecordSections
from klamm.protocol.records import Codec, encode_section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from klamm.dataframes.rows import Rows
    from klamm.kafka_client.data.batches import ProducerStamp

BATCH_BYTES: Final = 900 * 1024
"""Size of a batch before compression, below the default of ``max.message.bytes``."""


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Some rows of one partition that become one record batch."""

    rows: Rows
    start: int
    end: int
    """Range of the rows."""
    section: memoryview
    """Encoded records."""

    def __len__(self) -> int:
        """Return the number of records."""
        return self.end - self.start

    @property
    def topic(self) -> str:
        """Topic of all rows."""
        return self.rows.topics[int(self.rows.topic_of[self.start])]

    @property
    def partition(self) -> int:
        """Partition of all rows."""
        return int(self.rows.partitions[self.start])

    def encode(self, producer: ProducerStamp, base_sequence: int, codec: Codec) -> bytearray:
        """Return the record batch.

        Args:
            producer: Producer id and epoch, and whether the batch is part of a transaction.
            base_sequence: Sequence number of the first record.
            codec: Compression of the records.
        """
        timestamps = self.rows.timestamps[self.start : self.end]
        return encode_section(
            self.section,
            record_count=len(self),
            base_timestamp=int(timestamps[0]),
            max_timestamp=int(timestamps.max()),
            codec=codec,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=base_sequence,
            is_transactional=producer.is_transactional,
        )

    def halves(self) -> list[RowBatch]:
        """Return two batches with the same rows. Only for a batch of at least two rows."""
        middle = (self.start + self.end) // 2
        return _encoded(self.rows, [self.start, middle, self.end])


def batches_of(rows: Rows) -> list[RowBatch]:
    """Return batches of at most ``BATCH_BYTES``, or of one row. Each partition keeps the order of its rows.

    Args:
        rows: Rows with a partition each.
    """
    if not len(rows):
        return []
    place = rows.topic_of.astype(np.int64) << 32 | rows.partitions
    if (place[1:] < place[:-1]).any():
        order = np.argsort(place, kind="stable")
        rows, place = rows.take(order), place[order]
    ends = np.cumsum(rows.sizes + RECORD_OVERHEAD)
    bounds = [0]
    for end in [*(np.flatnonzero(place[1:] != place[:-1]) + 1).tolist(), len(rows)]:
        while bounds[-1] < end:
            start = bounds[-1]
            most = int(ends[start - 1] if start else 0) + BATCH_BYTES
            bounds.append(min(end, max(start + 1, int(np.searchsorted(ends, most, side="right")))))
    return _encoded(rows, bounds)


def _encoded(rows: Rows, bounds: Sequence[int]) -> list[RowBatch]:
    """Encode the rows between the first and the last bound. A batch lies between each bound and the next one."""
    starts: NDArray[np.int64] = np.array(bounds[:-1])
    counts = np.diff(np.array(bounds))
    some = rows.slice(bounds[0], bounds[-1])
    first_of_batch = np.repeat(starts - bounds[0], counts)
    offset_deltas = np.arange(len(some)) - first_of_batch
    sections = RecordSections(some, offset_deltas, some.timestamps - some.timestamps[first_of_batch])
    return [
        RowBatch(rows, start, end, sections.slice(start - bounds[0], end - bounds[0]))
        for start, end in pairwise(bounds)
    ]
