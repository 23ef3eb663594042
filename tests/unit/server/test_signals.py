"""Signals of a server process: SIGHUP never ends one that a service manager reloads."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import start_process, stop_process, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

IN_TERMINAL = """
import os, sys
from klamm.cli import main
if sys.argv[1]:
    os.open(sys.argv[1], os.O_RDWR)  # becomes the controlling terminal of this session
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("has_terminal", [True, False])
def test_a_broker_survives_sighup_until_its_terminal_is_closed(tmp_path: Path, *, has_terminal: bool) -> None:
    # given
    log, (ours, theirs) = tmp_path / "log", os.openpty()
    terminal = os.ttyname(theirs) if has_terminal else ""
    words = ["broker", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    process = start_process([sys.executable, "-c", IN_TERMINAL, terminal, *words], log=log, new_session=True)
    os.close(theirs)
    try:
        wait_until(lambda: b"ready on" in log.read_bytes(), timeout_s=30, what="a broker")
        # when
        process.send_signal(signal.SIGHUP)
        # then
        wait_until(lambda: b"There are no policies to reload" in log.read_bytes(), timeout_s=10, what="a reload")
        # when
        os.close(ours)
        if not has_terminal:
            process.terminate()
        # then
        assert process.wait(20) == 0
        assert (b"The terminal was closed" in log.read_bytes()) is has_terminal
    finally:
        stop_process(process)
