"""Signals that end a mirror, and log records of its progress, which a service keeps for weeks."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
from typing import TYPE_CHECKING, Any

import pytest

from klamm.mirror.progress.flow_progress import FlowState, MirrorStatus
from klamm.mirror.run import EXIT_FAILED, ProgressLines, run, signals_as_event

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Followed:
    """A flow whose progress is logged, with a clock of its own."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, logger="klamm.mirror.run")
        self._caplog = caplog
        self.seconds = 0.0
        self.status = MirrorStatus(["A->B"], clock=lambda: self.seconds)
        self._lines = ProgressLines(clock=lambda: self.seconds)

    def copied(self, count: int) -> None:
        row: dict[str, Any] = {
            "flow": "A->B", "topic": "t", "partition": 0, "remote_topic": "A.t", "next_offset": count,
            "end_offset": 1_000, "state": "COPYING", "reason": "", "last_timestamp": -1, "records": count, "bytes": 0,
        }  # fmt: skip
        self.status.update("session", [row])

    def logged(self, at: float, *, end: bool = False) -> list[str]:
        """Return what is logged at a second."""
        self.seconds = at
        self._caplog.clear()
        (self._lines.finish if end else self._lines)(self.status.snapshot())
        return [message.partition(" records")[0] for message in self._caplog.messages]


@pytest.fixture
def followed(caplog: pytest.LogCaptureFixture) -> Followed:
    return Followed(caplog)


def per_second(followed: Followed, seconds: range, change: Callable[[int], None]) -> dict[int, list[str]]:
    out = {}
    for second in seconds:
        change(second)
        if lines := followed.logged(second):
            out[second] = lines
    return out


def test_changing_figures_are_logged_once_per_minute(followed: Followed) -> None:
    followed.status.expect("A->B", [("t", 0)])
    followed.status.set_state("A->B", FlowState.RUNNING)
    logged = per_second(followed, range(130), followed.copied)
    assert logged == {
        0: ["A->B RUNNING: 0/1,000"], 60: ["A->B RUNNING: 60/1,000"], 120: ["A->B RUNNING: 120/1,000"]
    }  # fmt: skip


def test_idle_mirror_logs_nothing(followed: Followed) -> None:
    followed.status.set_state("A->B", FlowState.RUNNING)
    assert list(per_second(followed, range(1_000), lambda _: None)) == [0]


def test_new_state_is_logged_at_once_and_once_per_minute(followed: Followed) -> None:
    def flap(second: int) -> None:
        followed.status.set_state("A->B", FlowState.WAITING if second % 2 else FlowState.RUNNING, "B is away")

    assert list(per_second(followed, range(62), flap)) == [0, 1, 60, 61]


def test_first_caught_up_is_logged_at_once(followed: Followed) -> None:
    followed.status.expect("A->B", [("t", 0)])
    followed.status.set_state("A->B", FlowState.RUNNING)
    logged = per_second(followed, range(50), lambda second: followed.copied(1_000 - second % 10))
    assert list(logged) == [0]
    assert "1,000/1,000" in logged[0][0]


def test_final_progress_is_logged_if_it_changed(followed: Followed) -> None:
    followed.status.set_state("A->B", FlowState.STOPPED)
    assert followed.logged(0, end=True) == ["A->B STOPPED: 0/0"]
    assert followed.logged(1, end=True) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_set_event_and_handlers_are_restored(number: signal.Signals) -> None:
    inherited = signal.signal(number, signal.default_int_handler)  # nohup lets SIGHUP be ignored
    try:
        with signals_as_event() as stopping:
            os.kill(os.getpid(), number)
            assert stopping.wait(60)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, inherited)


def test_nohup_mirror_ignores_sighup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_as_event() as stopping:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stopping.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_mirror_without_a_temporary_directory_fails_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    file = tmp_path / "mm2.properties"
    clusters = "clusters=A,B\nA.bootstrap.servers=127.0.0.1:1\nB.bootstrap.servers=127.0.0.1:1\nA->B.enabled=true\n"
    file.write_text(clusters, encoding="utf-8")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    # when
    code = run(file, stop=threading.Event())
    # then
    assert code == EXIT_FAILED
    assert caplog.messages[-1] == (
        "Spark needs a temporary directory: No such file or directory. Set TMPDIR to a directory that is writable"
    )
