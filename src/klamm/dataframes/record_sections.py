"""Encoding of many records at once: columns in, the bytes of record batches out.

Integers are encoded by numpy, a column at a time. Arrow then joins the parts of each record (lengths, key, value,
headers) in one pass, so that the result holds the records of all rows one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from klamm.dataframes.rows import lengths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from klamm.dataframes.rows import Rows

RECORD_OVERHEAD: Final = 25
"""Upper bound in bytes for the lengths, attributes and deltas of a record below 2 MiB."""
_BITS: Final = 7
_MORE: Final = np.uint8(0x80)
_VALUE: Final = np.uint8(0x7F)
_EMPTY: Final = pa.scalar(b"", pa.binary())


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
