"""Record ages as in MirrorMaker 2's gauges (K894-47)."""

from __future__ import annotations

from klamm.mirror.progress.partition_progress import WINDOW_MS, Ages, RecentAges

NOW = 1_700_000_000_000


def _batch(ages: RecentAges, now_ms: float, *, oldest: int, newest: int, count: int = 2) -> None:
    ages.observe(now_ms, first_timestamp=int(now_ms) - oldest, max_timestamp=int(now_ms) - newest, count=count)


def test_ages_are_none_before_first_record() -> None:
    assert RecentAges().summary(NOW) is None


def test_ages_report_last_min_max_and_mean() -> None:
    # given
    ages = RecentAges()
    # when
    _batch(ages, NOW, oldest=10, newest=2)
    _batch(ages, NOW, oldest=50, newest=30, count=6)
    # then
    assert ages.summary(NOW) == Ages(last=30, least=2, most=50, mean=(6 * 2 + 40 * 6) / 8)


def test_ages_older_than_two_windows_expire() -> None:
    # given
    ages = RecentAges()
    _batch(ages, NOW, oldest=900, newest=900)
    # when
    _batch(ages, NOW + WINDOW_MS, oldest=5, newest=5)
    both = ages.summary(NOW + WINDOW_MS + 1)
    later = ages.summary(NOW + 2 * WINDOW_MS + 1)
    # then
    assert both is not None
    assert (both.least, both.most) == (5, 900)
    assert later == Ages(5, 5, 5, 5)
    assert ages.summary(NOW + 9 * WINDOW_MS) is None


def test_records_without_timestamp_have_no_age() -> None:
    ages = RecentAges()
    ages.observe(NOW, first_timestamp=-1, max_timestamp=-1, count=1)
    assert ages.summary(NOW) is None


def test_clock_going_back_restarts_window() -> None:
    ages = RecentAges()
    _batch(ages, NOW, oldest=1, newest=1)
    _batch(ages, NOW - 3_600_000, oldest=2, newest=2)
    assert ages.summary(NOW - 3_600_000) == Ages(2, 2, 2, 2)
