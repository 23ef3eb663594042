"""Record batches of many rows: rows in, one sequence of encoded batches per partition out.

Integers are encoded by numpy, a column at a time. Arrow then joins the parts of each record (lengths, key, value,
headers) in one pass, so that the result holds the records of all rows one after the other.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from klamm.dataframes.rows import lengths
from klamm.lazy_dataclass import dataclass
from klamm.protocol.records import Codec, encode_section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from klamm.dataframes.rows import Rows
    from klamm.kafka_client.data.batches import ProducerStamp

RECORD_OVERHEAD: Final = 25
"""Upper bound in bytes for the lengths, attributes and deltas of a record below 2 MiB."""
_BITS: Final = 7
_MORE: Final = np.uint8(0x80)
_VALUE: Final = np.uint8(0x7F)
_EMPTY: Final = pa.BinaryArray.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bytes(8)), pa.py_buffer(b"")])[0]
"""Separator. ``pyarrow.scalar`` would import pandas, as ``columns.array_of`` explains."""
BATCH_BYTES: Final = 900 * 1024
"""Size of a batch before compression, below the default of ``max.message.bytes``."""


class RecordSections:
    """Encoded records of some rows. Slices of it are the record sections of batches."""

    def __init__(self, rows: Rows, offset_deltas: NDArray[np.int64], timestamp_deltas: NDArray[np.int64]) -> None:
        """Encode all rows.

        Args:
            rows: Rows in the order of their batches.
            offset_deltas: Offset of each record within its batch.
            timestamp_deltas: Timestamp of each record relative to the first one of its batch, in milliseconds.
        """
        key_lengths = np.where(pc.is_null(rows.keys).to_numpy(zero_copy_only=False), -1, lengths(rows.keys))
        value_lengths = np.where(pc.is_null(rows.values).to_numpy(zero_copy_only=False), -1, lengths(rows.values))
        numbers = [_Varints(each) for each in (timestamp_deltas, offset_deltas, key_lengths)]
        value_length = _Varints(value_lengths)
        attributes = _Varints(np.zeros(len(rows), np.int64))
        sizes = sum((each.sizes for each in (attributes, *numbers, value_length)), start=rows.sizes)
        encoded = pc.binary_join_element_wise(
            _joined(_Varints(sizes), attributes, *numbers),
            rows.keys,
            _joined(value_length),
            rows.values,
            rows.headers,
            _EMPTY,
            null_handling="replace",
            null_replacement=b"",
        )
        _, offsets, data = encoded.buffers()
        self._offsets = np.frombuffer(offsets, np.int32)
        self._data = memoryview(data)

    def slice(self, start: int, end: int) -> memoryview:
        """Return the encoded records of rows ``start`` to ``end``."""
        return self._data[self._offsets[start] : self._offsets[end]]


class _Varints:
    """A column of numbers as zigzag varints."""

    def __init__(self, numbers: NDArray[np.int64]) -> None:
        self.zigzag = ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64)
        self.sizes = np.ones(len(numbers), np.int64)
        """Encoded size of each number in bytes."""
        largest = int(self.zigzag.max(initial=0))
        shift = _BITS
        while largest >> shift:
            self.sizes += self.zigzag >= np.uint64(1 << shift)
            shift += _BITS


def _joined(*columns: _Varints) -> Any:
    """Return a binary array: the numbers of each row, one after the other.

    They are written into a matrix whose columns are the places of bytes. A mask then drops the places that a shorter
    number leaves empty.
    """
    rows = len(columns[0].sizes)
    widths = [int(column.sizes.max(initial=1)) for column in columns]
    matrix = np.empty((rows, sum(widths)), np.uint8)
    is_used = np.empty(matrix.shape, np.bool_)
    place = 0
    for column, width in zip(columns, widths, strict=True):
        for at in range(width):
            part = (column.zigzag >> np.uint64(_BITS * at)).astype(np.uint8) & _VALUE
            matrix[:, place] = np.where(column.sizes > at + 1, part | _MORE, part)
            is_used[:, place] = column.sizes > at
            place += 1
    ends = np.cumsum(sum((column.sizes for column in columns), start=np.zeros(rows, np.int64)))
    offsets = np.concatenate([np.zeros(1, np.int64), ends]).astype(np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(matrix[is_used])])


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
