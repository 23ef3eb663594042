"""Conversion of rows to records."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from klamm.dataframes.errors import WritingError
from klamm.dataframes.options import write_options
from klamm.dataframes.rows import NO_PARTITION, rows_of
from klamm.properties import SettingsError
from klamm.protocol.records import Codec, encode_headers

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NEEDED = {"kafka.bootstrap.servers": "a:1"}


def batch(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


def test_every_column_becomes_part_of_the_record() -> None:
    # given
    noon = datetime.datetime(2023, 11, 14, 22, 13, 20, 1500, tzinfo=datetime.UTC)
    rows = batch(
        key=pa.array([b"k", None], pa.binary()),
        value=pa.array(["text", None], pa.string()),
        topic=["a", "b"],
        partition=pa.array([3, None], pa.int32()),
        timestamp=pa.array([noon, None], pa.timestamp("us", tz="UTC")),
        headers=pa.array([[{"key": "h", "value": b"x"}, {"key": "n", "value": None}], None], HEADERS),
    )
    # when
    built = rows_of(rows, None, now=lambda: 12.5)
    # then
    assert [built.topics[at] for at in built.topic_of] == ["a", "b"]
    assert built.partitions.tolist() == [3, NO_PARTITION]
    assert (built.keys.to_pylist(), built.values.to_pylist()) == ([b"k", None], [b"text", None])
    assert built.timestamps.tolist() == [1_700_000_000_001, 12_500]
    assert built.headers.to_pylist() == [encode_headers((("h", b"x"), ("n", None))), encode_headers(())]


def test_missing_or_null_columns_are_null() -> None:
    built = rows_of(batch(value=[b"v"], key=pa.nulls(1), partition=pa.nulls(1)), "t", now=lambda: 2.0)
    assert (built.keys.to_pylist(), built.partitions.tolist()) == ([None], [NO_PARTITION])
    assert built.timestamps.tolist() == [2000]


def test_topic_option_overrides_the_topic_column() -> None:
    assert rows_of(batch(value=[b"v"], topic=["column"]), "option").topics == ("option",)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": [b"v"], "topic": pa.array([None], pa.string())}, "A row has no topic"),
        ({"value": [b"v"], "topic": ["t"], "partition": pa.array([-1], pa.int32())}, "topic t has partition -1"),
        (
            {"value": [b"v"], "topic": ["t"], "headers": pa.array([[{"key": None, "value": b""}]], HEADERS)},
            "topic t has a header without a key",
        ),
    ],
)
def test_invalid_row_is_reported(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(WritingError, match=message):
        rows_of(batch(**columns), None)


def test_stream_is_written_exactly_once_and_batch_is_not() -> None:
    more = {"topic": "t", "kafka.compression.type": "zstd", "checkpointLocation": "/c", "queryName": "q"}
    stream = write_options(NEEDED | more, streaming=True, overwrite=False)
    assert (stream.exactly_once, stream.topic, stream.codec, stream.id_prefix) == (True, "t", Codec.ZSTD, "klamm-kafka")
    assert not write_options(NEEDED, streaming=False, overwrite=False).exactly_once
    assert not write_options(NEEDED | {"exactlyOnce": "false"}, streaming=True, overwrite=False).exactly_once


def test_write_options_without_an_effect_are_accepted(caplog: pytest.LogCaptureFixture) -> None:
    more = {"includeHeaders": "true", "kafka.acks": "all", "kafka.linger.ms": "5"}
    assert write_options(NEEDED | more, streaming=True, overwrite=False).exactly_once
    assert caplog.messages == ["kafka.linger.ms: without effect on klamm-kafka"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"exactlyOnce": "true"}, "only the batches of a stream"),
        ({"exactlyOnce": "perhaps"}, "exactlyOnce=perhaps: expected true or false"),
        ({"kafka.acks": "1"}, "kafka.acks=1: expected all"),
        ({"kafka.enable.idempotence": "FALSE"}, "kafka.enable.idempotence=false: expected true"),
        ({"kafka.compression.typ": "lz4"}, "kafka.compression.typ: not a property .*did you mean compression.type"),
        ({"kafka.compression.type": "rar"}, "kafka.compression.type=rar: expected one of none, gzip"),
        ({"kafka.transaction.timeout.ms": "2147483648"}, "a whole number from 1 to 2147483647"),
        ({"kafka.key.serializer": "x"}, "kafka.key.serializer=x: not supported: keys are binary or string"),
        ({"kafka.transaction.timeout.ms": "0"}, "kafka.transaction.timeout.ms=0: expected milliseconds"),
        ({"subscribe": "t"}, "subscribe: not an option of klamm-kafka; expected topic, exactlyOnce"),
    ],
)
def test_invalid_write_option_is_rejected(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        write_options(NEEDED | wrong, streaming=False, overwrite=False)


def test_overwrite_mode_is_rejected() -> None:
    with pytest.raises(SettingsError, match="mode overwrite"):
        write_options(NEEDED, streaming=False, overwrite=True)
