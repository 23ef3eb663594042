"""Processes that end with their parent."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from klamm.embedded.server_process import TiedProcess

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

PROGRAM = """
    import signal, sys, time

    def main(arguments):
        if "stubborn" in arguments:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        if "at-once" in arguments:
            return 7
        time.sleep(60)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that only this process's ``sys.path`` leads to."""
    (tmp_path / "a_program.py").write_text(textwrap.dedent(PROGRAM))
    monkeypatch.syspath_prepend(tmp_path)
    return "a_program"


def started(program: str, *arguments: str, log: Path, is_tied: bool = True) -> TiedProcess:
    with log.open("wb") as file:
        tied = TiedProcess(program, arguments, log=file, pipe_stdout=True, is_tied=is_tied)
    assert tied.process.stdout is not None
    assert tied.process.stdout.readline() == b"ready\n"
    return tied


@pytest.mark.parametrize("is_tied", [True, False])
def test_return_value_of_main_is_the_exit_code(program: str, tmp_path: Path, is_tied: bool) -> None:
    tied = started(program, "at-once", log=tmp_path / "log", is_tied=is_tied)
    assert tied.process.wait(60) == 7
    assert tied.end(10) == 7


def test_process_is_terminated_gracefully(program: str, tmp_path: Path) -> None:
    assert started(program, log=tmp_path / "log").end(10) == -15


def test_process_that_ignores_termination_is_killed(program: str, tmp_path: Path) -> None:
    assert started(program, "stubborn", log=tmp_path / "log").end(0.2) == -9
