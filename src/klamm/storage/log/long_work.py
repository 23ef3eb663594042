"""The thread that goes through the records of large batches, so that the event loop serves other clients meanwhile."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_RECORDS: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="klamm-records")
"""One thread for all partitions. A second one would compete for the interpreter and hold decompressed records, too."""


class AbandonedError(Exception):
    """Nobody waits for the result of a piece of work any more."""


async def in_records_thread(work: Callable[[threading.Event], T]) -> T:
    """Run work in the thread for records and return its result.

    When the caller is cancelled, because its client has left, work that has not begun is dropped. Work that has begun
    finds its event set and should raise AbandonedError.
    """
    abandoned = threading.Event()
    try:
        return await asyncio.get_running_loop().run_in_executor(_RECORDS, work, abandoned)
    finally:
        abandoned.set()
