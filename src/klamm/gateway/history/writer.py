"""Records of changes on their way to the internal topic.

The upstream has made a change when its record is written, so a record cannot keep a change from being made. A client
gets its response after the record is in the topic, if that takes no longer than ``WAIT_S``. While the topic cannot be
written, clients do not wait: records are kept up to ``MAX_WAITING_BYTES`` and written later. Those beyond are lost,
which is counted and logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from klamm.gateway.history.log import TOPIC
from klamm.gateway.upstream.internal_topic import InternalTopicGoneError
from klamm.gateway.upstream.topic_worker import TopicWorker
from klamm.kafka_client.data.records import RecordsRejectedError
from klamm.kafka_client.errors import CLUSTER_ERRORS, INVALID_RECORDS_CODES, error_words
from klamm.retries import backoff_s

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from klamm.monitoring.exposition import Page
    from klamm.protocol.records import Record

logger = logging.getLogger(__name__)

WAIT_S: Final = 2.0
"""Seconds that the response to a change waits for its record."""
CLOSE_S: Final = 2.0
"""Seconds that the stop of the gateway waits for the last records."""
MAX_WAITING_BYTES: Final = 32 * 1024 * 1024
"""Size of the records that wait to be written."""
_MAX_BATCH_BYTES: Final = 256 * 1024
"""Size after which another batch begins. Brokers accept 1 MiB by default."""
_RECORD_BYTES: Final = 300
"""Memory of a record beside its key and value, estimated."""
_FIRST_BACKOFF_S: Final = 0.05
_LAST_BACKOFF_S: Final = 1.0
_TROUBLE_AFTER: Final = 4
"""Number of failures in a row after which clients do not wait. A topic that was just created is not known at once."""


class AppendedTopic(Protocol):
    """Topic to which records are appended. Calls block."""

    def append(self, records: Sequence[Record]) -> None:
        """Write a batch of records."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class HistoryWriter:
    """Writer of the change history in one process of a gateway. Used on the event loop only.

    Args:
        topic: The internal topic. It is used in the writer's thread only.
    """

    def __init__(self, topic: AppendedTopic) -> None:
        self._topic = topic
        self._waiting: deque[Record] = deque()
        self._authors: deque[str] = deque()
        """Authors of the records that wait, one for each."""
        self._waiting_bytes = 0
        self._wanted = asyncio.Event()
        self._none_left = asyncio.Event()
        self._none_left.set()
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Clients that wait, each with the value of ``_done`` at which its records are written."""
        self._added = 0
        self._done = 0
        """Number of records that are written or lost."""
        self._is_slow = False
        """Whether the topic cannot be written at present, so that clients do not wait."""
        self._is_topic_missing = True
        """Whether the topic must be created, or looked up for the first time."""
        self._one_by_one = 0
        """Number of records to send alone, because one of them is rejected."""
        self._failures = 0
        self._written_count = 0
        self._lost_count = 0
        self._worker = TopicWorker(f"write-{TOPIC}", topic.close)

    def start(self, create: Callable[[], Awaitable[None]]) -> None:
        """Write records until ``close``. ``create`` creates the topic if it does not exist."""
        self._wanted.set()
        self._worker.start(self._run(create), "The change history")

    def add(self, records: Sequence[Record], *, author: str) -> None:
        """Queue the records of one request, all or none.

        Args:
            records: The records.
            author: Author of the changes, for the log.
        """
        size = _size(records)
        if self._waiting_bytes + size > MAX_WAITING_BYTES:
            self._lost_count += len(records)
            logger.error("The change history lacks %d changes by %s: it cannot be written", len(records), author)
            return
        self._waiting.extend(records)
        self._authors.extend([author] * len(records))
        self._none_left.clear()
        self._waiting_bytes += size
        self._added += len(records)
        self._wanted.set()

    async def written(self) -> None:
        """Wait until the records queued so far are in the topic, for a moment at most."""
        if self._is_slow or self._done == self._added:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._added, waiter))
        try:
            async with asyncio.timeout(WAIT_S):
                await waiter
        except TimeoutError:
            self._is_slow = True

    async def close(self) -> None:
        """Write what waits, for a moment at most, then close the connections."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._none_left.wait()
        await self._worker.close()
        if self._waiting:
            authors = ", ".join(sorted(set(self._authors)))
            logger.error(
                "The change history lacks %d changes by %s: it could not be written", len(self._waiting), authors
            )

    def report(self, page: Page) -> None:
        """Add the metrics."""
        page.family(
            "klamm_gateway_history_changes_total",
            "counter",
            "Changes of clients, by whether the change history has them.",
            [({"outcome": "recorded"}, self._written_count), ({"outcome": "lost"}, self._lost_count)],
        )
        page.family(
            "klamm_gateway_history_waiting_changes",
            "gauge",
            "Changes that are not in the change history yet.",
            [({}, len(self._waiting))],
        )

    async def _run(self, create: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._waiting or self._is_topic_missing:
                try:
                    await self._step(create)
                except (*CLUSTER_ERRORS, InternalTopicGoneError) as error:
                    await self._pause(error)
                else:
                    if self._failures >= _TROUBLE_AFTER:
                        logger.info("The change history can be written again")
                    self._failures, self._is_slow = 0, False

    async def _step(self, create: Callable[[], Awaitable[None]]) -> None:
        """Create the topic if it is missing, then write one batch."""
        if self._is_topic_missing:
            await create()
            self._is_topic_missing = False
        if not self._waiting:
            return
        some = self._next_batch()
        try:
            await self._worker.call(self._topic.append, some)
        except RecordsRejectedError as error:
            if not error.codes & INVALID_RECORDS_CODES:
                raise
            if len(some) > 1:
                self._one_by_one = len(some)
                return
            logger.warning("The change history lacks a change of %r by %s: %s", some[0].key, self._authors[0], error)
            self._lost_count += 1
        else:
            self._written_count += len(some)
        self._one_by_one = max(0, self._one_by_one - 1)
        self._remove(len(some))

    def _next_batch(self) -> list[Record]:
        """Return the oldest records, as many as brokers accept in one batch, or a single one after a rejection."""
        batch: list[Record] = []
        size = 0
        for record in self._waiting:
            batch.append(record._replace(offset=len(batch)))
            size += _size([record])
            if self._one_by_one or size >= _MAX_BATCH_BYTES:
                break
        return batch

    def _remove(self, count: int) -> None:
        """Remove the oldest records, and release the clients that wait for them."""
        for _ in range(count):
            self._waiting_bytes -= _size([self._waiting.popleft()])
            self._authors.popleft()
        self._done += count
        while self._waiters and self._waiters[0][0] <= self._done:
            self._release()
        if not self._waiting:
            self._none_left.set()

    def _release(self) -> None:
        _, waiter = self._waiters.popleft()
        if not waiter.done():
            waiter.set_result(None)

    async def _pause(self, error: Exception) -> None:
        """Wait before another attempt. Clients no longer wait when there were several."""
        self._failures += 1
        self._is_topic_missing |= isinstance(error, InternalTopicGoneError)
        if self._failures == _TROUBLE_AFTER:
            logger.warning("The change history cannot be written, trying again: %s", error_words(error))
        if self._failures >= _TROUBLE_AFTER:
            self._is_slow = True
            while self._waiters:
                self._release()
        await asyncio.sleep(backoff_s(self._failures, _FIRST_BACKOFF_S, _LAST_BACKOFF_S))


def _size(records: Sequence[Record]) -> int:
    return sum(len(record.key or b"") + len(record.value or b"") + _RECORD_BYTES for record in records)
