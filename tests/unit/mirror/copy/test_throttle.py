"""The token bucket of a copier, with a clock of the test."""

from __future__ import annotations

import math

import pytest

from klamm.mirror.copy.fetcher import FetchThrottle

MB = 1_000_000
SECONDS = 10
FETCH_BYTES = 8 * MB


def fetch_for(throttle: FetchThrottle, seconds: float, *, batch: int, now: float = 0.0) -> tuple[int, int]:
    """Fetch whenever the throttle allows it, always whole batches and at least one. Return bytes and loop iterations.

    The clock moves as in the copier: by the time that it waits for sockets, in whole milliseconds.
    """
    end, copied, turns = now + seconds, 0, 0
    while now < end:
        turns += 1
        wait_s = throttle.wait_s(now)
        if wait_s > 0:
            now += math.ceil(min(wait_s, 0.1) * 1000) / 1000
            continue
        size = max(1, throttle.largest(FETCH_BYTES, 1) // batch) * batch
        throttle.charge(size)
        copied += size
        now += 0.001
    return copied, turns


@pytest.mark.parametrize("batch", [100, 16_384, MB // 8])
@pytest.mark.parametrize("limit", [MB, 20 * MB, 200 * MB])
def test_average_is_within_ten_percent_over_ten_seconds(limit: int, batch: int) -> None:
    throttle = FetchThrottle()
    throttle.limit = limit
    copied, _ = fetch_for(throttle, SECONDS, batch=batch)
    assert copied == pytest.approx(limit * SECONDS, rel=0.1)


def test_idle_time_gives_half_a_second_of_credit_at_most() -> None:
    throttle = FetchThrottle()
    throttle.limit = MB
    throttle.wait_s(0.0)
    throttle.wait_s(3600.0)
    assert throttle.largest(FETCH_BYTES, 1) == MB // 2


def test_batch_larger_than_limit_delays_next_fetch() -> None:
    throttle = FetchThrottle()
    throttle.limit = 1000
    copied, turns = fetch_for(throttle, 100, batch=16_384)
    assert copied == pytest.approx(100_000, abs=16_384)
    assert turns < 1100  # one per 0.1 s


def test_throttled_copier_does_not_spin() -> None:
    throttle = FetchThrottle()
    throttle.limit = 20 * MB
    _, turns = fetch_for(throttle, SECONDS, batch=100)
    assert turns <= SECONDS * 2 * 20 + 2  # a wait and a fetch, twenty times a second


def test_new_limit_applies_at_once() -> None:
    throttle = FetchThrottle()
    throttle.limit = MB
    fetch_for(throttle, SECONDS, batch=100)
    throttle.limit = 5 * MB
    copied, _ = fetch_for(throttle, SECONDS, batch=100, now=float(SECONDS))
    assert copied == pytest.approx(5 * MB * SECONDS, rel=0.1)


def test_lower_limit_does_not_prolong_earlier_debt() -> None:
    throttle = FetchThrottle()
    throttle.limit = 100 * MB
    throttle.wait_s(0.0)
    throttle.charge(8 * MB)
    throttle.limit = 1000
    assert throttle.wait_s(0.0) == pytest.approx(0.13)


def test_without_limit_nothing_is_delayed() -> None:
    throttle = FetchThrottle()
    throttle.charge(FETCH_BYTES)
    assert (throttle.wait_s(0.0), throttle.largest(FETCH_BYTES, 3)) == (0.0, FETCH_BYTES)
