"""Progress output of a mirror."""

from __future__ import annotations

import io
import logging
import re
from typing import TYPE_CHECKING, Any

from rich.console import Console

from klamm.cli.mirror.display import MirrorDisplay, render_tables
from klamm.mirror.progress.flow_progress import FlowProgress, FlowState, MirrorStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest


def row(
    topic: str, partition: int = 0, *, copied: int = 50, state: str = "COPYING", reason: str = ""
) -> dict[str, Any]:
    return {
        "flow": "A->B",
        "topic": topic,
        "partition": partition,
        "remote_topic": f"A.{topic}",
        "next_offset": copied,
        "end_offset": 100,
        "state": state,
        "reason": reason,
        "last_timestamp": -1,
        "records": copied,
        "bytes": 10 * copied,
    }


def flows(
    state: FlowState = FlowState.RUNNING, *, copied: int = 50, partition_state: str = "COPYING", reason: str = ""
) -> Sequence[FlowProgress]:
    status = MirrorStatus(["A->B"], clock=lambda: 0.0)
    status.expect("A->B", [("orders", 0), ("orders", 1)])
    status.set_state("A->B", state)
    rows = [row("orders", partition, copied=copied, state=partition_state, reason=reason) for partition in (0, 1)]
    status.update("session", rows)
    return status.snapshot()


def test_progress_without_terminal_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    out = io.StringIO()
    with caplog.at_level(logging.INFO), MirrorDisplay(Console(file=out, width=300)) as display:
        display.show(flows())
        display.show(flows(copied=60))
    assert [message.split()[2] for message in caplog.messages] == ["100/200", "120/200"], "at first and at the end"
    assert out.getvalue() == ""


def rendered(progress: Sequence[FlowProgress]) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=120).print(render_tables(progress))
    return [line.strip() for line in out.getvalue().splitlines()]


def test_terminal_shows_row_per_topic() -> None:
    assert rendered(flows())[-1].split() == ["orders", "100", "200", "50%", "100", "COPYING"]


def test_stopped_partition_is_shown_with_reason() -> None:
    assert "partition 0 stopped: no position" in rendered(flows(partition_state="STOPPED", reason="no position"))[-1]


def test_terminal_shows_topics_with_largest_lag() -> None:
    status = MirrorStatus(["A->B"], clock=lambda: 0.0)
    rows = [row(f"t{number:03}", copied=100) for number in range(500)]
    rows[7] = row("t007", copied=1)
    rows[300] = row("t300", copied=100, state="STOPPED", reason="too large")
    status.update("session", rows)
    lines = rendered(status.snapshot())
    topics = [line.split()[0] for line in lines if re.match(r"t\d", line)]
    assert lines[-1] == "and 480 more topics"
    assert len(topics) == 20
    assert {"t007", "t300"} <= set(topics)
