"""Order in which the workers of pytest-xdist begin the files of tests."""

from __future__ import annotations

from pathlib import Path

from tests.support.distribution import BESIDE_SPARK, BROWSER, FIRST, KAFKA, LENT, SHARED, SLOWEST_OF_FAST, SPARK

ROOT = Path(__file__).resolve().parents[3]


def test_files_scheduled_first_exist() -> None:
    """A file that was renamed would be begun later than it should, and end after all others."""
    files = {*FIRST, *SLOWEST_OF_FAST, *BESIDE_SPARK} - {SHARED, KAFKA, LENT, SPARK, BROWSER}
    assert [name for name in files if not (ROOT / name).is_file()] == []
