"""Helpers of background work: pauses of loops, the rate limit of repeated errors, the thread for large batches.

The broker's requests pause by ``TimeSlice``, which measures time. Storage cannot import it, so its loops count items.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Generic, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from uuid import UUID

    from klamm.storage.log.partition import PartitionLog

logger = logging.getLogger(__name__)

Item = TypeVar("Item")

_ITEMS_AT_ONCE: Final = 256


def with_pauses(items: Iterable[Item], *, at_once: int = _ITEMS_AT_ONCE) -> _PausingIterator[Item]:
    """Iterate over items, and let other tasks run before every ``at_once``-th item.

    Args:
        items: The items. Other tasks may change the underlying collection during a pause, so pass a copy.
        at_once: Number of items per turn of the event loop.
    """
    return _PausingIterator(items, at_once)


class _PausingIterator(Generic[Item]):
    """An asynchronous iterator that, unlike a generator, needs no closing."""

    __slots__ = ("_at_once", "_count", "_items")

    def __init__(self, items: Iterable[Item], at_once: int) -> None:
        self._items = iter(items)
        self._at_once = at_once
        self._count = 0

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Item:
        """Return the next item, after a pause if one is due."""
        for item in self._items:
            self._count += 1
            if self._count % self._at_once == 0:
                await asyncio.sleep(0)
            return item
        raise StopAsyncIteration


_REPEAT_S: Final = 600.0


class ErrorReports:
    """Logged errors by text: the first one is logged at once, repetitions at most every ten minutes.

    Args:
        now_s: Monotonic clock, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._silent_until: dict[str, float] = {}

    def report(self, name: str, failed: str, error: Exception) -> None:
        """Log an error, unless the same one was logged in the last ten minutes.

        Args:
            name: Subject of the sentence, such as ``topic-partition``.
            failed: Rest of the sentence, such as ``cannot be flushed``.
            error: Reason.
        """
        now_s = self._now_s()
        sentence = f"{name} {failed}"
        if now_s >= self._silent_until.get(sentence, now_s):
            self._silent_until[sentence] = now_s + _REPEAT_S
            logger.error("%s, will be retried: %s", sentence, error)


T = TypeVar("T")

_RECORDS: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="klamm-records")
"""One thread for all partitions. A second one would compete for the interpreter and double the decompressed memory."""


class AbandonedError(Exception):
    """The result of a piece of work is no longer needed."""


async def in_records_thread(work: Callable[[threading.Event], T]) -> T:
    """Run work in the thread for records and return its result.

    If the caller is cancelled because its client disconnected, work that has not started is dropped. Work receives an
    event that is set then, and should raise AbandonedError.
    """
    abandoned = threading.Event()
    try:
        return await asyncio.get_running_loop().run_in_executor(_RECORDS, work, abandoned)
    finally:
        abandoned.set()


class KeptLogs(Protocol):
    """The part of the log manager that housekeeping and the cleaner need.

    The manager owns both, so they cannot import it.
    """

    def loaded(self) -> Iterator[PartitionLog]:
        """Return the logs that are open."""
        ...

    def known(self) -> Sequence[tuple[UUID, int]]:
        """Return all partitions."""
        ...

    def has_directory(self, topic_id: UUID, partition: int) -> bool:
        """Return whether a partition had a directory when the broker started."""
        ...

    def get(self, topic_id: UUID, partition: int) -> PartitionLog | None:
        """Return the log of a partition, opening it if necessary."""
        ...

    async def flush(self, log: PartitionLog) -> None:
        """Make a log durable up to its current end offset."""
        ...

    async def checkpoint(self) -> None:
        """Write recovery points and log start offsets durably, and rename the files below the log start offsets."""
        ...

    @property
    def has_outdated_checkpoints(self) -> bool:
        """Return whether the checkpoint files contain offsets of directories that no longer exist."""
        ...

    async def remove_retired(self, now_ms: int) -> None:
        """Remove the files whose delay is over."""
        ...
