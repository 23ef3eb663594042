"""Progress display of a mirror: a live table on a terminal, log records elsewhere."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.logging import RichHandler
from rich.table import Table
from rich.text import Text

from klamm.display import LineFormatter
from klamm.mirror.progress.flow_progress import FlowState, describe
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.run import ProgressLines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from klamm.mirror.progress.flow_progress import FlowProgress, PartitionStatus

_MAX_TOPICS: Final = 20
"""Maximum number of topics in the table, so that it fits a terminal."""
_COLUMNS: Final = ("topic", "copied", "total", "", "lag", "state")


class MirrorDisplay:
    """Progress display on stderr. Only one thread may call ``show``."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._lines = ProgressLines()
        self._shown: Sequence[FlowProgress] = ()

    def __enter__(self) -> Self:
        """Start the display; log lines are printed above the live table."""
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
            handler = RichHandler(console=self._console, show_path=False, markup=False)
            handler.setFormatter(LineFormatter("%(message)s"))
            logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the display and print the last state as plain lines."""
        if self._live is None:
            self._lines.finish(self._shown)
            return
        self._live.stop()
        for flow in self._shown:
            self._console.print(describe(flow), markup=False, soft_wrap=True)

    def show(self, flows: Sequence[FlowProgress]) -> None:
        """Show the state of all flows."""
        self._shown = flows
        if self._live is None:
            self._lines(flows)
        else:
            self._live.update(render_tables(flows))


def render_tables(flows: Sequence[FlowProgress]) -> Group:
    """Return the state of each flow, with a table of its partitions."""
    parts: list[Text | Table] = []
    for flow in flows:
        parts.append(Text(describe(flow), style="bold red" if flow.state is FlowState.FAILED else "bold"))
        table = Table(box=None, padding=(0, 1))
        for column in _COLUMNS:
            table.add_column(column, justify="left" if column in {"topic", "state"} else "right")
        shown, others = _shown(flow.partitions)
        for topic, partitions in shown.items():
            table.add_row(*_topic_row(topic, partitions))
        if flow.partitions:
            parts.append(table)
        if others:
            parts.append(Text(f"   and {others} more topics", style="dim"))
    return Group(*parts)


def _shown(partitions: Sequence[PartitionStatus]) -> tuple[Mapping[str, Sequence[PartitionStatus]], int]:
    """Return the partitions by topic, and the number of topics omitted because the table is full.

    Topics with a stopped partition are shown first, then those with the largest lag.
    """
    by_topic: dict[str, list[PartitionStatus]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition)
    if len(by_topic) > _MAX_TOPICS:
        first = sorted(by_topic, key=lambda topic: _urgency(by_topic[topic]), reverse=True)[:_MAX_TOPICS]
        return {topic: by_topic[topic] for topic in sorted(first)}, len(by_topic) - _MAX_TOPICS
    return {topic: by_topic[topic] for topic in sorted(by_topic)}, 0


def _urgency(partitions: Sequence[PartitionStatus]) -> tuple[bool, int]:
    return any(each.state is CopyState.STOPPED for each in partitions), sum(each.lag or 0 for each in partitions)


def _topic_row(topic: str, partitions: Sequence[PartitionStatus]) -> tuple[str, ...]:
    copied = sum(max(0, partition.next_offset) for partition in partitions)
    total = sum(max(0, partition.end_offset) for partition in partitions)
    lags = [partition.lag for partition in partitions]
    lag = (
        f"{sum(known_lags):,}"
        if len(known_lags := [lag for lag in lags if lag is not None]) == len(lags)
        else "unknown"
    )
    stopped = [partition for partition in partitions if partition.state is CopyState.STOPPED]
    state = f"partition {stopped[0].partition} stopped: {stopped[0].reason}" if stopped else partitions[0].state
    return (f"  {topic}", f"{copied:,}", f"{total:,}", f"{copied / total:.0%}" if total else "-", lag, state)
