"""A stream that is started again when it ends: brokers restart, and workers are late on a busy machine."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

MAX_FAILURES: Final = 10
"""So often in a row a stream may fail: some minutes, in which a broker comes back and a wrong setting is noticed."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0
"""Who has run for so long had not failed in a row."""


class Query(Protocol):
    """What is asked of Spark's ``StreamingQuery``."""

    def exception(self) -> Exception | None:
        """Return what ended it; None while it runs."""
        ...

    def stop(self) -> None:
        """End it."""
        ...


AnyQuery = TypeVar("AnyQuery", bound=Query)


class SteadyStream(Generic[AnyQuery]):
    """One query, and those that take its place; each goes on from the checkpoint of the one before.

    Args:
        name: For the log.
        start: Starts a query.
        now: A monotonic clock, seconds.
    """

    def __init__(self, name: str, start: Callable[[], AnyQuery], *, now: Callable[[], float]) -> None:
        self._name = name
        self._start = start
        self._now = now
        self._failures = 0
        self._start_at: float | None = None
        """When to start again; None: it runs."""
        self._started_at = now()
        self.query = start()

    def tend(self) -> None:
        """Start again if it is time to, and look whether it still runs.

        Raises:
            Exception: What ended the query, when that has happened too often.
        """
        if self._start_at is not None:
            if self._now() < self._start_at:
                return
            self._start_at, self._started_at = None, self._now()
            self.query = self._start()
        if (error := self.query.exception()) is not None:
            self._note(error)

    def _note(self, error: Exception) -> None:
        now = self._now()
        self._failures = 1 if now - self._started_at >= STEADY_S else self._failures + 1
        if self._failures >= MAX_FAILURES:
            raise error
        pause_s = min(FIRST_PAUSE_S * 2 ** (self._failures - 1), LONGEST_PAUSE_S)
        self._start_at = now + pause_s
        logger.warning(
            "The stream of %s ended and is started again in %g s: %s", self._name, pause_s, reason_of(str(error))
        )

    def stop(self) -> None:
        """End it for good."""
        self.query.stop()


def reason_of(text: str) -> str:
    """Return the line of a failed task's trace that names our own error, or else the first line."""
    ours = re.findall(r"^(?:klamm\.[\w.]+: )(.+)$", text, re.MULTILINE)
    return str(ours[-1]) if ours else text.strip().partition("\n")[0]
