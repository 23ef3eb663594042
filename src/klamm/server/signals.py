"""Signals of a server process: SIGTERM and SIGINT stop it, SIGHUP reloads what can be reloaded."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

logger = logging.getLogger(__name__)

_TERMINAL: Final = "/dev/tty"
"""Controlling terminal of the process that opens it. It cannot be opened if there is none, or after it was closed."""


class StartStoppedError(Exception):
    """The process is to stop, and its start was not complete."""


async def unless_stopped(stop: asyncio.Event, step: Coroutine[Any, Any, T]) -> T:
    """Return the result of a step of the start. The step is cancelled if the process is to stop before.

    Args:
        stop: Set when the process is to stop, as in ``ProcessSignals``.
        step: Step that may take any time, such as the creation of a policy.

    Raises:
        StartStoppedError: The process is to stop.
    """
    working, stopping = asyncio.create_task(step), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
    finally:
        stopping.cancel()
        working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    raise StartStoppedError


class ProcessSignals:
    """Handlers of the signals of this process, from the first moment on. Create it on the event loop.

    SIGHUP has two senders. A service manager sends it for a reload (``systemctl reload``), and must never end the
    process by it. The system sends it when the terminal of the process is closed. The process then stops as on SIGTERM,
    because it would otherwise keep its port and its data directory without an owner.
    """

    def __init__(self) -> None:
        self.stop: Final = asyncio.Event()
        """Set when the process is to stop."""
        self.reload: Callable[[], None] | None = None
        """Function that reloads what can be reloaded. None until the server has started."""
        # Started by nohup, the process ignores SIGHUP so far: it is to outlive its terminal.
        self._ends_with_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)

    def _hang_up(self) -> None:
        if self._ends_with_terminal and not _has_terminal():
            logger.info("The terminal was closed")
            self.stop.set()
        elif self.reload is None:
            logger.info("SIGHUP during the start: nothing is reloaded, everything is being loaded")
        else:
            self.reload()


def _has_terminal() -> bool:
    """Return whether the process has a controlling terminal."""
    try:
        os.close(os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
