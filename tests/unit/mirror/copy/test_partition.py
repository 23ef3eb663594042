from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.data.batches import ProducerStamp
from klamm.mirror.copy.batch import MAX_IN_FLIGHT
from klamm.mirror.copy.partition import PartitionCopy, PartitionId
from klamm.mirror.progress.partition_progress import CopyState
from klamm.protocol.records import Codec, Record, RecordBatch, TimestampType, decode_records, encode_batch

if TYPE_CHECKING:
    from klamm.mirror.copy.batch import Outgoing

OURS = ProducerStamp(7, 0)
SIZE = 1 << 20


def partition() -> PartitionCopy:
    return PartitionCopy(PartitionId("t", 0, "A.t"), start_offset=0, committed=True)


def fetch(
    copy: PartitionCopy,
    *counts: int,
    gap: int = 0,
    join_up_to: int = 0,
    is_far: bool = False,
    codec: Codec = Codec.NONE,
) -> None:
    data = bytearray()
    offset = copy.fetch_offset
    for count in counts:
        records = [Record(key=None, value=b"%d" % at, timestamp=at, offset=at) for at in range(offset, offset + count)]
        offset += count + gap
        data += encode_batch(records, last_offset=offset - 1, codec=codec)
    memory = BufferPool(max_free_bytes=SIZE).take(len(data))
    memory.data[: len(data)] = data
    copy.take(memoryview(memory.data)[: len(data)], memory, None, join_up_to=join_up_to, is_far=is_far)
    memory.release()


def send(copy: PartitionCopy, count: int = 1) -> list[Outgoing]:
    return [copy.next_batch(OURS) for _ in range(count)]


def sequences(batches: list[Outgoing]) -> list[int]:
    return [RecordBatch(batch.view).base_sequence for batch in batches]


def test_sequence_advances_by_record_count() -> None:
    copy = partition()
    fetch(copy, 3, 2, 1)
    assert sequences(send(copy, 3)) == [0, 3, 5]


def test_sequence_wraps_at_2_to_31() -> None:
    copy = partition()
    copy.producer, copy.sequence = OURS, 2**31 - 2
    fetch(copy, 3, 1)
    assert sequences(send(copy, 2)) == [2**31 - 2, 1]


def test_acknowledged_batch_advances_source_offset() -> None:
    copy = partition()
    fetch(copy, 3, 2)
    first, second = send(copy, 2)
    copy.acknowledge(first)
    assert copy.acked_offset == 3
    copy.acknowledge(second)
    assert (copy.acked_offset, copy.records_copied) == (5, 5)


def test_first_batch_of_producer_is_sent_alone() -> None:
    """A broker takes any sequence of a producer it does not know: rejected first, taken second would change places."""
    copy = partition()
    fetch(copy, 1, 1, 1)
    (first,) = send(copy)
    assert not copy.can_send(0.0)
    copy.put_back(first, "does not lead the partition yet", retry_at=0.0)
    assert send(copy) == [first]
    assert not copy.can_send(0.0)
    copy.acknowledge(first)
    send(copy)
    assert copy.can_send(0.0)
    copy.acknowledge(copy.in_flight[0])
    copy.renew_producer()
    copy.next_batch(ProducerStamp(8, 0))
    fetch(copy, 1)
    assert not copy.can_send(0.0), "the new one is not known either"


def test_at_most_five_batches_are_in_flight() -> None:
    copy = partition()
    fetch(copy, *[1] * 8)
    copy.acknowledge(send(copy)[0])
    send(copy, MAX_IN_FLIGHT)
    assert not copy.can_send(0.0)
    copy.acknowledge(copy.in_flight[0])
    assert copy.can_send(0.0)


def test_retried_batches_keep_order_and_sequences() -> None:
    copy = partition()
    fetch(copy, 1, 1, 1, 1)
    sent = send(copy, 3)
    for batch in sent:
        copy.put_back(batch, "leader moved", retry_at=1.0)
    assert (copy.state, copy.reason) == (CopyState.WAITING, "leader moved")
    assert not copy.can_send(0.5)
    again = send(copy, 4)
    assert [batch.next_offset for batch in again] == [1, 2, 3, 4]
    assert sequences(again) == [0, 1, 2, 3]
    copy.acknowledge(again[0])
    assert copy.state is CopyState.COPYING


def test_retried_batch_that_fails_again_stays_before_later_batches() -> None:
    copy = partition()
    fetch(copy, 1, 1, 1, 1)
    for batch in send(copy, 3):
        copy.put_back(batch, "leader moved", retry_at=0.0)
    (first,) = send(copy)
    copy.put_back(first, "leader moved again", retry_at=0.0)
    assert [batch.next_offset for batch in send(copy, 4)] == [1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(50))
