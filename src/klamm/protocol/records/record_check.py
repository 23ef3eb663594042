"""Structural check of the records of a batch (magic 2) that does not build records.

The broker checks every produced batch, so the check must be cheap. In a wheel this module is compiled and takes 30
nanoseconds per record. Interpreted from source, Python takes about a microsecond per record. Consecutive records of
equal size are therefore checked column by column: a slice with a step holds the same byte of each record, and a few
operations on such slices check the whole run (ADR 15).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.protocol.errors import CorruptBatchError, InvalidRecordError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_extensions import i64  # machine integers where this module is compiled, Python integers otherwise

_IS_SOURCE: Final = __file__.endswith(".py")
_MIN_RUN: Final = 8
"""Shortest run worth checking by columns: a column check costs about as much as checking this many records."""
_BETWEEN_TRIES: Final = 16
"""After a run shorter than ``_MIN_RUN``, this many records are checked one by one before the next attempt."""
_TWO_BYTES: Final = 8192
"""Bound of the offset deltas that take at most two bytes. Those below 64 take one byte."""
_ONE_BYTE: Final = 0x7F
"""Largest varint value that takes one byte."""
_CONTINUED: Final = bytes(range(0x80, 0x100))
"""Byte values with the continuation bit: another byte of the same varint follows."""
_NEGATIVE: Final = bytes(range(1, 0x100, 2))
"""First bytes of negative zigzag varints."""
_EVEN_CONTINUED: Final = bytes(range(0x80, 0x100, 2))
_LOW_DELTAS: Final = bytes(range(0, 0x80, 2)) + _EVEN_CONTINUED * (_TWO_BYTES // 64 - 1)
"""First byte of each offset delta below ``_TWO_BYTES``."""
_HIGH_DELTAS: Final = b"".join(bytes((high,)) * 64 for high in range(_TWO_BYTES // 64))
"""Second byte of each of them, 0 of those that take one byte."""
_VARINT_BYTES: Final = 5
_VARLONG_BYTES: Final = 10
_LAST_SHIFT: Final = 63


class RecordFields(NamedTuple):
    """Fields of one record that can make a topic reject it."""

    timestamp_delta: int
    offset_delta: int
    has_key: bool


def check_records(data: bytes, count: int) -> tuple[int, int, bool]:
    """Check that the data consists of exactly ``count`` well-formed records of their declared lengths.

    Args:
        data: Decompressed records.
        count: Number of records in the batch header, 1 or more.

    Returns:
        The largest timestamp delta, the number of records without a key, and whether the offset deltas are 0, 1, 2 and
        so on.

    Raises:
        InvalidRecordError: The bytes are not ``count`` well-formed records.
    """
    try:
        return _check_records(data, count)
    except IndexError:
        raise InvalidRecordError("Incorrect declared batch size, premature EOF reached") from None


def record_ends(data: bytes, begin: int, end: int, count: int) -> tuple[list[int], dict[int, int]]:
    """Return the ends of records, by the length in front of each. The fields of the records are not checked.

    Of several consecutive records of equal size, which are found by comparing slices, only the last end may be listed.

    Args:
        data: Decompressed records, followed by at least as many bytes as a length takes.
        begin: Position of the first record.
        end: Position behind the last one.
        count: Number of records, at most as many as there is room for.

    Returns:
        The ends, and by index in this list the number of records of equal size since the end before, if it is not 1.

    Raises:
        CorruptBatchError: There are not exactly ``count`` records between ``begin`` and ``end``.
    """
    ends: list[int] = []
    runs: dict[int, int] = {}
    position: i64 = begin
    stop: i64 = end
    left: i64 = count
    size: i64 = 0
    same: i64 = 0
    while left:
        start = position
        length: i64 = data[position]
        position += 1
        if length > _ONE_BYTE:
            byte: i64 = data[position]
            position += 1
            length = length & _ONE_BYTE | (byte & _ONE_BYTE) << 7
            if byte > _ONE_BYTE:
                try:
                    length, position = read_unsigned(data, start, _VARINT_BYTES)
                except InvalidRecordError:
                    raise CorruptBatchError("Varint is too long") from None
        position += length >> 1
        if length & 1 or position > stop:
            raise CorruptBatchError("A record does not fit into its batch")
        left -= 1
        if position - start != size:
            size = position - start
            same = 0
        same += 1
        if same == _MIN_RUN:
            more: i64 = min(left, _equal_records(data, position, stop, size - (length >> 1), size))
            runs[len(ends)] = more + 1
            position += more * size
            left -= more
        ends.append(position)
    if position != stop:
        raise CorruptBatchError(f"{end - position} bytes follow the last record of a batch")
    return ends, runs


def _equal_records(data: bytes, position: i64, stop: i64, head: i64, size: i64) -> i64:
    """Return how many records at ``position`` have the same length in front of them as the record before.

    Args:
        data: Decompressed records.
        position: End of a record of ``size`` bytes.
        stop: Position behind the last record.
        head: Number of bytes that the length takes.
        size: Size of the record with the length in front of it.
    """
    run: i64 = (stop - position) // size
    for at in range(position, position + head):
        column = data[at : at + run * size : size]
        run = len(column) - len(column.lstrip(data[at - size : at - size + 1]))
    return run


def _check_records(data: bytes, count: i64) -> tuple[int, int, bool]:  # noqa: C901, PLR0912, PLR0915 -- a call per field would make it three times as slow
    """Check all records. Varints of one byte are read inline, longer ones by a function call."""
    position: i64 = 0
    index: i64 = 0
    latest: i64 = 0
    null_keys: i64 = 0
    earliest: i64 = -1
    try_run_at: i64 = 0 if _IS_SOURCE else count
    is_in_order = True
    while index < count:
        begin = position
        number: i64 = data[position]
        position += 1
        if number > _ONE_BYTE:
            number, position = read_unsigned(data, begin, _VARINT_BYTES)
        body = position
        end = body + (number >> 1)
        number = data[body + 1]
        position = body + 2
        if number > _ONE_BYTE:
            number, position = read_unsigned(data, body + 1, _VARLONG_BYTES)
        if not number & 1:
            if number >= latest:
                latest = number + 2  # 0 means none
        elif earliest < 0 or number < earliest:
            earliest = number
        offset_at = position
        number = data[position]
        position += 1
        if number > _ONE_BYTE:
            number, position = read_unsigned(data, offset_at, _VARINT_BYTES)
        is_in_order = is_in_order and number == index << 1
        key_at = position
        key: i64 = data[position]
        position += 1
        if key > _ONE_BYTE:
            key, position = read_unsigned(data, key_at, _VARINT_BYTES)
        key_end = position
        if key & 1:
            null_keys += 1
        else:
            position += key >> 1
        value_at = position
        number = data[position]
        position += 1
        if number > _ONE_BYTE:
            number, position = read_unsigned(data, value_at, _VARINT_BYTES)
        value_end = position
        if not number & 1:
            position += number >> 1
        headers: i64 = data[position]
        position = position + 1 if headers == 0 else _skip_headers(data, position, end)
        if position != end:
            _reject_size(end - body, position - body)
        index += 1
        if headers == 0 and index >= try_run_at and count - index >= _MIN_RUN:
            try_run_at = index + _BETWEEN_TRIES
            if data[begin:body] == data[end : end + body - begin]:  # the next record has the same size
                fixed = (*range(begin, body), *range(key_at, key_end), *range(value_at, value_end), end - 1)
                deltas = (body + 1, offset_at, key_at)
                run, run_latest, in_order = _check_run(data, end - begin, fixed, deltas, index=index, count=count)
                if run:
                    index += run
                    position += run * (end - begin)
                    null_keys += run * (key & 1)
                    latest = max(latest, run_latest)
                    is_in_order = is_in_order and in_order
                    try_run_at = index
    if position != len(data):
        raise InvalidRecordError("Incorrect declared batch size, records still remaining in file")
    return (latest - 2) >> 1 if latest else -((earliest + 1) >> 1), null_keys, is_in_order


def _reject_size(announced: i64, read: i64) -> None:
    raise InvalidRecordError(
        f"Invalid record size: expected to read {announced} bytes in record payload, but instead read {read}"
    )


def _check_run(
    data: bytes, size: int, fixed: tuple[int, ...], deltas: tuple[int, int, int], *, index: int, count: int
) -> tuple[int, int, bool]:
    """Check the records after an already checked one, as long as they have the same shape.

    Args:
        data: Decompressed records.
        size: Size in bytes of the checked record.
        fixed: Positions of the bytes that define its shape: lengths and the number of headers.
        deltas: Positions of its timestamp delta and offset delta, and of the field after them.
        index: Index in the batch of the first record of the run.
        count: Number of records in the batch.

    Returns:
        The number of records checked, the largest non-negative timestamp delta (zigzag, plus 2; 0 means none), and
        whether the offset deltas are in order.
    """
    run = min(count - index, _TWO_BYTES - index)
    for position in fixed:
        column = data[position + size : position + size * run + 1 : size]
        run = len(column) - len(column.lstrip(data[position : position + 1]))
        if run < _MIN_RUN:
            return 0, 0, False
    timestamp_at, offset_at, end = deltas
    low, high = _number_columns(data, timestamp_at, offset_at, size, run)
    latest = _latest(low, high)
    low_deltas, high_deltas = _number_columns(data, offset_at, end, size, run)
    if latest <= 0 or not low_deltas:
        return 0, 0, False
    in_order = low_deltas == _LOW_DELTAS[index : index + run]
    if high_deltas:
        in_order = in_order and high_deltas == _HIGH_DELTAS[index : index + run]
    return run, latest, in_order


def _number_columns(data: bytes, start: int, end: int, size: int, run: int) -> tuple[bytes, bytes]:
    """Return the low and high bytes of a run of varints. Empty if they differ in size or exceed two bytes."""
    low = data[start + size : start + size * run + 1 : size]
    if end - start == 1:
        return (low, b"") if low.isascii() else (b"", b"")
    high = data[start + 1 + size : start + 1 + size * run + 1 : size]
    if end - start > _VARINT_BYTES - 3 or low.translate(None, _CONTINUED) or not high.isascii():
        return b"", b""
    return low, high


def _latest(low: bytes, high: bytes) -> int:
    """Return the largest non-negative timestamp delta (zigzag, plus 2), or 0 if there is none."""
    if not high:
        return max(low.translate(None, _NEGATIVE), default=-2) + 2
    top = max(high)
    first = high.index(top)
    if high.count(top) == len(high) - first and not low.strip(_EVEN_CONTINUED):  # increasing timestamps, the usual case
        return (top << 7 | max(low[first:]) & 0x7F) + 2
    return max((more << 7 | byte & 0x7F for byte, more in zip(low, high, strict=True) if not byte & 1), default=-2) + 2


def _skip_headers(data: bytes, position: i64, end: i64) -> i64:
    """Return the position after the headers, whose count is at ``position``."""
    count, position = read_unsigned(data, position, _VARINT_BYTES)
    if count & 1:
        raise InvalidRecordError(f"Found invalid number of record headers {-((count + 1) >> 1)}")
    if count >> 1 > end - position:
        raise InvalidRecordError(
            f"Found invalid number of record headers. {count >> 1} is larger than the remaining size of the buffer"
        )
    for _ in range(count >> 1):
        length, position = read_unsigned(data, position, _VARINT_BYTES)
        if length & 1:
            raise InvalidRecordError(f"Invalid negative header key size {-((length + 1) >> 1)}")
        length, position = read_unsigned(data, position + (length >> 1), _VARINT_BYTES)
        if not length & 1:
            position += length >> 1
    return position


def read_unsigned(data: bytes, position: i64, max_bytes: i64) -> tuple[i64, i64]:
    """Read a varint of at most 32 bits (5 bytes) or 64 (10 bytes); return it, still zigzag, and the position after it.

    Raises:
        InvalidRecordError: The varint is longer, or uses the highest of 64 bits, which no record timestamp needs.
        IndexError: The data ends within the varint.
    """
    number: i64 = 0
    shift: i64 = 0
    end = position + max_bytes
    while position < end:
        byte: i64 = data[position]
        position += 1
        if shift == _LAST_SHIFT and byte:
            break
        number |= (byte & 0x7F) << shift
        if byte <= _ONE_BYTE:
            # The fifth byte of an int carries more bits than fit; Java discards the excess, so this does too.
            return number & 0xFFFFFFFF if max_bytes == _VARINT_BYTES else number, position
        shift += 7
    raise InvalidRecordError("Found invalid record structure")


def iter_fields(data: bytes, count: int) -> Iterator[RecordFields]:
    """Iterate over the fields of the records, without building records.

    Args:
        data: Decompressed records.
        count: Number of records in the batch header.

    Raises:
        InvalidRecordError: The bytes are not ``count`` well-formed records.
    """
    position = 0
    try:
        for _ in range(count):
            number, body = read_unsigned(data, position, _VARINT_BYTES)
            timestamp, position = read_unsigned(data, body + 1, _VARLONG_BYTES)
            offset, position = read_unsigned(data, position, _VARINT_BYTES)
            key, position = read_unsigned(data, position, _VARINT_BYTES)
            yield RecordFields((timestamp >> 1) ^ -(timestamp & 1), (offset >> 1) ^ -(offset & 1), not key & 1)
            position = body + (number >> 1)
    except IndexError:
        raise InvalidRecordError("Incorrect declared batch size, premature EOF reached") from None
