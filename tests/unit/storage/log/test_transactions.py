"""Open, committed and aborted transactions in a log, and the records that readers see."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.protocol.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from klamm.storage.log import append_marker, delete_records
from klamm.storage.log.cleaner import compact
from klamm.storage.log.housekeeping import HIGH_WATERMARK, apply_retention
from tests.support.logs import NOON_MS, CrashableLogs, batch, read_all
from tests.support.transactions import ABORT, COMMIT, committed_records, committed_values, end, write

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.storage.log import PartitionLog


def test_committed_records_are_read_when_their_transaction_has_ended(tmp_path: Path) -> None:
    log = CrashableLogs(tmp_path).log
    log.append(batch("before"))
    write(log, 1, "a", "b", sequence=0)
    log.append(batch("behind"))

    assert (log.last_stable_offset, committed_values(log)) == (1, ["before"])

    assert end(log, 1, COMMIT) == 4
    assert (log.last_stable_offset, committed_values(log)) == (5, ["before", "a", "b", "behind"])


def test_read_committed_skips_aborted_records(tmp_path: Path) -> None:
    log = CrashableLogs(tmp_path).log
    write(log, 1, "no", sequence=0)
    write(log, 2, "yes", sequence=0)
    end(log, 1, ABORT)
    write(log, 1, "later", sequence=1)

    assert (log.last_stable_offset, committed_values(log)) == (1, [])
    end(log, 2, COMMIT)
    assert (log.last_stable_offset, committed_values(log)) == (3, ["yes"])
    end(log, 1, COMMIT)
    assert committed_values(log) == ["yes", "later"]


def test_transaction_index_has_kafkas_format(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    write(crashable.log, 7, "open", sequence=0)
    write(crashable.log, 8, "no", sequence=0)
    end(crashable.log, 8, ABORT)

    (path,) = crashable.data_dir.glob("t-0/*.txnindex")
    assert list(struct.iter_unpack(">hqqqq", path.read_bytes())) == [(0, 8, 1, 2, 0)]


def test_transactional_batch_needs_a_verified_transaction(tmp_path: Path) -> None:
    log = CrashableLogs(tmp_path).log
    data = batch("x", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)

    with pytest.raises(InvalidTxnStateError):
        log.append(data)

    write(log, 1, "x", sequence=0)
    log.append(batch("y", producer_id=1, producer_epoch=0, base_sequence=1, is_transactional=True))
    assert log.end_offset == 2


def test_non_transactional_batch_in_open_transaction_is_rejected(tmp_path: Path) -> None:
    log = CrashableLogs(tmp_path).log
    write(log, 1, "x", sequence=0)

    with pytest.raises(InvalidTxnStateError):
        log.append(batch("y", producer_id=1, producer_epoch=0, base_sequence=1))


def test_unknown_producer_restarts_at_sequence_zero_after_its_error(tmp_path: Path) -> None:
    """KIP-890; without it the batches before may have been deleted."""
    log = CrashableLogs(tmp_path).log
    of_one, of_two = (
        batch("x", producer_id=number, producer_epoch=0, base_sequence=3, is_transactional=True) for number in (1, 2)
    )

    with pytest.raises(OutOfOrderSequenceError, match="Expected sequence 0 for transactions v2"):
        log.append(of_one, is_verified=True, begins_at_zero=True)
    assert (log.end_offset, len(log.producers)) == (0, 0)

    log.append(of_two, is_verified=True)
    assert log.end_offset == 1


def test_marker_with_newer_epoch_fences_the_old_producer(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    write(crashable.log, 1, "x", sequence=0)
    end(crashable.log, 1, ABORT, epoch=1)

    for _ in range(2):
        with pytest.raises(InvalidProducerEpochError):
            write(crashable.log, 1, "zombie", sequence=1)
        with pytest.raises(InvalidProducerEpochError):
            end(crashable.log, 1, COMMIT)
        crashable.open()  # also after a crash
    assert write(crashable.log, 1, "y", sequence=0, epoch=1) == 2


def test_marker_of_an_older_coordinator_epoch_is_rejected(tmp_path: Path) -> None:
    log = CrashableLogs(tmp_path).log
    append_marker(log, COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=5, now_ms=NOON_MS)

    with pytest.raises(TransactionCoordinatorFencedError):
        append_marker(log, COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=4, now_ms=NOON_MS)


def test_deleted_records_of_open_transaction_do_not_block_readers(tmp_path: Path) -> None:
    log = CrashableLogs(tmp_path).log
    write(log, 1, "x", "y", "z", sequence=0)

    delete_records(log, 2)

    assert log.last_stable_offset == 2
    end(log, 1, COMMIT)
    assert committed_values(log) == ["z"]


@pytest.mark.parametrize("is_ended", [False, True])
def test_batch_that_deleted_records_divide_keeps_its_transaction_after_a_crash(tmp_path: Path, is_ended: bool) -> None:
    crashable = CrashableLogs(tmp_path)
    write(crashable.log, 1, "x", "y", "z", sequence=0)
    if is_ended:
        end(crashable.log, 1, ABORT)
    delete_records(crashable.log, 2)
    asyncio.run(crashable.manager.checkpoint())

    crashable.open()

    if not is_ended:
        assert crashable.log.last_stable_offset == 2
        end(crashable.log, 1, ABORT)
    assert committed_values(crashable.log) == []


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_deleted_batches_still_count_for_their_producer_after_a_crash(tmp_path: Path, has_snapshot: bool) -> None:
    # given
    crashable = CrashableLogs(tmp_path)
    if has_snapshot:
        write(crashable.log, 1, "a", sequence=0)
    else:
        crashable.log.append(batch("a"))
    asyncio.run(crashable.manager.close())
    crashable.open()
    sequence = 1 if has_snapshot else 0
    write(crashable.log, 1, "b", sequence=sequence)
    delete_records(crashable.log, 2)
    asyncio.run(crashable.manager.checkpoint())
    # when
    crashable.open()
    # then
    assert write(crashable.log, 1, "b", sequence=sequence) == 1, "a retried batch is not appended again"
    assert write(crashable.log, 1, "c", sequence=sequence + 1) == 2


def test_deleted_marker_still_ends_its_transaction_after_a_crash(tmp_path: Path) -> None:
    # given
    crashable = CrashableLogs(tmp_path)
    write(crashable.log, 1, "a", sequence=0)
    asyncio.run(crashable.manager.close())
    crashable.open()
    end(crashable.log, 1, COMMIT)
    delete_records(crashable.log, 2)
    asyncio.run(crashable.manager.checkpoint())
    # when
    crashable.open()
    # then
    crashable.log.append(batch("b"))
    assert committed_values(crashable.log) == ["b"]


@pytest.mark.parametrize("start", [0, 1])
def test_log_that_lost_its_end_keeps_no_producers_of_before(tmp_path: Path, start: int) -> None:
    crashable = CrashableLogs(tmp_path, segment_bytes="200")
    write(crashable.log, 1, "lost", sequence=0)
    crashable.log.append(batch("x" * 100))
    delete_records(crashable.log, start)
    asyncio.run(_flush(crashable))
    for path in (tmp_path / "t-0").glob("*.log"):
        path.unlink()
    crashable.open()
    first = crashable.log.end_offset
    for _ in range(4):
        crashable.log.append(batch("new"))

    crashable.open()

    assert first == start
    assert (crashable.log.last_stable_offset, committed_values(crashable.log)) == (start + 4, ["new"] * 4)


def test_retention_deletes_the_transaction_index_with_its_segment(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path, segment_bytes="200", retention_bytes="0")
    for sequence in range(10):
        write(crashable.log, 1, "x" * 100, sequence=sequence)
        end(crashable.log, 1, ABORT)

    apply_retention(crashable.log, NOON_MS)
    asyncio.run(crashable.manager.checkpoint())

    assert list(crashable.data_dir.glob("t-0/*.txnindex")) == []
    assert committed_values(crashable.log) == []


def test_producer_with_an_open_transaction_does_not_expire(tmp_path: Path) -> None:
    log = CrashableLogs(tmp_path).log
    write(log, 1, "x", sequence=0)
    log.producers.expire(NOON_MS + 10**9)
    assert log.producers.has_open(1, 0)

    end(log, 1, ABORT)
    log.producers.expire(NOON_MS + 10**9)
    assert len(log.producers) == 0


def _compact(crashable: CrashableLogs) -> None:
    crashable.log.roll()
    asyncio.run(compact(crashable.log, crashable.clock()))


def test_compaction_removes_aborted_records_and_keeps_open_transactions(tmp_path: Path) -> None:
    crashable = CrashableLogs(
        tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio="0", delete_retention_ms="1000"
    )
    log = crashable.log
    log.append(batch("kept", key=b"a"))
    write(log, 1, "no", sequence=0, key=b"a")
    end(log, 1, ABORT)
    write(log, 1, "old", sequence=1, key=b"b")
    end(log, 1, COMMIT)
    write(log, 1, "new", sequence=2, key=b"b")
    end(log, 1, COMMIT)
    log.roll()
    write(log, 2, "open", sequence=0, key=b"a")

    _compact(crashable)

    assert [(record.offset, record.value) for record in committed_records(log)] == [(0, b"kept"), (5, b"new")]
    records = {record.offset: record.value for record in read_all(log)}
    assert records[0] == b"kept"
    assert records[7] == b"open", "an open transaction is not looked at yet"
    assert not {1, 3} & set(records)
    assert {2, 4, 6} <= set(records), "markers stay for the time being"
    crashable.open()
    assert committed_values(crashable.log) == ["kept", "new"]


def test_markers_expire_after_the_records_of_their_transaction(tmp_path: Path) -> None:
    crashable = CrashableLogs(
        tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio="0", delete_retention_ms="1000"
    )
    log = crashable.log
    write(log, 1, "no", sequence=0, key=b"a")
    end(log, 1, ABORT)
    write(log, 1, "old", sequence=1, key=b"b")
    end(log, 1, COMMIT)
    write(log, 1, "new", sequence=2, key=b"b")
    end(log, 1, COMMIT)
    offsets = []

    for _ in range(4):
        log.append(batch("x", key=b"filler"))
        _compact(crashable)
        offsets.append({record.offset for record in read_all(log)} & set(range(6)))
        crashable.clock.now_ms += 2_000

    assert offsets[0] == {1, 3, 4, 5}
    assert offsets[-1] == {4, 5}, "the last marker ends a transaction that is still there"
    assert committed_values(log) == ["new", "x"]
    assert not any(segment.aborted.entries for segment in log.segments)


class _Model:
    """What a reader of committed records has to find."""

    def __init__(self) -> None:
        self.sequences = [0, 0, 0]
        self.open: dict[int, list[int]] = {}
        self.committed: dict[int, str] = {}
        self.number = self.start = 0

    def step(self, log: PartitionLog, producer: int, action: str) -> None:
        if action == "plain":
            value = self._value()
            self.committed[log.append(batch(value)).base_offset] = value
        elif action.startswith("write"):
            values = [self._value() for _ in range(3 if action == "write three" else 1)]
            first = write(log, producer, *values, sequence=self.sequences[producer])
            self.sequences[producer] += len(values)
            self.open.setdefault(producer, []).extend(range(first, first + len(values)))
            self.committed.update(enumerate(values, first))
        elif action == "delete":
            self.start = delete_records(log, min(log.log_start_offset + producer + 1, log.high_watermark))
        elif action == "delete all":
            self.start = delete_records(log, HIGH_WATERMARK)
        elif producer in self.open:
            end(log, producer, COMMIT if action == "commit" else ABORT)
            for offset in self.open.pop(producer):
                if action == "abort":
                    del self.committed[offset]

    def _value(self) -> str:
        self.number += 1
        return str(self.number)

    def readable(self, end_offset: int) -> tuple[int, list[str]]:
        stable = max(self.start, min((offsets[0] for offsets in self.open.values()), default=end_offset))
        return stable, [value for offset, value in sorted(self.committed.items()) if self.start <= offset < stable]


STEP = st.tuples(
    st.integers(0, 2),
    st.sampled_from(
        ["write", "write three", "plain", "commit", "abort", "delete", "delete all", "crash", "stop", "flush"]
    ),
)
STEPS = st.lists(STEP, max_size=30) | st.lists(STEP, min_size=30, max_size=60)
"""Short and long histories: on average, ``lists`` without a minimum draws only five steps."""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, segment_bytes=st.sampled_from(["300", "1000", "100000"]), max_bytes=st.sampled_from([1, 400, 9999]))
def test_read_committed_is_correct_after_any_history(
    steps: list[tuple[int, str]], segment_bytes: str, max_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    crashable = CrashableLogs(tmp_path_factory.mktemp("log"), segment_bytes=segment_bytes)
    model = _Model()
    for producer, action in steps:
        if action == "crash":
            crashable.open()
        elif action == "stop":
            asyncio.run(crashable.manager.close())
            crashable.open()
        elif action == "flush":
            asyncio.run(_flush(crashable))
        else:
            model.step(crashable.log, producer, action)
            if action.startswith("delete"):
                asyncio.run(crashable.manager.checkpoint())  # a crash may undo it until then
        stable, values = model.readable(crashable.log.end_offset)
        assert crashable.log.last_stable_offset == stable
        assert committed_values(crashable.log, max_bytes) == values


async def _flush(crashable: CrashableLogs) -> None:
    await crashable.manager.flush(crashable.log)
    await crashable.manager.checkpoint()
