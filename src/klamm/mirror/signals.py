"""SIGINT and SIGTERM as a threading event. Both end a mirror gracefully."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType


def stop_on_signals(stopping: threading.Event) -> Mapping[int, Any]:
    """Install handlers of SIGINT and SIGTERM that set an event. Return the previous handlers."""

    def on_signal(_: int, __: FrameType | None) -> None:
        stopping.set()

    return {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}


@contextlib.contextmanager
def signals_as_event() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set until the context ends."""
    stopping = threading.Event()
    before = stop_on_signals(stopping)
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
