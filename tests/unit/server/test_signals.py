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

RELOADED = b"There are no policies to reload"

IN_TERMINAL = """
import os, signal, sys
from klamm.cli import main
way = sys.argv.pop(1)
signal.signal(signal.SIGHUP, signal.SIG_IGN if way == "nohup" else signal.SIG_DFL)
if sys.argv[1]:
    os.open(sys.argv[1], os.O_RDWR)  # becomes the controlling terminal of this session
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("way", ["terminal", "nohup", "service"])
def test_broker_survives_sighup_until_its_terminal_is_closed(way: str, tmp_path: Path) -> None:
    # given
    log, (ours, theirs) = tmp_path / "log", os.openpty()
    terminal = "" if way == "service" else os.ttyname(theirs)
    words = ["broker", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    process = start_process([sys.executable, "-c", IN_TERMINAL, way, terminal, *words], log=log, new_session=True)
    os.close(theirs)

    def hang_up(*, times: int) -> None:
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: log.read_bytes().count(RELOADED) >= times, timeout_s=10, what="a reload")

    try:
        wait_until(lambda: b"ready on" in log.read_bytes(), timeout_s=30, what="a broker")
        # when
        hang_up(times=1)
        os.close(ours)
        if way != "terminal":
            hang_up(times=2)
            process.terminate()
        # then
        assert process.wait(20) == 0
        assert (b"The terminal was closed" in log.read_bytes()) is (way == "terminal")
    finally:
        stop_process(process)
