"""Ctrl-C in a command that calls a library for each line: it interrupts the wait for input, never the library's code.

An exception in the middle of kafka-python could leave one of its locks or counters in a wrong state. And a signal that
arrives just before the thread blocks in ``read`` would be noticed only with the next line. So the handler raises only
during the wait, and the wait ends through a pipe that the signal itself writes to (``signal.set_wakeup_fd``).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class Interrupts:
    """SIGINT while ``deferred`` is entered. The first one takes effect in ``wait_for``, a second one at once."""

    def __init__(self) -> None:
        self._came = False
        self._is_waiting = False
        self._woken: int | None = None
        """Descriptor that becomes readable when a signal arrives; None outside of ``deferred``."""

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Handle SIGINT here. Threads other than the main one receive no signals: nothing changes for them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._woken, written = os.pipe()
        os.set_blocking(written, False)
        handler = signal.signal(signal.SIGINT, self._handle)
        descriptor = signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor)
            signal.signal(signal.SIGINT, handler)
            os.close(self._woken)
            os.close(written)
            self._woken = None

    def wait_for(self, descriptor: int) -> None:
        """Wait until a descriptor can be read.

        Raises:
            KeyboardInterrupt: SIGINT arrives, or has arrived since ``deferred`` was entered.
        """
        poll = select.poll()  # select() knows no descriptor above 1,023
        poll.register(descriptor, select.POLLIN)
        if self._woken is not None:
            poll.register(self._woken, select.POLLIN)
        self._is_waiting = True
        try:
            while True:
                if self._came:
                    raise KeyboardInterrupt
                ready = {woken for woken, _ in poll.poll()}
                if self._woken is not None and self._woken in ready:
                    os.read(self._woken, 512)  # the handler has run or runs now
                if descriptor in ready:
                    return
        finally:
            self._is_waiting = False

    def _handle(self, _: int, __: FrameType | None) -> None:
        is_second, self._came = self._came, True
        if is_second or self._is_waiting:
            raise KeyboardInterrupt
