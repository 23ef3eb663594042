"""Child process that ends with its parent, however the parent ends.

``python -m klamm.embedded.lifeline FD REMOVE MODULE ARGUMENTS...`` calls ``MODULE.main(ARGUMENTS)``. A background
thread watches the read end of a pipe (``FD``) whose write end only the parent holds. A parent that is killed cannot
send a message, but the kernel closes its end of the pipe. A process forked from the parent may still hold the write
end, so the thread also checks the parent's process id. ``REMOVE`` is a directory to delete when the parent has
vanished. Empty arguments mean that there is no pipe to watch or nothing to delete.

On Linux the kernel could send a signal instead (``PR_SET_PDEATHSIG``), but it does so when the *thread* that started
the process ends.
"""

from __future__ import annotations

import gc
import os
import select
import shutil
import signal
import sys
import threading
from typing import TYPE_CHECKING

from klamm.imports import import_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

POLL_S = 1.0
"""Interval in seconds between checks of the parent's process id."""

GRACE_S = 10.0
"""Time in seconds that the process may take to stop by itself after the parent is gone."""


class Lifeline:
    """Watcher that calls ``on_lost`` once, from its own thread, when the parent is gone."""

    def __init__(self, fd: int, on_lost: Callable[[], None]) -> None:
        self._fd = fd
        self._on_lost = on_lost
        self._parent = os.getppid()
        self.lost = threading.Event()

    def start(self) -> None:
        """Start watching. The thread ends with the process."""
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def _watch(self) -> None:
        poll = (
            select.poll()
        )  # unlike select, poll accepts descriptors above 1,023, which a parent with many open files may pass
        poll.register(self._fd, select.POLLIN)
        while os.getppid() == self._parent:
            if poll.poll(POLL_S * 1000):  # nothing is ever written to the pipe: readable or hung up means closed
                break
        self.lost.set()
        self._on_lost()


def _end_this_process() -> None:
    """Stop as on SIGTERM. If the process does not end within ``GRACE_S``, exit immediately."""
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    os._exit(1)


def main(arguments: Sequence[str]) -> int:
    """Run a module's ``main`` until it returns or the parent is gone; return the exit code."""
    fd, remove, module, *rest = arguments
    lifeline = Lifeline(int(fd), _end_this_process) if fd else None
    if lifeline is not None:
        lifeline.start()  # before the slow import
    try:
        return int(import_program(module).main(rest))
    finally:
        if remove and lifeline is not None and lifeline.lost.is_set():
            shutil.rmtree(remove, ignore_errors=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    finally:
        gc.freeze()  # the collections with which Python ends a process do not visit frozen objects
