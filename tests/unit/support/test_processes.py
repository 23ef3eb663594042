"""Ports of tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import free_port

_ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.process
def test_port_is_not_given_to_another_run_before_it_is_in_use() -> None:
    port = free_port()
    code = f"from tests.support import processes; processes._PORTS = range({port}, {port + 1}); processes.free_port()"

    other = subprocess.run([sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=False)

    assert f"No free port in range({port}, {port + 1})" in other.stderr
