"""Memory of a policy's decisions on requests that flow in numbers, so that most of them need no call of the policy."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.policy.errors import PolicyTimeoutError
from klamm.protocol.errors import KafkaApiError

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.policy.details import Details
    from klamm.policy_runtime.worker import PolicyOutcome

DECISION_LASTS_S: Final = 30.0
"""Seconds after which the policy is asked again."""
FAILURE_LASTS_S: Final = 5.0
"""The same for a call that failed or took too long."""
MAX_OUTCOMES: Final = 10_000
"""Number of remembered outcomes. Beyond it, the oldest one is forgotten."""
_MAX_TEXT: Final = 1_000
"""Total length of the texts in a question beyond which its outcome is not remembered."""


class _Remembered(NamedTuple):
    until: float
    outcome: PolicyOutcome


class OutcomeCache:
    """Outcomes of calls of one policy, by question. Used on the event loop only.

    Args:
        now: Monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._entries: dict[Details, _Remembered] = {}

    def get(self, details: Details) -> PolicyOutcome | None:
        """Return the outcome of an equal question; None if there is none, or if it is too old."""
        entry = self._entries.get(details)
        if entry is None:
            return None
        if entry.until <= self._now():
            del self._entries[details]
            return None
        return entry.outcome

    def put(self, details: Details, outcome: PolicyOutcome) -> None:
        """Remember the outcome of a call. Questions with very long texts would fill the memory and are left out."""
        values = (getattr(details, field.name) for field in fields(details))
        if sum(len(value) for value in values if isinstance(value, str)) > _MAX_TEXT:
            return
        error = outcome.error
        has_failed = error is not None and (
            not isinstance(error, KafkaApiError) or isinstance(error, PolicyTimeoutError)
        )
        self._entries.pop(details, None)
        if len(self._entries) >= MAX_OUTCOMES:
            del self._entries[next(iter(self._entries))]
        lasts_s = FAILURE_LASTS_S if has_failed else DECISION_LASTS_S
        self._entries[details] = _Remembered(self._now() + lasts_s, outcome)

    def clear(self) -> None:
        """Forget all outcomes, because the policy has changed."""
        self._entries.clear()
