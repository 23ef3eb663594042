"""A failed stream is restarted with growing pauses, a limited number of times."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.dataframes.errors import DataLossError, ReadingError
from klamm.registration_report.restarts import LONGEST_PAUSE_S, MAX_FAILURES, STEADY_S, SteadyStream

TRACE = "[STREAM_FAILED] Query ended\nTraceback:\nklamm.wire.connection.ConnectionLostError: No broker\n=== Plan ==="


class Query:
    """Query that runs until the test ends it."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.is_stopped = False

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.is_stopped = True


class Machine:
    """Starts queries, and holds the clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.started: list[Query] = []
        self.stream: SteadyStream[Any] = SteadyStream("versions", self.start, now=lambda: self.now_s)

    def start(self) -> Query:
        self.started.append(Query())
        return self.started[-1]

    def fail(self, trace: str = TRACE) -> None:
        self.started[-1].error = RuntimeError(trace)
        self.stream.tend()

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.stream.tend()


def test_running_stream_is_not_restarted() -> None:
    machine = Machine()
    machine.pass_time(1_000)
    assert len(machine.started) == 1


def test_ended_stream_is_restarted_after_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.fail()
    assert "The stream of versions ended and is started again in 1 s: No broker" in caplog.text
    machine.pass_time(0.9)
    assert len(machine.started) == 1
    machine.pass_time(0.2)
    assert machine.stream.query is machine.started[1]
    machine.stream.stop()
    assert machine.started[1].is_stopped


def test_backoff_grows_and_the_last_failure_is_raised() -> None:
    machine = Machine()
    pauses = []
    for count in range(1, MAX_FAILURES):
        machine.fail()
        failed_at_s = machine.now_s
        while len(machine.started) == count:
            machine.pass_time(0.5)
        pauses.append(machine.now_s - failed_at_s)
    assert pauses == [1, 2, 4, 8, 16] + [LONGEST_PAUSE_S] * (MAX_FAILURES - 6)
    with pytest.raises(RuntimeError, match="No broker"):
        machine.fail()


def test_stream_ends_soon_with_a_remedy_if_records_are_gone() -> None:
    error = DataLossError("registrations-0 ends at 2, before 6")
    trace = f"[STREAM_FAILED] Query ended\nTraceback:\nklamm.dataframes.errors.DataLossError: {error}\n=== Plan ==="
    machine = Machine()
    for each in (
        TRACE,
        TRACE,
        trace,
        trace,
    ):  # a restarted broker may report an earlier end at first
        machine.fail(each)
        machine.pass_time(LONGEST_PAUSE_S)
    with pytest.raises(ReadingError, match=r"another --checkpoint directory: registrations-0 ends at 2, before 6$"):
        machine.fail(trace)


def test_steady_run_resets_the_failure_count() -> None:
    machine = Machine()
    for _ in range(2 * MAX_FAILURES):
        machine.fail()
        machine.pass_time(LONGEST_PAUSE_S)
        machine.pass_time(STEADY_S)
