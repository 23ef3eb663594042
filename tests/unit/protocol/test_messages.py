"""Generated messages, compared with the generator's output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]


def test_committed_messages_match_the_generator() -> None:
    """K649-03, K649-04, K649-05, K649-07, K649-08, K649-12, K649-13: fields in the order of the schemas."""
    check = subprocess.run(
        [sys.executable, ROOT / "scripts" / "generate_messages.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stderr
