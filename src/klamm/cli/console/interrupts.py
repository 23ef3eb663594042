"""Signals that end ``klamm produce`` and ``klamm consume``, without an exception inside the client library."""

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
    """SIGINT, SIGTERM and SIGHUP while ``deferred`` is entered. The first takes effect in ``effective`` or ``check``.

    A signal interrupts a wait for input or output, never the library that sends or fetches the records: an exception in
    the middle of kafka-python could leave one of its locks or counters in a wrong state, or lose the records whose
    offsets a consumer has already counted as consumed.

    After the first signal, SIGINT takes effect at once, because a user who presses Ctrl-C again does not want to wait
    for the library. SIGTERM and SIGHUP have no effect then: the end of a login session sends several of them. A
    signal that the process ignores stays ignored: SIGHUP under nohup, and SIGINT in the background of a shell script.
    """

    def __init__(self) -> None:
        self._has_begun = False
        """Whether a signal has arrived."""
        self._pending: signal.Signals | None = None
        """The first signal until it takes effect."""
        self._is_effective = False
        self._woken: int | None = None
        """Descriptor that becomes readable when a signal arrives; None outside of ``deferred``."""

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Handle the signals here. Threads other than the main one receive none: nothing changes for them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._woken, written = os.pipe()
        os.set_blocking(written, False)
        handlers = {
            number: signal.signal(number, self._handle)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        descriptor = signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            os.close(self._woken)
            os.close(written)
            self._woken = None

    @contextlib.contextmanager
    def effective(self) -> Iterator[None]:
        """Let the first signal take effect at once, also one that has arrived since ``deferred`` was entered.

        Raises:
            KeyboardInterrupt: The signal is SIGINT.
            SystemExit: It is SIGTERM or SIGHUP. The exit code is 128 plus the number of the signal.
        """
        self._is_effective = True
        try:
            self.check()
            yield
        finally:
            self._is_effective = False

    def check(self) -> None:
        """Let the first signal take effect if it has arrived and has not taken effect. Raises as ``effective`` does."""
        if (pending := self._pending) is not None:
            self._pending = None
            raise _exception_of(pending)

    def wait_for(self, descriptor: int) -> None:
        """Wait until a descriptor can be read. Raises as ``effective`` does.

        A signal that arrives just before the thread blocks in ``read`` would be noticed only with the next line. So the
        wait ends through a pipe that the signal itself writes to (``signal.set_wakeup_fd``).
        """
        poll = select.poll()  # select() knows no descriptor above 1,023
        poll.register(descriptor, select.POLLIN)
        if self._woken is not None:
            poll.register(self._woken, select.POLLIN)
        with self.effective():
            while True:
                ready = {woken for woken, _ in poll.poll()}
                if self._woken is not None and self._woken in ready:
                    os.read(self._woken, 512)  # the handler has run or runs now
                if descriptor in ready:
                    return

    def _handle(self, number: int, _: FrameType | None) -> None:
        received = signal.Signals(number)
        is_first, self._has_begun = not self._has_begun, True
        if is_first and not self._is_effective:
            self._pending = received
        elif is_first or received is signal.SIGINT:
            self._pending = None
            raise _exception_of(received)


def _exception_of(received: signal.Signals) -> BaseException:
    return KeyboardInterrupt() if received is signal.SIGINT else SystemExit(128 + received)
