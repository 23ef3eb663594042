"""Activity of a server in the last 15 minutes, for the plots of its page: requests, denials and waiting time.

=============  =======================================================================================================
Value          Meaning
=============  =======================================================================================================
requests       Requests per second
denials        Requests that a policy denied in 5 s, because it decided so, failed or did not decide in time. Unknown
               without a policy
waiting time   Longest delay of the event loop in 5 s, in milliseconds. All requests waited as long for their turn
=============  =======================================================================================================
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from klamm.page.plot import SAMPLE_EVERY_S, Sample, Samples, count_text, plots_of
from klamm.policy.kinds import PolicyMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from klamm.policy_runtime import Policies

_FIGURES: Final = (
    ("Requests/s", count_text),
    (f"Denials in {SAMPLE_EVERY_S:g} s", count_text),
    ("Waiting time", lambda value: f"{value:,.0f} ms"),
)
_DENIALS: Final = ("deny", "fail", "timeout")
_TIMER_S: Final = 0.5
"""Interval of the timer whose delay is measured."""
_NAME: Final = ""


class ActivitySampler:
    """Sampler of one server process. Used on the event loop only.

    Args:
        requests: Function that returns the number of requests since the start.
        policies: Function that returns the policies that decide on the requests.
        every_s: Seconds between two samples.
    """

    def __init__(
        self,
        requests: Callable[[], int],
        policies: Callable[[], Iterable[Policies]],
        *,
        every_s: float = SAMPLE_EVERY_S,
    ) -> None:
        self._requests = requests
        self._policies = policies
        self._every_s = every_s
        self._samples = Samples()
        self._last_requests = 0
        self._last_denials: int | None = None

    @property
    def samples(self) -> Sequence[Sample]:
        """Samples of the last 15 minutes, the oldest one first."""
        return self._samples.by_name().get(_NAME, ())

    async def keep_sampling(self) -> None:
        """Take a sample at each multiple of the interval, until cancelled.

        All processes take their samples at the same times, so that they can be added.
        """
        loop = asyncio.get_running_loop()
        self._last_requests, self._last_denials = self._requests(), self._denials()
        started = loop.time()
        while True:
            now_s = time.time()
            left_s = self._every_s - now_s % self._every_s
            if left_s < self._every_s / 10:  # the latest sample was taken a moment before its time
                left_s += self._every_s
            at_s, end = now_s + left_s, loop.time() + left_s
            delay_s = 0.0
            while (left_s := end - loop.time()) > 0:
                due = loop.time() + min(left_s, _TIMER_S)
                await asyncio.sleep(due - loop.time())
                delay_s = max(delay_s, loop.time() - due)
            self.add(at_s, took_s=loop.time() - started, delay_s=delay_s)
            started = loop.time()

    def add(self, at_s: float, *, took_s: float, delay_s: float) -> None:
        """Add a sample.

        Args:
            at_s: Time in seconds since the epoch.
            took_s: Seconds since the sample before.
            delay_s: Longest delay of the event loop since then, in seconds.
        """
        requests, denials = self._requests(), self._denials()
        rate = (requests - self._last_requests) / took_s
        denied = None if denials is None else denials - (self._last_denials or 0)
        self._last_requests, self._last_denials = requests, denials
        self._samples.add(at_s, {_NAME: (rate, denied, delay_s * 1000)})

    def _denials(self) -> int | None:
        """Return the number of denials since the start; None without a policy."""
        policies = [each for each in self._policies() if each.guards]
        if not policies:
            return None
        return sum(
            count
            for one in policies
            for decided, count in one.decisions.items()
            if decided.action in _DENIALS and decided.mode != PolicyMode.AUDIT.value
        )


def merged_activity(processes: Iterable[Iterable[Sequence[Any]]]) -> list[Sample]:
    """Return the samples of several processes together: sums of requests and denials, the longest waiting time.

    Args:
        processes: Samples of each process. A sample may be a list, as in JSON.
    """
    by_time: dict[int, list[Sample]] = {}
    for samples in processes:
        for at_s, values in samples:
            by_time.setdefault(round(at_s / SAMPLE_EVERY_S), []).append(Sample(at_s, tuple(values)))
    return [_together(by_time[slot]) for slot in sorted(by_time)]


def _together(samples: Sequence[Sample]) -> Sample:
    requests, denials, delays = zip(*(sample.values for sample in samples), strict=True)
    return Sample(samples[0].at_s, (_sum(requests), _sum(denials), max(filter(None, delays), default=0.0)))


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values; None if none is known."""
    known_values = [value for value in values if value is not None]
    return sum(known_values) if known_values else None


def activity_plots(samples: Sequence[Sample], *, until_s: float) -> str:
    """Return the plots of the activity of a server; empty HTML for less than two samples."""
    return plots_of(samples, _FIGURES, until_s=until_s)
