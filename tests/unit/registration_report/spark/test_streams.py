"""Windows of a following report, without Spark: what is kept from one micro-batch to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from klamm.registration_report.report import Following, Report, Scope, VersionWindow
from klamm.registration_report.spark import streams
from klamm.registration_report.spark.streams import Follower

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

REPORT = Report(rows=(), clients=0, records=0)


def window(start_ms: int, clients: int) -> VersionWindow:
    return VersionWindow(start_ms=start_ms, software="klamm", version="1.0", clients=clients)


def restored(directory: Path) -> Follower:
    """Return the follower of a new process that resumes from a checkpoint."""
    follower = Follower(
        cast("DataFrame", None),
        scope=Scope(),
        following=Following(),
        cluster="cluster",
        parquet=None,
        sightings=tuple,
        topic_id=lambda: None,
    )
    follower._directory = directory
    follower._restore()
    return follower


def take(follower: Follower, *changed: VersionWindow) -> tuple[VersionWindow, ...]:
    """Process a micro-batch and return the windows of the next report."""
    follower._take_windows(cast("DataFrame", changed), 0)
    return follower._whole(REPORT).windows


@pytest.fixture(autouse=True)
def _two_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_WINDOWS", 2)
    monkeypatch.setattr(streams, "version_windows", lambda rows: rows)


def test_windows_with_the_most_clients_are_kept(tmp_path: Path) -> None:
    # given
    follower = restored(tmp_path)
    take(follower, window(1, 5), window(2, 3))
    # when
    unchanged = take(follower, window(3, 1))
    grown = take(follower, window(3, 4))
    # then
    assert unchanged == (window(1, 5), window(2, 3))
    assert grown == (window(1, 5), window(3, 4))
    assert restored(tmp_path)._whole(REPORT).windows == grown


def test_too_many_stored_windows_are_reduced_at_the_start(tmp_path: Path) -> None:
    # given
    (tmp_path / "windows.json").write_text('[[1, "klamm", "1.0", 5], [2, "klamm", "1.0", 3], [3, "klamm", "1.0", 4]]')
    # when
    follower = restored(tmp_path)
    # then
    assert follower._whole(REPORT).windows == (window(1, 5), window(3, 4))
