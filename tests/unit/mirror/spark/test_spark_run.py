"""Start and end of a mirror's Spark job."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.mirror.progress.flow_progress import FlowState, MirrorStatus
from klamm.mirror.spark import spark_run
from klamm.mirror.spark.spark_run import SparkRun

if TYPE_CHECKING:
    from pathlib import Path

DENIED = "TOPIC_AUTHORIZATION_FAILED: no right to"


class Loops:
    """Control loops of one flow that never has anything to copy."""

    def __init__(self) -> None:
        self.status = MirrorStatus(["A->B"])
        self.coordinator = SimpleNamespace(has_work=False)


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*_: object) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr(spark_run, "_Launch", launch)
    monkeypatch.setattr(spark_run, "_BLOCKED_S", 0.1)


def run(loops: Loops, directory: Path, *, until_caught_up: bool, stopping: threading.Event | None = None) -> SparkRun:
    made = SparkRun(
        cast("Any", SimpleNamespace(spark={})),
        cast("Any", loops),
        stopping or threading.Event(),
        directory,
        until_caught_up=until_caught_up,
        on_progress=lambda _: None,
    )
    made.run()
    return made


@pytest.mark.usefixtures("no_spark")
def test_failed_flow_does_not_start_spark(tmp_path: Path) -> None:
    loops = Loops()
    loops.status.set_state("A->B", FlowState.FAILED, "not compatible")
    assert run(loops, tmp_path, until_caught_up=False).gave_up == ()


@pytest.mark.usefixtures("no_spark")
def test_until_caught_up_stops_when_manual_action_is_required(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loops = Loops()
    loops.status.set_state("A->B", FlowState.WAITING, DENIED)
    assert run(loops, tmp_path, until_caught_up=True).gave_up == ("A->B",)
    assert caplog.messages == [f"A->B: gives up, because only an operator can correct this: {DENIED}"]


@pytest.mark.usefixtures("no_spark")
def test_service_keeps_waiting_when_manual_action_is_required(tmp_path: Path) -> None:
    loops, stopping = Loops(), threading.Event()
    loops.status.set_state("A->B", FlowState.WAITING, DENIED)
    threading.Timer(0.5, stopping.set).start()
    assert run(loops, tmp_path, until_caught_up=False, stopping=stopping).gave_up == ()
    assert stopping.is_set()


@pytest.mark.parametrize("state", [FlowState.STARTING, FlowState.STANDBY])
def test_spark_starts_during_first_round_and_while_standing_by(
    state: FlowState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StartedError(Exception):
        pass

    def launch(*_: object) -> None:
        raise StartedError

    monkeypatch.setattr(spark_run, "_Launch", launch)
    loops = Loops()
    loops.status.set_state("A->B", state)
    with pytest.raises(StartedError):
        run(loops, tmp_path, until_caught_up=True)
