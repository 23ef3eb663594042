"""Lookup of the records that a Fetch request returns, and the wait for more of them. No record is read here.

Steps of a request:

==========  ====================================================  =====================================================
Step        Partitions looked at                                  Next step
==========  ====================================================  =====================================================
``find``    all; each topic is authorized once                    end, if there are ``min_bytes`` or an error
``_wait``   none; their logs report appends                       find again, when enough was appended or the time is
                                                                  over
find again  those with an append since, those with records so     end; with read_committed wait again if the appended
            far (compaction may have replaced their file) and     records must not be read yet
            those without a log
==========  ====================================================  =====================================================

A consumer of 1,000 partitions with one busy one so costs one look at each partition per request, and one more at the
busy one.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from klamm.broker.requests.partitions import find_topic, leader_log
from klamm.protocol.errors import ErrorCode, KafkaApiError, OffsetOutOfRangeError
from klamm.protocol.primitives import ZERO_UUID
from klamm.security.acls import AclOperation
from klamm.server.fetch_response import PartitionRead
from klamm.storage.log import aborted_in, find_committed

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from klamm.broker.context import RequestContext
    from klamm.broker.fetch.sessions import FetchPartition
    from klamm.broker.topics.catalog import Topic
    from klamm.protocol.messages.fetch import FetchRequest
    from klamm.storage.log import PartitionLog

_READ_COMMITTED: Final = 1
"""Value of ``isolation_level``; 0 is read_uncommitted."""
_NAMES_LEADER: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""Errors that are answered with the current leader and its epoch (KIP-951)."""
_UNKNOWN: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class _Waiter:
    """Wait of a request for a number of appended bytes."""

    __slots__ = ("_left", "changed", "woken")

    def __init__(self, min_bytes: int, changed: set[PartitionLog]) -> None:
        self._left = min_bytes
        self.changed = changed
        """Logs with an append since the last look at them."""
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def appended(self, log: PartitionLog, size: int) -> None:
        """Count appended bytes, and end the wait when they are enough."""
        self.changed.add(log)
        self._left -= size
        if self._left <= 0:
            self.wake()

    def wake(self) -> None:
        """End the wait."""
        if not self.woken.done():
            self.woken.set_result(None)


class FoundPartition:
    """A partition of the request, its answer, and its log as it was found."""

    __slots__ = ("answer", "log", "seen", "wanted")

    def __init__(self, wanted: FetchPartition) -> None:
        self.wanted = wanted
        self.answer: PartitionRead
        self.log: PartitionLog | None = None
        """None if the partition has an error before its log is found."""
        self.seen = -1
        """High watermark of the log when it was looked at."""


