"""Signals of a server process: SIGHUP never ends one that a service manager reloads."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from klamm.server.signals import StartStoppedError, unless_stopped
from tests.support.processes import CHILD_TIMEOUT_S, start_process, stop_process, wait_until

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
        wait_until(lambda: log.read_bytes().count(RELOADED) >= times, timeout_s=CHILD_TIMEOUT_S, what="a reload")

    try:
        wait_until(lambda: b"ready on" in log.read_bytes(), timeout_s=CHILD_TIMEOUT_S, what="a broker")
        # when
        hang_up(times=1)
        os.close(ours)
        if way != "terminal":
            hang_up(times=2)
            process.terminate()
        # then
        assert process.wait(CHILD_TIMEOUT_S) == 0
        assert (b"The terminal was closed" in log.read_bytes()) is (way == "terminal")
    finally:
        stop_process(process)


HANGING_POLICY = """
import sys, time

class Hangs:
    def configure(self, configs):
        sys.stderr.write("configuring")
        sys.stderr.flush()
        time.sleep(600)

    def validate(self, details):
        pass
"""


@pytest.mark.parametrize(
    "words",
    [
        ("broker", "--listen", "127.0.0.1:0", "--data-dir", "data"),
        ("gateway", "--upstream", "127.0.0.1:1", "--data-dir", "data"),
    ],
    ids=["broker", "gateway"],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server_whose_policy_hangs_in_configure_can_be_stopped(
    words: tuple[str, ...], number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    (tmp_path / "hanging.py").write_text(HANGING_POLICY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log"
    policy = ("--set", "create.topic.policy.class.name=hanging:Hangs")
    process = start_process([sys.executable, "-m", "klamm", *words, *policy], log=log)
    try:
        wait_until(lambda: b"configuring" in log.read_bytes(), timeout_s=CHILD_TIMEOUT_S, what="the policy")
        # when
        process.send_signal(number)
        # then
        assert process.wait(CHILD_TIMEOUT_S) == 0
        assert b"Stopped during the start" in log.read_bytes()
    finally:
        stop_process(process)


async def test_error_of_a_cancelled_step_is_not_reported() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    stop = asyncio.Event()
    stop.set()

    async def step() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError

    with pytest.raises(StartStoppedError):
        await unless_stopped(stop, step())
    gc.collect()

    assert reported == []
