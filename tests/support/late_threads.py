"""Threads that begin late, as on a busy machine: ``pytest -p tests.support.late_threads``.

A test that needs a thread to have run, and does not wait for it, passes nearly always on an idle machine. With this
plugin half of the threads, and half of those that start one, sleep before they go on.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Final

_MAX_PAUSE_S: Final = 0.3

_sleep = time.sleep
_start = threading.Thread.start
_random = random.Random()


def pytest_configure() -> None:
    """Let all threads begin late that are started from now on."""
    threading.Thread.start = _start_late  # type: ignore[assignment, method-assign]


def _start_late(thread: threading.Thread) -> None:
    run = thread.run

    def run_late() -> None:
        _pause()
        run()

    thread.run = run_late  # type: ignore[method-assign]
    _start(thread)
    _pause()


def _pause() -> None:
    if _random.random() < 0.5:
        _sleep(_random.uniform(0, _MAX_PAUSE_S))
