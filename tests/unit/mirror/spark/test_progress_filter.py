"""Progress rows that a task sends: unchanged partitions are left out."""

from __future__ import annotations

from dataclasses import replace

from klamm.mirror.progress.flow_progress import RATE_WINDOW_S
from klamm.mirror.progress.partition_progress import CopyState, PartitionProgress
from klamm.mirror.spark.worker import ProgressFilter

ROWS = [
    PartitionProgress(
        flow="A->B",
        topic="orders",
        partition=partition,
        remote_topic="A.orders",
        next_offset=5,
        end_offset=5,
        records=5,
        bytes=500,
        last_timestamp=1,
        state=CopyState.COPYING,
        reason="",
    )
    for partition in range(3)
]


def test_first_progress_is_sent() -> None:
    assert list(ProgressFilter().of(ROWS, 0.0)) == ROWS


def test_unchanged_progress_is_repeated_until_rate_is_zero() -> None:
    changed = ProgressFilter()
    list(changed.of(ROWS, 0.0))
    assert list(changed.of(ROWS, 2 * RATE_WINDOW_S)) == ROWS
    assert list(changed.of(ROWS, 4 * RATE_WINDOW_S)) == []


def test_changed_progress_is_sent_again() -> None:
    changed = ProgressFilter()
    list(changed.of(ROWS, 0.0))
    rows = [ROWS[0], replace(ROWS[1], records=6), ROWS[2]]
    assert list(changed.of(rows, 100.0)) == [rows[1]]
    assert list(changed.of(rows, 100.0 + 4 * RATE_WINDOW_S)) == []
