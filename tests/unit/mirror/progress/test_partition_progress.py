"""The forms of a partition's progress, all from one declaration, and the ages of its records."""

from __future__ import annotations

import json

from klamm.mirror.progress.partition_progress import (
    WINDOW_MS,
    Ages,
    CopyState,
    PartitionProgress,
    RecentAges,
    spark_schema,
)

PROGRESS = PartitionProgress(
    flow="A->B",
    topic="t",
    partition=3,
    remote_topic="A.t",
    next_offset=5,
    end_offset=9,
    records=4,
    bytes=100,
    last_timestamp=17,
    state=CopyState.WAITING,
    reason="no leader",
    record_age=Ages(1.0, 0.5, 2.0, 1.2),
)


def test_spark_schema_is_stable() -> None:
    ages = "struct<last double, least double, most double, mean double>"
    assert spark_schema() == (
        "flow string, topic string, partition int, remote_topic string, next_offset long, end_offset long, "
        f"records long, bytes long, last_timestamp long, state string, reason string, record_age {ages}, "
        f"replication_latency {ages}"
    )


def test_progress_round_trips_to_driver() -> None:
    assert PartitionProgress.from_json(json.loads(json.dumps(PROGRESS.to_json()))) == PROGRESS


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
