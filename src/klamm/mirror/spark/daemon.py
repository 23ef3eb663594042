"""Python daemon of a local Spark: ``pyspark.daemon``, with SIGTERM ignored in the daemon and its workers.

A service manager sends SIGTERM to all processes of a service at once. A task must not end on that signal. It ends when
its driver ends the lease, after produce requests in flight have been acknowledged. The JVM ends the daemon by closing
the daemon's standard input.

The daemon imports what every task needs, so that workers share these modules and start at once.
"""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow  # type: ignore[import-untyped]  # noqa: F401 - see above
import pyspark.worker  # noqa: F401
from pyspark import daemon

import klamm.mirror.spark.source
import klamm.mirror.spark.worker  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Callable


def _without_sigterm(number: int, handler: Callable[..., Any] | int) -> object:
    """Install a signal handler, but ignore SIGTERM instead of installing one for it."""
    return signal.signal(number, signal.SIG_IGN if number == signal.SIGTERM else handler)


if __name__ == "__main__":
    daemon.signal = SimpleNamespace(**{**vars(signal), "signal": _without_sigterm})  # type: ignore[assignment, attr-defined]
    daemon.manager()