def test_random_failures_keep_batch_order_and_source_offset_behind_appended_records(seed: int) -> None:
    """The target takes batches in order, as Kafka does for one producer; responses come in order, too."""
    chance, copy = random.Random(seed), partition()
    appended: list[int] = []
    skipped: set[int] = set()
    fetches = 30
    while copy.pending or copy.in_flight or fetches:
        if fetches and chance.random() < 0.5:
            fetches -= 1
            fetch(copy, *chance.choices([1, 2, 5], k=2))
        elif fetches and chance.random() < 0.3:  # a marker, whose response was on its way
            skipped.add(copy.fetch_offset)
            copy.skip_to(copy.fetch_offset + 1)
        for _ in range(chance.randint(1, 5)):
            if not copy.can_send(0.0):
                break
            copy.next_batch(OURS)
            assert sorted(batch.next_offset for batch in copy.in_flight) == [b.next_offset for b in copy.in_flight]
        has_failed = copy.retrying  # the target rejects what is behind a failed batch
        for batch in tuple(copy.in_flight)[: chance.randint(1, 5)]:
            has_failed |= chance.random() < 0.4
            if has_failed and chance.random() < 0.2 and copy.in_flight[0] is batch and len(copy.in_flight) == 1:
                copy.put_back(batch, "too large", retry_at=0.0)
                copy.split_first()
            elif has_failed:
                copy.put_back(batch, "no", retry_at=0.0)
            else:
                appended += [int(record.value or b"") for record in decode_records(RecordBatch(batch.view))]
                copy.acknowledge(batch)
            assert set(range(copy.acked_offset)) <= skipped.union(appended)
    assert copy.acked_offset == copy.fetch_offset
    assert appended == [offset for offset in range(copy.fetch_offset) if offset not in skipped]


def test_no_new_batch_is_sent_while_failed_batches_are_in_flight() -> None:
    copy = partition()
    fetch(copy, 1, 1, 1)
    first, second = send(copy, 2)
    copy.put_back(first, "why", retry_at=0.0)
    assert not copy.can_send(0.0)
    copy.put_back(second, "why", retry_at=0.0)
    assert copy.can_send(0.0)


def test_source_offset_waits_for_failed_batch_before_acknowledged_one() -> None:
    copy = partition()
    fetch(copy, 1, 1)
    first, second = send(copy, 2)
    copy.put_back(first, "appended, but not on enough replicas", retry_at=0.0)
    copy.acknowledge(second)
    assert copy.acked_offset == 0
    (again,) = send(copy)
    copy.acknowledge(again)
    assert copy.acked_offset == 2


def test_lost_producer_id_renumbers_pending_batches() -> None:
    copy = partition()
    fetch(copy, 2, 2)
    for batch in send(copy, 2):
        copy.put_back(batch, "unknown producer", retry_at=0.0)
    copy.renew_producer()
    fresh = [copy.next_batch(ProducerStamp(8, 0)) for _ in range(2)]
    assert sequences(fresh) == [0, 2]
    assert [RecordBatch(batch.view).producer_id for batch in fresh] == [8, 8]


def test_too_large_batch_is_split_with_its_sequences() -> None:
    copy = partition()
    fetch(copy, 5, 1)
    batch, behind = send(copy, 2)
    copy.put_back(batch, "too large", retry_at=0.0)
    copy.put_back(behind, "out of order", retry_at=0.0)
    assert copy.split_first()
    halves = send(copy, 3)
    assert sequences(halves) == [0, 2, 5]
    copy.acknowledge(halves[0])
    assert copy.acked_offset == 2, "a crash here continues with the second half"
    copy.acknowledge(halves[1])
    assert copy.acked_offset == 5
    values = [record.value for half in halves for record in decode_records(RecordBatch(half.view))]
    assert values == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_too_large_record_cannot_be_split() -> None:
    copy = partition()
    fetch(copy, 1)
    copy.put_back(send(copy)[0], "too large", retry_at=0.0)
    assert not copy.split_first()


def test_offset_gaps_are_closed_and_source_offsets_kept() -> None:
    copy = partition()
    fetch(copy, 2, 2, gap=3)
    sent = send(copy, 2)
    assert [batch.next_offset for batch in sent] == [5, 10]
    assert [RecordBatch(batch.view).last_offset_delta for batch in sent] == [1, 1]


def test_rebuilt_batch_is_dense_unless_offsets_are_missing_between_its_records() -> None:
    """K894-41: groups are translated exactly where records were copied without a gap, also where timestamps change."""

    def rebuilt(*offsets: int, start: int, kind: TimestampType = TimestampType.CREATE_TIME) -> Outgoing:
        copy = PartitionCopy(PartitionId("t", 0, "A.t"), start_offset=start, committed=True)
        records = [Record(key=None, value=b"", timestamp=at, offset=at) for at in offsets]
        data = encode_batch(records, last_offset=9, timestamp_type=kind, log_append_time=5)
        copy.take(memoryview(data), BufferPool(max_free_bytes=SIZE).take(len(data)), None)
        (batch,) = copy.pending
        return batch

    def shape(batch: Outgoing) -> tuple[bool, int, int, int]:
        return batch.is_dense, batch.record_count, batch.last_offset, batch.next_offset

    assert shape(rebuilt(7, 8, 9, start=7, kind=TimestampType.LOG_APPEND_TIME)) == (True, 3, 9, 10)
    assert shape(rebuilt(7, 8, 9, start=8)) == (True, 2, 9, 10), "resumed in the middle"
    assert shape(rebuilt(6, 7, start=6)) == (True, 2, 7, 10), "the last records were compacted away"
    assert shape(rebuilt(6, 7, 9, start=6)) == (False, 3, 9, 10)


