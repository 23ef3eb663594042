"""Threads whose errors reach the test."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Worker(ABC):
    """Work in a thread until it is complete or stopped. ``join`` raises its error."""

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._prepare()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)
        self._thread.start()

    def _prepare(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Start resources that must belong to the calling thread, such as child processes."""

    @abstractmethod
    def _work(self) -> None:
        """Run until done, or until ``self._stop`` is set."""

    def _guarded(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised again where the test waits
            self._error = error

    def check(self) -> None:
        """Raise the error that ended the thread, if any."""
        if self._error is not None:
            raise self._error

    def join(self, timeout_s: float) -> None:
        """Wait for the end.

        Raises:
            TimeoutError: The thread is still running.
        """
        self._thread.join(timeout_s)
        self.check()
        if self._thread.is_alive():
            raise TimeoutError(f"{self._thread.name} has not ended after {timeout_s:.0f} s")

    def stop(self, timeout_s: float = 30.0) -> None:
        """Request the end and wait for it."""
        self._stop.set()
        self.join(timeout_s)
