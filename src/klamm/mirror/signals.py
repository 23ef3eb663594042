"""SIGINT, SIGTERM and SIGHUP as a threading event. All end a mirror gracefully.

SIGHUP arrives when the terminal of the mirror is closed. A mirror that was started by ``nohup`` ignores it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType


def stop_on_signals(stopping: threading.Event) -> Mapping[int, Any]:
    """Install handlers of the signals that set an event. Return the previous handlers."""

    def on_signal(_: int, __: FrameType | None) -> None:
        stopping.set()

    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = (signal.SIGINT, signal.SIGTERM, *(() if is_nohup else (signal.SIGHUP,)))
    return {number: signal.signal(number, on_signal) for number in numbers}


@contextlib.contextmanager
def signals_as_event() -> Iterator[threading.Event]:
    """Yield an event that the signals set until the context ends."""
    stopping = threading.Event()
    before = stop_on_signals(stopping)
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
