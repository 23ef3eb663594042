"""Rules that put each write of a partition at its offset."""

from __future__ import annotations

from klamm.kafka_client.data.batches import ProducerStamp
from klamm.mirror.copy.batch import Outgoing, SkippedOffsets
from klamm.mirror.copy.partition import PartitionCopy, PartitionId
from klamm.mirror.replay.partition import ReplayCopy
from klamm.protocol.records import Record, encode_batch

NOW = 10.0
UNUSED = ProducerStamp(-1, -1)
RESERVED = 1 << 62


def replay_copy(*, is_unproven: bool = False) -> ReplayCopy:
    """Return a copy that starts at offset 5 of a log with epoch 2, as incarnation 7."""
    start = PartitionCopy(PartitionId("t", 0, "A.t"), start_offset=5, committed=False)
    return ReplayCopy(
        start, producer=ProducerStamp(RESERVED, 2), next_sequence=40, incarnation=7, is_unproven=is_unproven
    )


def queue_hole(copy: ReplayCopy, next_offset: int) -> None:
    copy.enqueue(SkippedOffsets(next_offset, -1), 0.0)
    copy.fetch_offset = next_offset


def queue_batch(copy: ReplayCopy, count: int) -> None:
    first = copy.fetch_offset
    view = memoryview(encode_batch([Record(key=None, value=b"v", timestamp=1, offset=at) for at in range(count)]))
    copy.enqueue(Outgoing(view, count, first + count, 1, None, last_offset=first + count - 1, is_dense=True), 0.0)
    copy.fetch_offset = first + count


def test_first_marker_and_last_marker_of_a_hole_are_sent_alone() -> None:
    copy = replay_copy()
    queue_hole(copy, 30)

    counts = []
    while count := copy.markers_due(NOW):
        counts.append(count)
        copy.filled(copy.acked_offset + count)

    assert counts == [1, 23, 1]
    assert copy.acked_offset == 30


def test_nothing_else_is_in_flight_with_a_marker() -> None:
    copy = replay_copy()
    queue_batch(copy, 3)
    queue_hole(copy, 9)
    queue_batch(copy, 2)
    batch = copy.next_batch(UNUSED)
    assert (copy.markers_due(NOW), copy.can_send(NOW)) == (0, False)

    copy.acknowledge(batch)
    copy.sent_markers = copy.markers_due(NOW)
    assert copy.sent_markers == 1
    assert (copy.markers_due(NOW), copy.can_send(NOW)) == (0, False)

    copy.filled(9)
    assert copy.can_send(NOW)


def test_batches_take_the_epoch_of_the_log_and_start_at_sequence_0_after_the_first_marker() -> None:
    copy = replay_copy()
    queue_batch(copy, 3)
    queue_hole(copy, 9)
    queue_batch(copy, 2)
    first = copy.next_batch(UNUSED)
    assert (first.producer, first.base_sequence) == (ProducerStamp(RESERVED, 2), 40)
    copy.acknowledge(first)
    copy.filled(9)

    second = copy.next_batch(UNUSED)
    assert (second.producer, second.base_sequence) == (ProducerStamp(RESERVED, 7), 0)


def test_barrier_is_needed_only_for_a_single_missing_offset_of_a_new_writer() -> None:
    single, several, proven, after_batch = (replay_copy(is_unproven=is_new) for is_new in (True, True, False, True))
    queue_batch(after_batch, 1)
    after_batch.acknowledge(after_batch.next_batch(UNUSED))
    for copy, length in ((single, 1), (several, 2), (proven, 1), (after_batch, 1)):
        queue_hole(copy, copy.fetch_offset + length)

    assert [copy.needs_barrier for copy in (single, several, proven, after_batch)] == [True, False, False, False]


def test_failed_copy_sends_nothing_more() -> None:
    copy = replay_copy()
    queue_batch(copy, 1)
    queue_hole(copy, 9)

    copy.fail("connection lost", in_doubt=True)

    assert (copy.can_send(NOW), copy.markers_due(NOW), copy.is_idle) == (False, 0, False)


def test_fillers_are_queued_up_to_the_log_start_of_the_source() -> None:
    copy = replay_copy()
    copy.begin_with_fillers(250_000, 77)

    copy.queue_fillers()

    assert [each.next_offset for each in copy.pending] == [100_005, 200_005, 250_000]
    assert not copy.is_settled
    while copy.pending:
        copy.acknowledge(copy.next_batch(UNUSED))
    assert copy.has_written_fillers
