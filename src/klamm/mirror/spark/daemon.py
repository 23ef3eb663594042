"""Spark's Python daemon of a local mirror: ``pyspark.daemon`` whose processes ignore SIGTERM.

A service manager sends SIGTERM to all processes of a service at once. A task has to end when its driver asks it to,
which waits until what is in flight has arrived. The JVM ends the daemon by closing its standard input.
"""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pyspark import daemon

if TYPE_CHECKING:
    from collections.abc import Callable


def _without_sigterm(number: int, handler: Callable[..., Any] | int) -> object:
    """Set a signal's handler, except for SIGTERM, which is ignored."""
    return signal.signal(number, signal.SIG_IGN if number == signal.SIGTERM else handler)


if __name__ == "__main__":
    daemon.signal = SimpleNamespace(**{**vars(signal), "signal": _without_sigterm})  # type: ignore[assignment, attr-defined]
    daemon.manager()
