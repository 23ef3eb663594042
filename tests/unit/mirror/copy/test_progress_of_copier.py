"""Progress rows of a copier, four times a second: the cost depends on the changed partitions only."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING
from unittest.mock import Mock, create_autospec

import pytest

from klamm.mirror.copy import copier as module
from klamm.mirror.copy.copier import Copier
from klamm.mirror.copy.partition import PartitionCopy, PartitionId
from klamm.mirror.progress.partition_progress import WINDOW_MS, Ages, CopyState, PartitionProgress, RecentAges
from tests.support.copiers import copy_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW_MS = 1_700_000_000_000
COUNT = 50


class Reporter:
    """A copier whose partitions were all copied just now, and what it tells."""

    def __init__(self, copier: Copier, clock: Mock) -> None:
        self.copier, self._clock = copier, clock
        self.at(NOW_MS)
        self.copies = [
            PartitionCopy(PartitionId("t", number, "A.t"), start_offset=0, committed=True) for number in range(COUNT)
        ]
        for copy in self.copies:
            copier.add(copy)
            self.copied(copy)

    def at(self, now_ms: float) -> None:
        self._clock.time.return_value = now_ms / 1000

    def copied(self, copy: PartitionCopy, age_ms: int = 20) -> None:
        """Let the target have another record, which was so old."""
        copy.acked_offset += 1
        copy.committed_offset += 1
        copy.records_copied += 1
        timestamp = int(self._clock.time.return_value * 1000) - age_ms
        for ages in (copy.record_ages, copy.replication_ages):
            ages.observe(timestamp + age_ms, first_timestamp=timestamp, max_timestamp=timestamp, count=1)

    def rows(self) -> list[PartitionProgress]:
        return list(self.copier.progress())


@pytest.fixture
def reporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reporter]:
    clock = Mock()
    monkeypatch.setattr(module, "time", clock)
    with contextlib.closing(Copier(copy_settings("h:1", "h:2", alias="A"), [])) as copier:
        yield Reporter(copier, clock)


def test_unchanged_partitions_report_no_progress_row(reporter: Reporter, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    before = reporter.rows()
    summary = create_autospec(RecentAges.summary, side_effect=RecentAges.summary)
    monkeypatch.setattr(RecentAges, "summary", summary)
    # when
    reporter.at(NOW_MS + WINDOW_MS - 1)
    reporter.copied(reporter.copies[3])
    after = reporter.rows()
    # then
    assert summary.call_count == 2, "of a record's two ages, in one row"
    assert [number for number in range(COUNT) if after[number] is not before[number]] == [3]
    assert after[3].records == before[3].records + 1


def test_old_ages_expire_without_new_records(reporter: Reporter) -> None:
    assert reporter.rows()[0].record_age == Ages(20, 20, 20, 20)
    reporter.at(NOW_MS + WINDOW_MS)
    reporter.copied(reporter.copies[0], age_ms=8)
    assert reporter.rows()[0].replication_latency == Ages(8, 8, 20, 14)
    reporter.at(NOW_MS + 2 * WINDOW_MS)
    assert reporter.rows()[0].record_age == Ages(8, 8, 8, 8)
    reporter.at(NOW_MS + 3 * WINDOW_MS)
    last = reporter.rows()[0]
    assert (last.record_age, last.replication_latency) == (None, None)
    reporter.at(NOW_MS + 30 * WINDOW_MS)
    assert reporter.rows()[0] is last


def test_clock_going_back_drops_ages(reporter: Reporter) -> None:
    reporter.rows()
    reporter.at(NOW_MS - 1)
    assert reporter.rows()[0].record_age is None


def test_partitions_waiting_for_start_report_changes() -> None:
    waiting = PartitionId("t", 0, "A.t")
    with contextlib.closing(Copier(copy_settings("h:1", "h:2", alias="A"), [waiting])) as copier:
        (row,) = copier.progress()
        assert (row.state, row.reason, row.next_offset) == (CopyState.WAITING, "starting", -1)
        assert copier.progress()[0] is row
        copier.back_off(0.0, "nobody answers")
        assert copier.progress()[0].reason == "nobody answers"


def test_paused_topic_is_reported_and_stopped_partition_keeps_its_reason(reporter: Reporter) -> None:
    reporter.copies[1].stop("a reason")
    before = reporter.rows()
    reporter.copier.paused = frozenset({"t"})
    first, second, *_ = reporter.rows()
    assert (first.state, first.reason, first.next_offset) == (CopyState.PAUSED, "", before[0].next_offset)
    assert (second.state, second.reason) == (CopyState.STOPPED, "a reason")
    reporter.copier.paused = frozenset()
    assert reporter.rows() == before


def test_stopped_partitions_of_restarted_topic_start_again(reporter: Reporter) -> None:
    reporter.copies[1].stop("a reason")
    reporter.copier.restarts = {"others": 1}
    reporter.copier.restart_stopped()
    assert reporter.rows()[1].state is CopyState.STOPPED
    reporter.copier.restarts = {"others": 1, "t": 1}
    reporter.copier.restart_stopped()
    waiting = [row for row in reporter.rows() if row.state is CopyState.WAITING]
    assert [(row.partition, row.reason, row.records) for row in waiting] == [(1, "restarted by an operator", 1)]
    reporter.copier.restart_stopped()
    assert sum(row.state is CopyState.COPYING for row in reporter.rows()) == COUNT - 1
