"""Task that works with an internal topic while the gateway runs, and the thread of the topic's blocking calls."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


class TopicWorker:
    """One task and one thread. Used on the event loop only.

    Args:
        name: Name of the thread, after ``klamm-``.
        close_topic: Function that closes the topic's connections. The thread calls it last.
    """

    def __init__(self, name: str, close_topic: Callable[[], object]) -> None:
        self._close_topic = close_topic
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"klamm-{name}")
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Coroutine[Any, Any, None], subject: str) -> None:
        """Begin the task, which runs until ``close``. If it ends before, a defect of the subject is logged."""
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(lambda task: _log_end(task, subject))

    async def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a blocking function in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def close(self) -> None:
        """Stop the task, and close the connections after the calls in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.submit(self._close_topic)
        self._thread.shutdown(wait=False)


def _log_end(task: asyncio.Task[None], subject: str) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s has ended; restart the gateway", subject, exc_info=error)
