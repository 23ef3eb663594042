"""The installed program before its command line is imported."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.processes import CHILD_TIMEOUT_S

INTERRUPTED_IMPORT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "klamm.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from klamm.script import main
main()
"""


@pytest.mark.process
def test_interrupt_during_imports_prints_no_traceback() -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT]
    ended = subprocess.run(command, capture_output=True, timeout=CHILD_TIMEOUT_S, check=False)

    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, b"")
