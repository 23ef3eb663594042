"""Records as Arrow columns, compared with the decoder of single records."""

from __future__ import annotations

import datetime
import struct
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.dataframes.columns import columns_of
from klamm.dataframes.positions import OffsetRange
from klamm.protocol.errors import CorruptBatchError, UnsupportedCompressionTypeError
from klamm.protocol.records import Codec, Record, TimestampType, decode_records, encode_batch, iter_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
EPOCH = datetime.datetime.fromtimestamp(0, tz=datetime.UTC)

some_bytes = st.none() | st.binary(max_size=200)
some_rows = st.lists(
    st.tuples(
        some_bytes,
        some_bytes,
        st.lists(st.tuples(st.text(max_size=5), some_bytes), max_size=2).map(tuple),
        st.integers(0, 4_000_000_000_000),
    ),
    min_size=1,
    max_size=8,
)
equal_rows = st.builds(
    lambda row, times: [row] * times,
    st.tuples(some_bytes, some_bytes, st.just(()), st.integers(0, 4_000_000_000_000)),
    st.integers(8, 80),
)
some_records = st.lists(some_rows | equal_rows, min_size=1, max_size=3).map(
    lambda parts: [row for part in parts for row in part]
)


def range_of(start: int, end: int) -> OffsetRange:
    return OffsetRange(topic="t", partition=3, start=start, end=end)


def batch_of(
    first: int, rows: Sequence[tuple[bytes | None, bytes | None, tuple[object, ...], int]], *, gap: int = 0
) -> list[Record]:
    return [
        Record(key, value, headers, timestamp, first + at * (1 + gap))  # type: ignore[arg-type]  # drawn as such
        for at, (key, value, headers, timestamp) in enumerate(rows)
    ]


@given(
    batches=st.lists(st.tuples(some_records, st.sampled_from(Codec)), min_size=1, max_size=4),
    gap=st.sampled_from([0, 0, 1, 100]),
    cut=st.tuples(st.integers(0, 30), st.integers(0, 400)),
)
def test_columns_equal_decoded_records(
    batches: list[tuple[list[tuple[bytes | None, bytes | None, tuple[object, ...], int]], Codec]],
    gap: int,
    cut: tuple[int, int],
) -> None:
    # given
    data = bytearray()
    records: list[Record] = []
    for rows, codec in batches:
        made = batch_of(records[-1].offset + 1 if records else 0, rows, gap=gap)
        records += made
        data += encode_batch(made, codec=codec)
    start, end = cut[0], cut[0] + cut[1]
    # when
    tables = [columns.to_arrow(SCHEMA) for columns in columns_of(list(iter_batches(data)), range_of(start, end))]
    # then
    seen: list[object] = [row for table in tables for row in table.to_pylist()]
    assert seen == [
        {
            "key": record.key,
            "value": record.value,
            "topic": "t",
            "partition": 3,
            "offset": record.offset,
            "timestamp": EPOCH + datetime.timedelta(milliseconds=record.timestamp),
            "timestampType": 0,
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
        }
        for record in records
        if start <= record.offset < end
    ]


@given(
    rows=some_records,
    at=st.floats(0, 1, exclude_max=True),
    byte=st.integers(0, 255),
)
def test_damaged_batch_is_rejected_or_decoded_like_single_records(
    rows: list[tuple[bytes | None, bytes | None, tuple[object, ...], int]], at: float, byte: int
) -> None:
    # given
    data = encode_batch(batch_of(0, rows))
    data[61 + int(at * (len(data) - 61))] = byte
    (batch,) = iter_batches(data)
    # when
    try:
        (columns,) = columns_of([batch], range_of(-(1 << 40), 1 << 40))
    except CorruptBatchError:
        return
    # then
    try:
        expected = decode_records(batch)
    except CorruptBatchError as error:
        assert "Varint is too long" in str(error)  # noqa: PT017 - either may give up first
        return
    table = columns.to_arrow(SCHEMA)
    assert table["key"].to_pylist() == [record.key for record in expected]
    assert table["value"].to_pylist() == [record.value for record in expected]


