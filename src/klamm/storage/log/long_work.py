"""The thread that processes the records of large batches, while the event loop serves other clients."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_RECORDS: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="klamm-records")
"""One thread for all partitions. A second one would compete for the interpreter and double the decompressed memory."""


class AbandonedError(Exception):
    """The result of a piece of work is no longer needed."""


async def in_records_thread(work: Callable[[threading.Event], T]) -> T:
    """Run work in the thread for records and return its result.

    If the caller is cancelled because its client disconnected, work that has not started is dropped. Work that has
    started sees its event set and should raise AbandonedError.
    """
    abandoned = threading.Event()
    try:
        return await asyncio.get_running_loop().run_in_executor(_RECORDS, work, abandoned)
    finally:
        abandoned.set()
