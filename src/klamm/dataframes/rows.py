"""Conversion of Arrow rows to records for writing.

The columns are those of Spark's own Kafka sink, and ``timestamp``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from klamm.dataframes.errors import WritingError
from klamm.protocol.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

WRITTEN: Final = ("key", "value", "topic", "partition", "timestamp", "headers")
"""Names of the columns that can be written."""
_MICROSECONDS: Final = 1000


class OutgoingRecord(NamedTuple):
    """A record and its destination."""

    topic: str
    partition: int | None
    """None means that the key decides, or the writer if there is no key."""
    record: Record


def outgoing(batch: Any, topic: str | None, now: Callable[[], float] = time.time) -> Iterator[OutgoingRecord]:
    """Yield the records of an Arrow batch.

    Args:
        batch: A ``pyarrow.RecordBatch`` with columns from ``WRITTEN``.
        topic: Topic of all records; None takes it from the column ``topic``.
        now: Clock in seconds since the epoch, for records without a timestamp.

    Raises:
        WritingError: A row cannot be a record.
    """
    count = batch.num_rows
    keys, values = _bytes(batch, "key"), _bytes(batch, "value")
    topics = [topic] * count if topic is not None else _values(batch, "topic")
    partitions, headers, times = _values(batch, "partition"), _values(batch, "headers"), _milliseconds(batch)
    now_ms = int(now() * 1000)
    for at in range(count):
        where, partition, moment = topics[at], partitions[at], times[at]
        if where is None:
            raise WritingError("A row has no topic: expected the option topic, or a column topic without nulls")
        if partition is not None and partition < 0:
            raise WritingError(f"A row of topic {where} has partition {partition}: expected 0 or more, or null")
        record = Record(
            key=keys[at],
            value=values[at],
            headers=() if headers[at] is None else _headers(headers[at], where),
            timestamp=now_ms if moment is None else moment,
        )
        yield OutgoingRecord(where, partition, record)


def _values(batch: Any, name: str) -> Sequence[Any]:
    at = batch.schema.get_field_index(name)
    return [None] * batch.num_rows if at < 0 else list(batch.column(at).to_pylist())


def _bytes(batch: Any, name: str) -> Sequence[bytes | None]:
    at = batch.schema.get_field_index(name)
    if at < 0:
        return [None] * batch.num_rows
    column = batch.column(at)
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        column = column.cast(pa.binary())  # text is written as UTF-8
    return list(column.to_pylist())


def _milliseconds(batch: Any) -> Sequence[int | None]:
    at = batch.schema.get_field_index("timestamp")
    if at < 0:
        return [None] * batch.num_rows
    column = batch.column(at).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    return [None if moment is None else moment // _MICROSECONDS for moment in column.to_pylist()]


def _headers(headers: Sequence[dict[str, Any] | None], topic: str) -> tuple[tuple[str, bytes | None], ...]:
    out = []
    for header in headers:
        if header is None or header["key"] is None:
            raise WritingError(f"A row of topic {topic} has a header without a key")
        out.append((header["key"], header["value"]))
    return tuple(out)
