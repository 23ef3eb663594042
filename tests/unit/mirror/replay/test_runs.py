"""Writes that put source records at their offsets, against a log that assigns offsets as a broker does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.mirror.copy.batch import outgoing_of
from klamm.mirror.replay.runs import FILLERS_PER_BATCH, filler_batch, first_offset, is_hole, writes_of
from klamm.protocol.records import (
    Codec,
    ControlType,
    Record,
    RecordBatch,
    TimestampType,
    decode_records,
    encode_batch,
    encode_marker,
    patch_header,
)
from klamm.protocol.types import AbortedTransaction


class SourceLog:
    """Source batches with the records that a committed reader gets from them."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.end = 0
        self.expected: dict[int, tuple[int, bytes | None, bytes | None]] = {}
        self.aborted: list[AbortedTransaction] = []

    def append(self, kept: list[bool], *, codec: Codec, is_aborted: bool, append_time: int) -> None:
        """Append a batch. Compaction removed the records that are not ``kept``."""
        base, producer_id = self.end, len(self.aborted) + 1
        records = [
            Record(key=b"k%d" % offset, value=b"v%d" % offset, timestamp=offset, offset=offset)
            for offset, is_kept in enumerate(kept, base)
            if is_kept
        ]
        self.data += encode_batch(
            records,
            codec=codec,
            base_offset=base,
            last_offset=base + len(kept) - 1,
            is_transactional=is_aborted,
            producer_id=producer_id if is_aborted else -1,
            producer_epoch=0 if is_aborted else -1,
            base_sequence=0 if is_aborted else -1,
            timestamp_type=TimestampType.LOG_APPEND_TIME if append_time else TimestampType.CREATE_TIME,
            log_append_time=append_time or -1,
        )
        self.end += len(kept)
        if is_aborted:
            self.aborted.append(AbortedTransaction(producer_id=producer_id, first_offset=base))
            self._append_marker(producer_id)
        else:
            self.expected |= {
                record.offset: (append_time or record.timestamp, record.key, record.value) for record in records
            }

    def _append_marker(self, producer_id: int) -> None:
        marker = encode_marker(
            ControlType.ABORT, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=0
        )
        patch_header(marker, base_offset=self.end)
        self.data += marker
        self.end += 1


BATCHES = st.lists(
    st.tuples(
        st.lists(st.booleans(), min_size=1, max_size=12),
        st.sampled_from(Codec),
        st.booleans(),
        st.sampled_from([0, 0, 77]),
    ),
    max_size=12,
)


@given(batches=BATCHES, gap=st.integers(0, 3), start=st.integers(0, 20), max_bytes=st.sampled_from([150, 1 << 20]))
def test_each_committed_record_is_written_at_its_source_offset(
    batches: list[tuple[list[bool], Codec, bool, int]], gap: int, start: int, max_bytes: int
) -> None:
    # given
    source = SourceLog()
    for kept, codec, is_aborted, append_time in batches:
        source.end += gap
        source.append(kept, codec=codec, is_aborted=is_aborted, append_time=append_time)
    start = min(start, source.end)
    # when
    target: dict[int, tuple[int, bytes | None, bytes | None]] = {}
    position = log_end = start
    memory = BufferPool(max_free_bytes=0).take(1)
    for item in outgoing_of(memoryview(source.data), memory, start, source.aborted, join_up_to=4096):
        for write in writes_of(item, position, max_bytes=max_bytes):
            if is_hole(write):
                log_end += write.next_offset - position
            else:
                assert first_offset(write) == log_end
                for record in decode_records(RecordBatch(write.view)):
                    target[log_end + record.offset - RecordBatch(write.view).base_offset] = (
                        record.timestamp, record.key, record.value,
                    )  # fmt: skip
                log_end += write.record_count
            position = write.next_offset
            assert position == log_end
    # then
    assert log_end == max(start, source.end) if batches else log_end == start
    assert target == {offset: content for offset, content in source.expected.items() if offset >= start}


@pytest.mark.parametrize("count", [1, 64, 65, 8192, 8193])
def test_fillers_are_empty_records_with_a_key_and_one_timestamp(count: int) -> None:
    batch = RecordBatch(filler_batch(7, count, 5).view)

    expected = [Record(key=b"\0", value=b"", timestamp=5, offset=offset) for offset in range(count)]
    assert decode_records(batch) == expected
    assert (batch.record_count, batch.last_offset_delta, batch.max_timestamp) == (count, count - 1, 5)


def test_fillers_end_at_the_log_start_of_the_source() -> None:
    batch = filler_batch(200_000, FILLERS_PER_BATCH, 5)

    assert RecordBatch(batch.view).codec == Codec.ZSTD
    assert (first_offset(batch), batch.next_offset) == (200_000, 300_000)
    assert len(batch.view) < 100_000
