"""The lines of a mirror's progress, which a daemon's log holds for weeks."""

from __future__ import annotations

from io import StringIO

from klamm.mirror.progress import FlowState, MirrorStatus
from klamm.mirror.run import ProgressLines


def test_a_line_is_written_when_something_changed_and_else_once_a_minute() -> None:
    # given
    out, seconds = StringIO(), [0.0]
    lines = ProgressLines(out, clock=lambda: seconds[0])
    status = MirrorStatus(["A->B", "B->A"])
    status.set_state("A->B", FlowState.WAITING, "B is away")
    lines(status.snapshot())
    assert [line.split(":")[0] for line in out.getvalue().splitlines()] == ["A->B WAITING (B is away)", "B->A STARTING"]
    # when
    for at in range(1, 61):
        out.truncate(0)
        seconds[0] = at
        if at == 30:
            status.set_state("A->B", FlowState.RUNNING)
        lines(status.snapshot())
        # then
        written = [line.split(":")[0] for line in out.getvalue().strip("\0").splitlines()]
        assert written == {30: ["A->B RUNNING"], 60: ["B->A STARTING"]}.get(at, [])
