"""Start and end of a mirror's Spark job."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.mirror.progress.flow_progress import FlowState, MirrorStatus, SparkFailedError
from klamm.mirror.run import exit_code
from klamm.mirror.spark import class_archive, spark_run, stream
from klamm.mirror.spark.spark_run import SparkRun
from tests.support.mirror_status import progress_row

if TYPE_CHECKING:
    from pathlib import Path

DENIED = "TOPIC_AUTHORIZATION_FAILED: no right to"


class Loops:
    """Control loops of one flow that never has anything to copy."""

    def __init__(self) -> None:
        self.status = MirrorStatus(["A->B"])
        self.coordinator = SimpleNamespace(has_work=False)

    def end(self) -> None:
        self.coordinator.calls.append("last group offsets")


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*_: object) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr(spark_run, "_Launch", launch)
    monkeypatch.setattr(spark_run, "_BLOCKED_S", 0.1)


def run(loops: Loops, directory: Path, *, until_caught_up: bool, stopping: threading.Event | None = None) -> SparkRun:
    made = SparkRun(
        cast("Any", SimpleNamespace(spark={}, checkpoint_dir=None)),
        cast("Any", loops),
        stopping or threading.Event(),
        directory,
        until_caught_up=until_caught_up,
        on_progress=lambda _: None,
    )
    made.run()
    return made


class Launch:
    """Start of a session that is there at once."""

    def __init__(self, *_: object) -> None:
        self.is_done = threading.Event()
        self.is_done.set()

    def result(self) -> SimpleNamespace:
        return SimpleNamespace(session=None, jvm=None, output=SimpleNamespace(), is_lost=False, stop=lambda: None)


class Stream:
    """Stream that copies 45 of the 90 records behind each ``check``."""

    def __init__(self, _: object, coordinator: SimpleNamespace, *, checkpoint: str) -> None:
        self._coordinator = coordinator
        self._position = 10

    def start(self) -> None:
        self._coordinator.calls.append("start")

    def check(self) -> None:
        self._position += 45
        self._coordinator.status.update("task", [progress_row(next_offset=self._position)])

    def count_slots(self) -> None:
        pass

    def end_lease(self, patience_s: float) -> bool:
        self._coordinator.calls.append(f"end of lease at {self._position}")
        return True

    def stop(self, patience_s: float) -> None:
        self._coordinator.calls.append("stop")


def test_until_caught_up_ends_in_order_when_no_flow_has_lag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr(spark_run, "_Launch", Launch)
    monkeypatch.setattr(stream, "MirrorStream", Stream)
    loops, calls = Loops(), list[str]()
    loops.coordinator = SimpleNamespace(has_work=True, has_tasks=False, status=loops.status, calls=calls)
    loops.status.set_state("A->B", FlowState.RUNNING)
    loops.status.expect("A->B", [("orders", 0)])
    loops.status.update("task", [progress_row()])
    # when
    ended = run(loops, tmp_path, until_caught_up=True)
    # then
    assert calls == ["start", "end of lease at 100", "last group offsets", "stop"]
    assert ended.gave_up == ()
    assert exit_code(loops.status.snapshot()) == 0


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


@pytest.mark.parametrize(("losses", "starts"), [(0, 1), (1, 5)])
def test_failed_start_ends_the_mirror_at_once_or_after_a_loss_as_the_fifth_loss(
    losses: int, starts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    started: list[int] = []

    class JvmThatDies(Launch):
        def result(self) -> SimpleNamespace:
            started.append(len(started))
            if len(started) > losses:
                raise SparkFailedError("Spark does not start: the JVM ended")
            jvm = SimpleNamespace(describe_end=lambda: "was killed", wait=lambda _: -9)
            return SimpleNamespace(session=None, jvm=jvm, output=SimpleNamespace(), is_lost=True, stop=lambda: None)

    monkeypatch.setattr(spark_run, "_Launch", JvmThatDies)
    monkeypatch.setattr(stream, "MirrorStream", Stream)
    monkeypatch.setattr(class_archive, "write_in_background", lambda: None)
    loops = Loops()
    loops.coordinator = SimpleNamespace(has_work=True, has_tasks=False, status=loops.status, calls=[])
    loops.status.set_state("A->B", FlowState.RUNNING)
    # when
    with pytest.raises(SparkFailedError, match="Spark does not start: the JVM ended"):
        run(loops, tmp_path, until_caught_up=False)
    # then
    assert len(started) == starts