def test_two_readers_in_one_thread_do_not_mix_records() -> None:
    # given: more batches than one group holds
    values = [[bytes([first + at]) * 400_000 for at in range(5)] for first in (0, 100)]
    readers = []
    for own in values:
        data = b"".join(
            encode_batch(batch_of(at, [(None, value, (), 0)]), codec=Codec.ZSTD) for at, value in enumerate(own)
        )
        readers.append(columns_of(list(iter_batches(data)), range_of(0, 5)))
    # when: both are read by turns
    values_read: list[list[bytes]] = [[], []]
    for groups in zip(*readers, strict=True):
        for seen, columns in zip(values_read, groups, strict=True):
            seen.extend(columns.to_arrow(pa.schema([("value", pa.binary())])).column("value").to_pylist())
    # then
    assert values_read == values


def test_only_requested_columns_are_built() -> None:
    data = encode_batch([Record(b"k", b"v", (), 5, 0)])
    (columns,) = columns_of(list(iter_batches(data)), range_of(0, 1))
    schema = pa.schema([("value", pa.binary()), ("offset", pa.int64())])
    assert columns.to_arrow(schema).to_pylist() == [{"value": b"v", "offset": 0}]


def test_log_append_time_replaces_record_timestamps() -> None:
    data = encode_batch(
        [Record(b"k", b"v", (), 5, 0)], timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time=9_000
    )
    (columns,) = columns_of(list(iter_batches(data)), range_of(0, 1))
    (row,) = columns.to_arrow(SCHEMA).to_pylist()
    assert (row["timestamp"], row["timestampType"]) == (EPOCH + datetime.timedelta(seconds=9), 1)


def test_timestamp_outside_the_calendar_is_null() -> None:
    data = encode_batch([Record(b"k", b"v", (), 1 << 62, 0), Record(b"k", b"v", (), -1, 1)])
    (columns,) = columns_of(list(iter_batches(data)), range_of(0, 2))
    times = columns.to_arrow(SCHEMA)["timestamp"].to_pylist()
    assert times == [None, EPOCH - datetime.timedelta(milliseconds=1)]


@pytest.mark.parametrize(("magic", "milliseconds", "kind"), [(0, -1, -1), (1, 55, 0)])
def test_message_format_0_has_no_timestamp(magic: int, milliseconds: int, kind: int) -> None:
    body = struct.pack(">bb", magic, 0) + struct.pack(">q", 55) * magic + struct.pack(">ii", -1, 1) + b"v"
    message = struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body
    (columns,) = columns_of(list(iter_batches(message)), range_of(0, 1))
    (row,) = columns.to_arrow(SCHEMA).to_pylist()
    assert (row["value"], row["timestamp"], row["timestampType"]) == (
        b"v",
        EPOCH + datetime.timedelta(milliseconds=milliseconds),
        kind,
    )


_WITHOUT_PANDAS = """
import sys
import klamm.dataframes.spark.source
from klamm.protocol.records import Record, encode_batch, iter_batches
from tests.unit.dataframes.test_columns import SCHEMA, columns_of, range_of
batches = iter_batches(encode_batch([Record(b"k", None, (), 1 << 62, 0), Record(b"key", b"v", (), 1, 1)]))
(columns,) = columns_of(list(batches), range_of(0, 2))
assert columns.to_arrow(SCHEMA).num_rows == 2
sys.exit(not {"pandas", "klamm.dataframes.writer"}.isdisjoint(sys.modules))
"""


@pytest.mark.process
def test_records_without_headers_are_read_without_pandas_and_writer() -> None:
    """The import of pandas takes half a second of CPU time in each of Spark's Python processes."""
    subprocess.run([sys.executable, "-c", _WITHOUT_PANDAS], check=True)


def test_unknown_codec_is_rejected() -> None:
    data = encode_batch([Record(b"k", b"v", (), 5, 0)])
    data[22] = 7
    with pytest.raises(UnsupportedCompressionTypeError, match="7"):
        list(columns_of(list(iter_batches(data)), range_of(0, 1)))
