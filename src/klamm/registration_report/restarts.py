"""Streaming query that is restarted when it fails, for example after a broker restart or a late worker."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from klamm.dataframes.errors import DATA_LOSS_HINT, DataLossError, ReadingError
from klamm.retries import backoff_s

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

MAX_FAILURES: Final = 10
"""Consecutive failures after which the stream gives up. This takes some minutes, long enough for a broker restart."""
MAX_LOSSES: Final = 3
"""Consecutive losses after which the stream gives up: records are gone, as after the topic was deleted. A leader
that has just been elected may report an earlier end for a moment.
"""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0
"""Seconds of uninterrupted running after which earlier failures no longer count."""


class Query(Protocol):
    """The part of Spark's ``StreamingQuery`` that is used here."""

    def exception(self) -> Exception | None:
        """Return the error that ended the query, None while it runs."""
        ...

    def stop(self) -> None:
        """Stop the query."""
        ...


AnyQuery = TypeVar("AnyQuery", bound=Query)


class SteadyStream(Generic[AnyQuery]):
    """A query and its replacements. Each resumes from the checkpoint of its predecessor.

    Args:
        name: Name for the log.
        start: Starts a query.
        now: Monotonic clock in seconds.
    """

    def __init__(self, name: str, start: Callable[[], AnyQuery], *, now: Callable[[], float]) -> None:
        self._name = name
        self._start = start
        self._now = now
        self._failures = self._losses = 0
        self._start_at: float | None = None
        """Time of the next restart; None while the query runs."""
        self._started_at = now()
        self.query = start()

    def tend(self) -> None:
        """Restart the query if it is due, and check whether it still runs.

        Raises:
            ReadingError: Records are gone, so the state of the stream is not that of the topic.
            Exception: The error that ended the query, after too many failures.
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
        if now - self._started_at >= STEADY_S:
            self._failures = self._losses = 0
        self._failures += 1
        is_loss = f"{DataLossError.__module__}.{DataLossError.__name__}: " in str(error)
        self._losses = self._losses + 1 if is_loss else 0
        if self._losses >= MAX_LOSSES:
            what = reason_of(str(error)).removesuffix(DATA_LOSS_HINT)
            remedy = "start the report again, with another --checkpoint directory"
            raise ReadingError(f"The stream of {self._name} lost records, {remedy}: {what}") from error
        if self._failures >= MAX_FAILURES:
            raise error
        pause_s = backoff_s(self._failures - 1, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._start_at = now + pause_s
        logger.warning(
            "The stream of %s ended and is started again in %g s: %s", self._name, pause_s, reason_of(str(error))
        )

    def stop(self) -> None:
        """Stop the query for good."""
        self.query.stop()


def reason_of(text: str) -> str:
    """Return the line of a failed task's trace that names klamm's own error, or else the first line."""
    ours = re.findall(r"^(?:klamm\.[\w.]+: )(.+)$", text, re.MULTILINE)
    return str(ours[-1]) if ours else text.strip().partition("\n")[0]
