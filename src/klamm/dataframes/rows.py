"""Rows of Arrow batches as columns of records for writing.

The columns are those of Spark's own Kafka sink, and ``timestamp``. No row becomes a Python object, except the headers
of rows that have some.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from klamm.dataframes.errors import WritingError
from klamm.lazy_dataclass import dataclass
from klamm.protocol.records import encode_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

WRITTEN: Final = ("key", "value", "topic", "partition", "timestamp", "headers")
"""Names of the columns that can be written."""
NO_PARTITION: Final = -1
"""Marks a row without a partition: the key decides, or the writer if there is no key."""
_NO_HEADERS: Final = encode_headers(())
_MICROSECONDS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Records and their destinations, as columns of equal length."""

    topics: tuple[str, ...]
    """Names of the topics."""
    topic_of: NDArray[np.int32]
    """Topic of each row, as an index into ``topics``."""
    partitions: NDArray[np.int32]
    """Partition of each row, or ``NO_PARTITION``."""
    keys: Any
    """``pyarrow.BinaryArray`` with nulls."""
    values: Any
    """``pyarrow.BinaryArray``. A null is a tombstone."""
    timestamps: NDArray[np.int64]
    """Milliseconds since the epoch."""
    headers: Any
    """``pyarrow.BinaryArray`` of the encoded headers of each record."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.timestamps)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of key, value and headers of each row."""
        return lengths(self.keys) + lengths(self.values) + lengths(self.headers)

    def slice(self, start: int, end: int) -> Rows:
        """Return the rows from ``start`` to ``end``, without a copy."""
        return Rows(
            topics=self.topics,
            topic_of=self.topic_of[start:end],
            partitions=self.partitions[start:end],
            keys=self.keys[start:end],
            values=self.values[start:end],
            timestamps=self.timestamps[start:end],
            headers=self.headers[start:end],
        )

    def take(self, order: NDArray[np.int64]) -> Rows:
        """Return the rows at the given places, in their order."""
        places = pa.array(order)
        return Rows(
            topics=self.topics,
            topic_of=self.topic_of[order],
            partitions=self.partitions[order],
            keys=self.keys.take(places),
            values=self.values.take(places),
            timestamps=self.timestamps[order],
            headers=self.headers.take(places),
        )


def lengths(column: Any) -> NDArray[np.int64]:
    """Return the length in bytes of each element of a binary array, 0 for nulls."""
    lengths: NDArray[np.int64] = pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def rows_of(batch: Any, topic: str | None, now: Callable[[], float] = time.time) -> Rows:
    """Return the rows of an Arrow batch.

    Args:
        batch: A ``pyarrow.RecordBatch`` with columns from ``WRITTEN``.
        topic: Topic of all records; None takes it from the column ``topic``.
        now: Clock in seconds since the epoch, for records without a timestamp.

    Raises:
        WritingError: A row cannot be a record.
    """
    topics, topic_of = _topics(batch, topic)
    partitions = _filled(batch, "partition", pa.int32(), NO_PARTITION)
    if (number := _column(batch, "partition")) is not None:
        is_negative = pc.less(number, 0).fill_null(False).to_numpy(zero_copy_only=False)
        if is_negative.any():
            at = int(is_negative.argmax())
            raise WritingError(
                f"A row of topic {topics[topic_of[at]]} has partition {number[at]}: expected 0 or more, or null"
            )
    moments = _column(batch, "timestamp")
    if moments is None:
        timestamps = np.full(batch.num_rows, int(now() * 1000), np.int64)
    else:
        microseconds = moments.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).fill_null(int(now() * 1_000_000))
        timestamps = microseconds.to_numpy(zero_copy_only=False) // _MICROSECONDS
    return Rows(
        topics=topics,
        topic_of=topic_of,
        partitions=partitions,
        keys=_binary(batch, "key"),
        values=_binary(batch, "value"),
        timestamps=timestamps,
        headers=_headers(batch, topics[0] if len(topics) == 1 else [topics[at] for at in topic_of.tolist()]),
    )


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of several batches as one."""
    if len(parts) == 1:
        return parts[0]
    topics = tuple(dict.fromkeys(topic for part in parts for topic in part.topics))
    index = {topic: at for at, topic in enumerate(topics)}
    topic_of = [np.array([index[topic] for topic in part.topics], np.int32)[part.topic_of] for part in parts]
    return Rows(
        topics=topics,
        topic_of=np.concatenate(topic_of),
        partitions=np.concatenate([part.partitions for part in parts]),
        keys=pa.concat_arrays([part.keys for part in parts]),
        values=pa.concat_arrays([part.values for part in parts]),
        timestamps=np.concatenate([part.timestamps for part in parts]),
        headers=pa.concat_arrays([part.headers for part in parts]),
    )


def _column(batch: Any, name: str) -> Any:
    """Return a column, or None if the batch lacks it or it has no type, as a column of nulls."""
    at = batch.schema.get_field_index(name)
    return None if at < 0 or pa.types.is_null(batch.column(at).type) else batch.column(at)


def _topics(batch: Any, topic: str | None) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    if topic is not None:
        return (topic,), np.zeros(batch.num_rows, np.int32)
    column = _column(batch, "topic")
    if column is None or column.null_count:
        raise WritingError("A row has no topic: expected the option topic, or a column topic without nulls")
    encoded = column.cast(pa.string()).dictionary_encode()
    return tuple(encoded.dictionary.to_pylist()), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int32)


def _filled(batch: Any, name: str, kind: Any, null: int) -> NDArray[np.int32]:
    column = _column(batch, name)
    if column is None:
        return np.full(batch.num_rows, null, np.int32)
    values: NDArray[np.int32] = column.cast(kind).fill_null(null).to_numpy(zero_copy_only=False)
    return values


def _binary(batch: Any, name: str) -> Any:
    column = _column(batch, name)
    if column is None:
        return pa.nulls(batch.num_rows, pa.binary())
    return column if column.type == pa.binary() else column.cast(pa.binary())  # text is written as UTF-8


def _headers(batch: Any, topics: str | Sequence[str]) -> Any:
    column = _column(batch, "headers")
    if column is None or column.null_count == len(column):
        return pa.repeat(pa.scalar(_NO_HEADERS, pa.binary()), batch.num_rows)
    encoded = []
    for at, headers in enumerate(column.to_pylist()):
        if headers is None:
            encoded.append(_NO_HEADERS)
            continue
        if any(header is None or header["key"] is None for header in headers):
            topic = topics if isinstance(topics, str) else topics[at]
            raise WritingError(f"A row of topic {topic} has a header without a key")
        encoded.append(encode_headers(tuple((header["key"], header["value"]) for header in headers)))
    return pa.array(encoded, pa.binary())
