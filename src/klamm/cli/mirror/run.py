"""Action that runs a mirror: the counterpart of MirrorMaker 2's connect-mirror-maker.sh."""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.logging import RichHandler
from rich.table import Table
from rich.text import Text

from klamm.display import LineFormatter, log_to_stderr
from klamm.extras import require_extra
from klamm.java import JavaNotFoundError, require_java
from klamm.mirror.progress.flow_progress import FlowState, describe
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.run import ProgressLines, stop_on_signals
from klamm.server.arguments import CommandParser

if TYPE_CHECKING:
    import argparse
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
            self._live.update(_tables(flows))


def _tables(flows: Sequence[FlowProgress]) -> Group:
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


def main(arguments: Sequence[str]) -> int:
    """Run a mirror until it is stopped. Return 0 on success, 1 if a flow failed and 2 if the file is invalid."""
    options = _parser().parse_args(list(arguments))
    require_extra("spark", feature="klamm mirror")
    try:
        obstacle = None if options.properties.is_file() else "no such file"
    except OSError as error:  # such as a directory that may not be searched
        obstacle = f"cannot be read: {error.strerror}"
    if obstacle is not None:
        sys.stderr.write(f"klamm mirror: {options.properties}: {obstacle}\n")
        return 2
    stop: threading.Event | None = None
    if not options.plan:  # with --plan, the default KeyboardInterrupt ends the run at once
        stop = threading.Event()
        stop_on_signals(
            stop
        )  # never restored: a second signal must not interrupt the shutdown that the first one started
    log_to_stderr()
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # the mirror reports the loss of the JVM with its own message
    # kafka-python logs a line for each attempt to connect; the mirror itself logs the consequences for the flow.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    if not options.plan:
        try:
            os.environ["JAVA_HOME"] = str(require_java())
        except JavaNotFoundError as error:
            sys.stderr.write(f"klamm mirror: {error}\n")
            return 1

    from klamm.cli.mirror.run import MirrorDisplay  # noqa: PLC0415 - --help needs none of it
    from klamm.mirror.run import run  # noqa: PLC0415

    with MirrorDisplay() as display:
        return run(
            options.properties,
            options.clusters,
            plan=options.plan,
            until_caught_up=options.until_caught_up,
            on_progress=display.show,
            stop=stop,
            overrides=_overrides(options),
            strict=options.strict,
            ignore_transforms=options.ignore_transforms,
        )


def _overrides(options: argparse.Namespace) -> dict[str, str]:
    """Return the keys of the properties file that command line flags set, with their values."""
    from klamm.mirror.settings.mirror import CHECKPOINT_DIR, MASTER, METRICS_LISTEN  # noqa: PLC0415 - --help needs none of it

    flags = {METRICS_LISTEN: options.metrics, MASTER: options.master, CHECKPOINT_DIR: options.checkpoint}
    return {key: value for key, value in flags.items() if value is not None}


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="klamm mirror",
        description="Mirror clusters on Spark, as configured in an mm2.properties file. SIGTERM or Ctrl-C "
        "stops it cleanly.",
        epilog="klamm mirror status FILE shows how far a mirror is, klamm mirror verify FILE "
        "compares both sides, klamm mirror cutover GROUP FILE moves a consumer group: see their --help.",
        allow_abbrev=False,
    )
    parser.add_argument("properties", type=Path, metavar="FILE", help="MirrorMaker's properties file")
    parser.add_argument(
        "--clusters", nargs="+", default=(), metavar="ALIAS", help="serve only flows to these clusters (default: all)"
    )
    parser.add_argument(
        "--plan", action="store_true", help="print what would be created and changed, and change nothing"
    )
    parser.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        help="serve a status page, /status.json and /metrics for Prometheus there (klamm.metrics.listen)",
    )
    parser.add_argument(
        "--master",
        metavar="URL",
        help="where Spark runs, such as spark://host:7077 (spark.master)",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="Spark's checkpoint directory (klamm.checkpoint.dir)",
    )
    parser.add_argument("--strict", action="store_true", help="reject keys without an effect, instead of a warning")
    parser.add_argument(
        "--ignore-transforms", action="store_true", help="copy records unchanged although FILE sets transforms"
    )
    parser.add_argument("--until-caught-up", action="store_true", help="end when everything is copied")
    return parser
