"""Run a command while each CPU has one process too many, for tests that pass only on an idle machine.

Usage: ``python scripts/beside_load.py COMMAND...``. Exits with the command's code.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

BUSY: Final = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
"""Computes until its parent ends, even if it is killed."""


def run(command: Sequence[str]) -> int:
    """Run a command beside one busy process per CPU."""
    busy = [subprocess.Popen((sys.executable, "-c", BUSY)) for _ in range(os.cpu_count() or 1)]
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    raise SystemExit(run(sys.argv[1:]))
