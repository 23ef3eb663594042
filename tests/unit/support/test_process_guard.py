"""The guard that keeps unmarked unit tests from starting processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.process_guard import UnmarkedProcessError


def test_unmarked_test_cannot_start_a_process() -> None:
    with pytest.raises(UnmarkedProcessError, match=r"mark it with pytest\.mark\.process"):
        subprocess.run([sys.executable, "-c", ""], check=True)


@pytest.mark.process
def test_marked_test_can_start_a_process() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)