class FetchLookup:
    """Lookup for one Fetch request; see the module for its steps. Used on the event loop only.

    Args:
        partitions: Partitions to read, in the order in which they are served.
        request: The request.
        context: Context of the request.
    """

    def __init__(self, partitions: Sequence[FetchPartition], request: FetchRequest, context: RequestContext) -> None:
        self._wanted = partitions
        self._request = request
        self._context = context
        self._is_committed = request.isolation_level == _READ_COMMITTED
        self._topic: Topic | None = None
        """Topic of the partition looked at last, which the next partitions of the topic share; None at first."""
        self._named, self._topic_id = "", ZERO_UUID
        max_bytes = min(request.max_bytes, context.services.configs.int_value("fetch.max.bytes"))
        if context.throttles is not None:
            max_bytes = min(max_bytes, context.throttles.max_fetch_bytes(context.session, context.client_id))
        self._max_bytes = max_bytes
        self._min_bytes = min(request.min_bytes, max_bytes)
        self.size = 0
        """Bytes of records found."""
        self._has_failed = False
        self.partitions: Sequence[FoundPartition] = ()

    async def find(self) -> None:
        """Find the records of all partitions. If they are too few, wait up to ``max_wait_ms`` for more."""
        self.partitions = await self._context.time_slice.listed(map(FoundPartition, self._wanted))
        await self._look_at(None)
        if self._request.max_wait_ms <= 0 or not self._is_too_little():
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._request.max_wait_ms / 1000
        while self._is_too_little():
            await self._look_at(await self._wait(deadline - loop.time()))
            # Records of an open transaction are in the log, but must not be read yet.
            if not self._is_committed or loop.time() >= deadline:
                return

    def _is_too_little(self) -> bool:
        if self.size >= self._min_bytes or self._has_failed:
            return False
        return any(each.log is not None for each in self.partitions)

    async def _wait(self, timeout_s: float) -> Set[PartitionLog]:
        """Wait for more records; return the logs with appends since they were looked at."""
        logs = [(each.log, each.seen) for each in self.partitions if each.log is not None]
        # Appends between the look and the registration of the waiter do not wake it.
        changed = {log for log, seen in logs if log.high_watermark != seen}
        if changed:
            return changed
        waiter = _Waiter(self._min_bytes - self.size, changed)
        timer = asyncio.get_running_loop().call_later(timeout_s, waiter.wake)
        for log, _ in logs:
            log.waiters.add(waiter)
        try:
            await waiter.woken
        finally:
            timer.cancel()
            for log, _ in logs:
                log.waiters.discard(waiter)
        self._context.time_slice.restart()
        return waiter.changed

    async def _look_at(self, changed: Set[PartitionLog] | None) -> None:
        """Look at partitions.

        Args:
            changed: Logs with appends since the last look; None means that all partitions are looked at.
        """
        self.size, self._has_failed = 0, False
        self._topic = None
        time_slice = self._context.time_slice
        left = self._max_bytes
        for each in self.partitions:
            if changed is not None and each.log is not None and each.log not in changed and not each.answer.records:
                continue
            if time.perf_counter() >= time_slice.ends_at:
                await time_slice.give_way()
            wanted = each.wanted
            answer = PartitionRead(topic=wanted.topic, topic_id=wanted.topic_id, partition=wanted.partition)
            each.answer, each.log = answer, None
            try:
                self._find(each, left)
            except KafkaApiError as error:
                answer.error_code = error.error_code
                # An unknown partition must not end the wait: its client would retry without a pause.
                self._has_failed = self._has_failed or error.error_code not in _UNKNOWN
            size = len(answer.records)
            left -= size
            self.size += size

    def _find(self, each: FoundPartition, left: int) -> None:
        wanted, answer = each.wanted, each.answer
        if self._topic is None or wanted.topic is not self._named or wanted.topic_id is not self._topic_id:
            self._topic = find_topic(self._context, AclOperation.READ, name=wanted.topic, topic_id=wanted.topic_id)
            self._named, self._topic_id = wanted.topic, wanted.topic_id
        topic = self._topic
        try:
            log = leader_log(self._context, topic, wanted.partition, current_leader_epoch=wanted.current_leader_epoch)
        except KafkaApiError as error:
            if error.error_code in _NAMES_LEADER:
                cluster = self._context.services.cluster
                answer.current_leader = cluster.leader(topic.partitions[wanted.partition]), cluster.leader_epoch
            raise
        each.log, each.seen = log, log.high_watermark
        if wanted.last_fetched_epoch >= 0 and self._has_diverged(wanted, answer, log):
            self._has_failed = True
        elif (offset := wanted.fetch_offset) != each.seen:
            max_bytes = min(wanted.max_bytes, left)
            if self._is_committed:
                records = find_committed(log, offset, max_bytes, min_one_batch=self.size == 0)
                answer.aborted = aborted_in(log, offset, records)
            else:
                records = log.find(offset, max_bytes, min_one_batch=self.size == 0)
            answer.records = b"" if records is None else records
        answer.high_watermark, answer.log_start_offset = log.high_watermark, log.log_start_offset
        answer.last_stable_offset = log.last_stable_offset

    def _has_diverged(self, wanted: FetchPartition, answer: PartitionRead, log: PartitionLog) -> bool:
        """Return whether the client's log has diverged from this one (KIP-595), and set where."""
        diverging = log.end_offset_for_epoch(wanted.last_fetched_epoch)
        if diverging.epoch < 0:
            raise OffsetOutOfRangeError(f"Leader epoch {wanted.last_fetched_epoch} of {log.name} is not known")
        if diverging.epoch >= wanted.last_fetched_epoch and diverging.start_offset >= wanted.fetch_offset:
            return False
        answer.diverging_epoch = diverging
        return True
