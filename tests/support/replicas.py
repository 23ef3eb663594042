"""A source log and replicas in memory. The replicas fetch as Kafka's AbstractFetcherThread and ReplicaFetcherThread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from klamm.mirror.replica.leader_partition import LeaderPartition, Presence
from klamm.mirror.replica.window import Window, read_chunk
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.fetch import FetchRequest
from klamm.protocol.records import Record, encode_batch, iter_batches
from klamm.protocol.records.batch import patch_header

MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch in a log."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    data: bytes


def stored_batch(base_offset: int, count: int, leader_epoch: int) -> StoredBatch:
    """Return a batch of small records."""
    records = [Record(None, b"%d" % (base_offset + at), (), 1, at) for at in range(count)]
    data = bytearray(encode_batch(records))
    patch_header(data, base_offset=base_offset, partition_leader_epoch=leader_epoch)
    return StoredBatch(base_offset, base_offset + count, leader_epoch, bytes(data))


@dataclass
class SourceLog:
    """Log of a source partition."""

    batches: list[StoredBatch] = field(default_factory=list)
    log_start: int = 0
    end: int = 0
    leader_epoch: int = 0

    def produce(self, count: int = 1, hole: int = 0) -> None:
        """Append a batch, after offsets whose records compaction has removed."""
        batch = stored_batch(self.end + hole, count, self.leader_epoch)
        self.batches.append(batch)
        self.end = batch.next_offset

    def purge(self, offset: int) -> None:
        """Delete the records before an offset."""
        self.log_start = max(self.log_start, min(offset, self.end))
        self.batches = [batch for batch in self.batches if batch.next_offset > self.log_start]

    def read(self, offset: int, max_bytes: int = MAX_BYTES) -> bytes:
        """Return batches from the one with an offset on."""
        out = b""
        for batch in self.batches:
            if batch.next_offset > offset and (not out or len(out) + len(batch.data) <= max_bytes):
                out += batch.data
        return out


def copy_once(source: SourceLog, leader: LeaderPartition, now: float, max_bytes: int = MAX_BYTES) -> None:
    """Do what a copier does: read the source for each open window."""
    leader.begin(source.log_start, source.end)
    for window in (leader.open_tail(now), leader.open_catch_up(now)):
        if window is not None and window.end >= source.log_start:
            feed(source, leader, window, now, max_bytes)


def feed(source: SourceLog, leader: LeaderPartition, window: Window, now: float, max_bytes: int = MAX_BYTES) -> None:
    """Append what the source has after the end of a window."""
    chunk, _ = read_chunk(memoryview(source.read(window.end, max_bytes)), window.end, leader.floor)
    leader.extend(window, chunk, source.end, now)


@dataclass
class KafkaFollower:
    """Replica that does what a leader's answer makes Kafka's replica fetcher do."""

    node_id: int
    batches: list[StoredBatch] = field(default_factory=list)
    log_start: int = 0
    end: int = 0
    high_watermark: int = 0
    is_failed: bool = False
    """Whether the fetcher gave the partition up."""
    removed: list[StoredBatch] = field(default_factory=list)
    """Batches that the leader's answers removed."""

    @property
    def last_epoch(self) -> int:
        """Leader epoch of the last batch, -1 for none."""
        return self.batches[-1].leader_epoch if self.batches else -1

    def request(self, leader_epoch: int) -> FetchRequest.FetchPartition:
        """Return the fetch of the partition."""
        return FetchRequest.FetchPartition(
            partition=0,
            current_leader_epoch=leader_epoch,
            fetch_offset=self.end,
            last_fetched_epoch=self.last_epoch,
            log_start_offset=self.log_start,
            partition_max_bytes=MAX_BYTES,
        )

    def fetch(self, leader: LeaderPartition, now: float, max_bytes: int = MAX_BYTES) -> ErrorCode | None:
        """Fetch once. Return the error code of the answer, None without an answer."""
        if self.is_failed or leader.leadership is None:
            return None
        epoch = leader.leadership.leader_epoch
        answer = leader.fetch(self.node_id, self.request(epoch), max_bytes, Presence(now))
        if answer is None:
            return None
        assert answer.diverging_epoch is None
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._start_again(leader, epoch)
        elif answer.error_code == ErrorCode.FENCED_LEADER_EPOCH:
            self.is_failed = True
        elif answer.error_code == ErrorCode.NONE:
            self._append(bytes(cast("memoryview", answer.records)), epoch)
            self.high_watermark = max(self.log_start, min(answer.high_watermark, self.end))
            if answer.log_start_offset > self.high_watermark:
                self.is_failed = True
            self.log_start = max(self.log_start, answer.log_start_offset)
        return answer.error_code

    def _append(self, records: bytes, leader_epoch: int) -> None:
        for batch in iter_batches(records):
            if batch.partition_leader_epoch > leader_epoch:
                return  # skipped, and fetched again at full speed
            if batch.base_offset < self.end:
                assert not self.batches, "Offset mismatch"
                self.log_start = batch.base_offset
            next_offset = batch.last_offset + 1
            self.batches.append(
                StoredBatch(batch.base_offset, next_offset, batch.partition_leader_epoch, bytes(batch.buffer))
            )
            self.end = next_offset

    def _start_again(self, leader: LeaderPartition, leader_epoch: int) -> None:
        error, end = leader.end_offset(leader_epoch)
        if error:
            return
        if end < self.end:
            self._keep_before(end)
            return
        error, start = leader.start_offset(leader_epoch)
        if not error and start > self.end:
            self._keep_before(0)
            self.log_start = self.end = start

    def _keep_before(self, offset: int) -> None:
        self.removed += [batch for batch in self.batches if batch.next_offset > offset]
        self.batches = [batch for batch in self.batches if batch.next_offset <= offset]
        self.end = min(self.end, offset)
