"""Waits with progress output that also detect the end of the mirror."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from examples.demo.clusters import TARGET_TOPIC
from examples.demo.display import ProgressMeter, Sample
from examples.demo.flights import COUNT

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.demo.clusters import DemoCluster, MirrorProcess
    from examples.demo.display import Display
    from examples.demo.traffic import DemoTraffic

_TICK_S: Final = 0.5


class DemoError(RuntimeError):
    """The demo cannot continue."""


class Watch:
    """Waiter for conditions that shows the progress meanwhile."""

    def __init__(self, target: DemoCluster, traffic: DemoTraffic, mirror: MirrorProcess, display: Display) -> None:
        self._target = target
        self._traffic = traffic
        self._mirror = mirror
        self._display = display
        self._meter = ProgressMeter(COUNT)

    def until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> float:
        """Wait for a condition and return the elapsed seconds.

        Raises:
            DemoError: The condition did not come true in time, the mirror ended, or the producer failed.
        """
        begun = time.monotonic()
        while not condition():
            self._show()
            if (obituary := self._mirror.ended()) is not None:
                raise DemoError(obituary)
            if self._traffic.errors:
                raise DemoError(f"a record could not be produced: {self._traffic.errors[0]}")
            if time.monotonic() - begun > timeout_s:
                raise DemoError(f"{what}: not within {timeout_s:.0f} s")
            time.sleep(_TICK_S)
        self._show()
        return time.monotonic() - begun

    def _show(self) -> None:
        sample = Sample(
            at_s=time.monotonic(),
            produced=self._traffic.sent,
            copied=self._target.record_count(TARGET_TOPIC),
            copied_bytes=self._target.log_bytes(TARGET_TOPIC),
        )
        self._display.progress(self._meter.add(sample))
