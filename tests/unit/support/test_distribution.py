"""Order in which the workers of pytest-xdist begin the files of tests."""

from __future__ import annotations

from pathlib import Path

from tests.support.distribution import FIRST, SLOWEST_OF_FAST, group_of

ROOT = Path(__file__).resolve().parents[3]


def test_what_comes_first_exists() -> None:
    """A file that was renamed would be begun later than it should, and end after all others."""
    groups = {group_of(file.relative_to(ROOT).as_posix()) for file in (ROOT / "tests").rglob("test_*.py")}
    assert [name for name in (*FIRST, *SLOWEST_OF_FAST) if name not in groups] == []