def test_skipped_offsets_advance_after_previous_batch() -> None:
    copy = partition()
    empty = encode_batch([], base_offset=0, last_offset=1)
    memory = BufferPool(max_free_bytes=SIZE).take(len(empty))
    copy.take(memoryview(empty), memory, None)
    assert (copy.acked_offset, copy.fetch_offset) == (2, 2)
    fetch(copy, 1)
    copy.take(memoryview(encode_batch([], base_offset=3, last_offset=5)), memory, None)
    assert copy.acked_offset == 2
    copy.acknowledge(send(copy)[0])
    assert copy.acked_offset == 6


def test_stopped_partition_sends_no_batches() -> None:
    copy = partition()
    fetch(copy, 1)
    copy.stop("purged")
    assert not copy.can_send(0.0)
    copy.wait("something else", retry_at=0.0)
    assert (copy.state, copy.reason) == (CopyState.STOPPED, "purged")


def test_buffer_is_reused_after_all_its_batches_are_acknowledged() -> None:
    pool = BufferPool(max_free_bytes=SIZE)
    memory = pool.take(100_000)
    memory.retain()
    memory.release()
    assert pool.take(100_000).data is not memory.data
    memory.release()
    assert pool.take(100_000).data is memory.data


def test_small_batches_are_joined() -> None:
    # given
    copy = partition()
    fetch(copy, 3, 2, 4, join_up_to=SIZE)
    fetch(copy, 1)
    # when
    joined, single = send(copy)[0], copy.pending[0]
    # then
    assert (joined.record_count, joined.next_offset, joined.last_offset, joined.is_dense) == (9, 9, 8, True)
    assert [record.value for record in decode_records(RecordBatch(joined.view))] == [b"%d" % at for at in range(9)]
    copy.acknowledge(joined)
    assert copy.acked_offset == 9
    assert copy.next_batch(OURS) is single
    assert sequences([single]) == [9]


def test_compressed_batches_are_joined_for_distant_target() -> None:
    near, far = partition(), partition()
    for copy in (near, far):
        fetch(copy, *[2] * (MAX_IN_FLIGHT + 1), join_up_to=SIZE, codec=Codec.ZSTD, is_far=copy is far)
    assert [batch.record_count for batch in near.pending] == [2] * (MAX_IN_FLIGHT + 1)
    (joined,) = far.pending
    assert (joined.record_count, joined.next_offset) == (12, 12)
    assert [record.value for record in decode_records(RecordBatch(joined.view))] == [b"%d" % at for at in range(12)]


def test_few_compressed_batches_are_not_joined() -> None:
    copy = partition()
    fetch(copy, *[2] * MAX_IN_FLIGHT, join_up_to=SIZE, codec=Codec.ZSTD, is_far=True)
    assert [batch.record_count for batch in copy.pending] == [2] * MAX_IN_FLIGHT


def test_joined_batches_shrink_after_message_too_large() -> None:
    # given
    copy = partition()
    fetch(copy, *[10] * 8, join_up_to=SIZE)
    (joined,) = send(copy)
    # when
    copy.put_back(joined, "too large", retry_at=0.0)
    assert copy.split_first()
    # then: both halves take the place of the whole, and what comes next is not larger than they are
    halves = send(copy, 1)
    copy.acknowledge(halves[0])
    halves += send(copy, 1)
    assert [half.next_offset for half in halves] == [40, 80]
    assert sequences(halves) == [0, 40]
    fetch(copy, *[10] * 8, join_up_to=SIZE)
    assert len(copy.pending) > 1
    assert all(len(batch.view) <= len(joined.view) // 2 for batch in copy.pending)


def test_pending_batches_of_waiting_partition_hold_little_more_than_their_own_memory() -> None:
    # given
    copy = partition()
    # when
    for _ in range(20):
        offset = copy.fetch_offset
        data = encode_batch([Record(key=None, value=b"v", timestamp=0, offset=offset)], last_offset=offset)
        memory = BufferPool(max_free_bytes=SIZE).take(64 * 1024)
        memory.data[: len(data)] = data
        copy.take(memoryview(memory.data)[: len(data)], memory, None)
        copy.wait("no leader on the target", retry_at=0.0)
        memory.release()
    # then
    assert len(copy.pending) == 20
    assert sum(memoryview(batch.view.obj).nbytes for batch in copy.pending) < 2 * copy.pending_bytes
    assert sequences(send(copy, 2)) == [0, 1]


def test_batches_with_a_large_part_of_their_frame_are_not_copied() -> None:
    copy = partition()
    fetch(copy, 3, 2)
    assert all(batch.memory is not None for batch in copy.pending)
