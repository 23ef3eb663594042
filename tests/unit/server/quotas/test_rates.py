"""Throttle times of a rate above its quota."""

from __future__ import annotations

import pytest

from klamm.server.quotas.rates import ClientCounters, RateWindow


def test_ten_seconds_of_the_rate_may_come_at_once() -> None:
    window = RateWindow()
    window.add(1_000, 5.0)
    assert window.wait_s(100, 5.0) == 0.0
    window.add(250, 5.0)
    assert window.wait_s(100, 5.0) == pytest.approx(2.5)


def test_waiting_keeps_the_average_rate() -> None:
    window = RateWindow()
    now_s = total = 0.0
    for _ in range(2_000):
        window.add(50, now_s)
        total += 50
        now_s += window.wait_s(100, now_s) + 0.001
    assert total / now_s == pytest.approx(100, rel=0.2)


def test_rate_below_the_limit_never_waits() -> None:
    window = RateWindow()
    for second in range(100):
        window.add(90, float(second))
        assert window.wait_s(100, float(second)) == 0.0


def test_old_samples_are_dropped() -> None:
    window = RateWindow()
    window.add(5_000, 0.0)
    assert window.wait_s(100, 0.0) == pytest.approx(40)
    assert not window.is_idle(10.9)
    assert window.wait_s(100, 11.0) == 0.0
    assert window.is_idle(11.0)


def test_withdrawn_charges_do_not_count() -> None:
    window = RateWindow()
    for _ in range(100):
        window.add(1, 1.0)
        window.add(-1, 1.0)
    assert window.wait_s(1, 1.0) == 0.0


def test_further_amount_counts_unless_the_window_is_empty() -> None:
    window = RateWindow()
    assert window.wait_s(100, 5.0, 10_000) == 0.0
    window.add(600, 5.0)
    assert window.wait_s(100, 5.0, 400) == 0.0
    assert window.wait_s(100, 5.0, 600) == pytest.approx(2.0)
    assert window.wait_s(100, 5.0) == 0.0


@pytest.mark.parametrize("limit", [1e-6, 1e-303, 5e-324])
def test_wait_for_tiny_limit_fits_into_throttle_time(limit: float) -> None:
    # given
    window = RateWindow()
    window.add(1e6, 5.0)
    # when
    wait_s = window.wait_s(limit, 5.0)
    # then
    assert 2**31 - 2 <= wait_s * 1000 < 2**31


class CountedWindow(RateWindow):
    looks = 0

    def is_idle(self, now_s: float) -> bool:
        type(self).looks += 1
        return super().is_idle(now_s)


def test_new_clients_do_not_search_all_counters_again_and_again() -> None:
    counters = ClientCounters(CountedWindow)
    for number in range(3000):
        counters.of(number, 5.0).add(1, 5.0)
    assert CountedWindow.looks <= 3000
    assert len(counters) == 3000

    counters.of("late", 100.0)
    assert len(counters) == 1
