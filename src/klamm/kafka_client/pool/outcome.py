"""Future of a call that runs on another thread, for both threads and coroutines."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

Value = TypeVar("Value")


class Outcome(Future[Value]):
    """Future that can also be awaited: ``outcome.result(timeout)`` in a thread, ``await outcome`` in a coroutine."""

    def __await__(self) -> Generator[Any, None, Value]:
        """Wait on the running event loop. Cancelling the waiting task does not stop the call."""
        return asyncio.wrap_future(self).__await__()
