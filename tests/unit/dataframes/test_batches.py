"""Rows encoded as columns, compared with the encoder of single records and with Kafka's partitioner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from klamm.dataframes import batches
from klamm.dataframes.batches import RowBatch, batches_of
from klamm.dataframes.rows import Rows, joined
from klamm.dataframes.writer import partitions_of
from klamm.kafka_client.data.batches import ProducerStamp
from klamm.protocol.partitioner import partition_for_key
from klamm.protocol.records import (
    Codec,
    Record,
    RecordBatch,
    decode_records,
    encode_batch,
    encode_headers,
)

if TYPE_CHECKING:
    import pytest

PRODUCER = ProducerStamp(7, 3, is_transactional=True)
RECORDS = st.builds(
    Record,
    key=st.none() | st.binary(max_size=300),
    value=st.none() | st.binary(max_size=300),
    headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2).map(tuple),
    timestamp=st.integers(-1, 2**45),
    offset=st.just(0),
)


def rows_from(records: list[Record], *, partitions: list[int] | None = None, topics: list[str] | None = None) -> Rows:
    names = tuple(dict.fromkeys(topics or ["t"]))
    return Rows(
        topics=names,
        topic_of=np.array([names.index(topic) for topic in topics or ["t"] * len(records)], np.int32),
        partitions=np.array(partitions or [0] * len(records), np.int32),
        keys=pa.array([record.key for record in records], pa.binary()),
        values=pa.array([record.value for record in records], pa.binary()),
        timestamps=np.array([record.timestamp for record in records], np.int64),
        headers=pa.array([encode_headers(record.headers) for record in records], pa.binary()),
    )


def numbered(records: list[Record]) -> list[Record]:
    return [record._replace(offset=at) for at, record in enumerate(records)]


def bare(batch: RowBatch) -> list[Record]:
    return list(decode_records(RecordBatch(memoryview(batch.encode(PRODUCER, 5, Codec.NONE)))))


@given(st.lists(RECORDS, min_size=1, max_size=20), st.sampled_from([Codec.NONE, Codec.LZ4, Codec.ZSTD]))
def test_columns_are_encoded_like_single_records(records: list[Record], codec: Codec) -> None:
    (batch,) = batches_of(rows_from(records))
    expected = encode_batch(
        numbered(records), codec=codec, producer_id=7, producer_epoch=3, base_sequence=5, is_transactional=True
    )
    assert batch.encode(PRODUCER, 5, codec) == expected


@given(st.lists(st.tuples(RECORDS, st.integers(0, 3), st.sampled_from("ab")), min_size=1, max_size=30))
def test_rows_keep_their_partition_and_order(rows: list[tuple[Record, int, str]]) -> None:
    records, partitions, topics = (list(each) for each in zip(*rows, strict=True))
    by_partition: dict[tuple[str, int], list[Record]] = {}
    for each in batches_of(rows_from(records, partitions=partitions, topics=topics)):
        by_partition.setdefault((each.topic, each.partition), []).extend(bare(each))
    for (topic, partition), some in by_partition.items():
        expected = [record for record, at, name in rows if (at, name) == (partition, topic)]
        assert [record._replace(offset=0) for record in some] == expected
    assert sum(map(len, by_partition.values())) == len(rows)


def test_batches_are_cut_before_they_are_too_large_and_a_large_record_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 1000)
    records = [Record(None, bytes(size), timestamp=9) for size in (300, 300, 300, 5000, 10, 10)]
    assert [len(each) for each in batches_of(rows_from(records))] == [3, 1, 2]


def test_split_halves_keep_records_with_their_own_offsets() -> None:
    records = [Record(b"%d" % at, None, timestamp=100 + at) for at in range(5)]
    (batch,) = batches_of(rows_from(records))
    first, second = batch.halves()
    assert [bare(first), bare(second)] == [numbered(records[:2]), numbered(records[2:])]


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=50), st.integers(1, 100), st.integers(0, 3))
def test_keys_are_partitioned_like_kafka(keys: list[bytes], count: int, skipped: int) -> None:
    column: Any = pa.array([b"before"] * skipped + keys, pa.binary())[skipped:]
    partitions = partitions_of(column, np.full(len(keys), count, np.int64))
    assert partitions.tolist() == [partition_for_key(key, count) for key in keys]


def test_rows_of_several_batches_are_joined_with_their_topics() -> None:
    first = rows_from([Record(b"1", None), Record(b"2", None)], topics=["a", "b"])
    two = rows_from([Record(b"3", None), Record(b"4", None)], topics=["b", "c"])
    rows = joined([first, two])
    assert [rows.topics[at] for at in rows.topic_of] == ["a", "b", "b", "c"]
    assert rows.keys.to_pylist() == [b"1", b"2", b"3", b"4"]
