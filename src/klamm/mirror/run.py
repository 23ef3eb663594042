"""Run a mirror as ``mm2.properties`` says: ``klamm mirror mm2.properties [--clusters ...]``."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from klamm.mirror.progress import FlowProgress, FlowState, describe
from klamm.mirror.settings.mirror import MirrorSettings, parse_settings
from klamm.mirror.settings.providers import resolve
from klamm.mirror.topics.plan_output import print_plan
from klamm.properties import SettingsError, read_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from klamm.mirror.spark.driver import ControlLoops

logger = logging.getLogger(__name__)

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

_TURN_S: Final = 0.1
_REPORT_EVERY_S: Final = 1.0
_REPEATED_EVERY_S: Final = 60.0
"""A log is to show that a mirror lives, and not fill up while one waits for a cluster over a weekend."""


def run(
    properties_path: Path,
    clusters: Sequence[str] = (),
    *,
    plan: bool = False,
    until_caught_up: bool = False,
    on_progress: Callable[[tuple[FlowProgress, ...]], None] | None = None,
    stop: threading.Event | None = None,
    overrides: Mapping[str, str] | None = None,
) -> int:
    """Mirror until a signal, or until everything is copied, or until every flow has failed.

    Args:
        properties_path: MirrorMaker's file.
        clusters: only flows to these clusters; empty means all.
        plan: show what the next round would change, and change nothing.
        until_caught_up: end when no flow lags.
        on_progress: called about once a second; None means: lines on stderr.
        stop: ends the mirror when set; None means: SIGINT and SIGTERM do.
        overrides: keys that win over those of the file.

    Returns:
        0 done, 1 a flow failed, a partition stopped or a topic was refused, 2 the file asks for something that cannot
        be.
    """
    try:
        properties = resolve({**read_properties(properties_path), **(overrides or {})})
        settings = parse_settings(properties, target_aliases=clusters)
        settings.check_clients()
        settings.tell(logger)
        if plan:
            return print_plan(settings, sys.stdout)
        return _mirror(settings, until_caught_up=until_caught_up, on_progress=on_progress or ProgressLines(), stop=stop)
    except SettingsError as error:
        sys.stderr.write(f"{properties_path}: {error}\n")
        return EXIT_USAGE


def _mirror(
    settings: MirrorSettings,
    *,
    until_caught_up: bool,
    on_progress: Callable[[tuple[FlowProgress, ...]], None],
    stop: threading.Event | None,
) -> int:
    """Run from the main thread when signals are to end it, and return the exit code."""
    from klamm.mirror.spark.driver import ControlLoops  # noqa: PLC0415 - the data path is loaded on demand

    loops = ControlLoops(settings)
    with (
        _signals() if stop is None else contextlib.nullcontext(stop) as stopping,
        tempfile.TemporaryDirectory(prefix="klamm-mirror-", ignore_cleanup_errors=True) as directory,
        # Spark takes a while to import and to start: topics are created and configs synced meanwhile.
        loops,
    ):
        if settings.flows:
            _run_spark(
                settings, loops, stopping, Path(directory), until_caught_up=until_caught_up, on_progress=on_progress
            )
        elif not until_caught_up:
            stopping.wait()
    final = loops.status.snapshot()
    on_progress(final)
    return exit_code(final)


def exit_code(flows: Sequence[FlowProgress]) -> int:
    """Return what a mirror ends with: 0 only where nobody is needed."""
    failed = any(flow.state is FlowState.FAILED or flow.stopped or flow.refused for flow in flows)
    return EXIT_FAILED if failed else EXIT_OK


def _run_spark(
    settings: MirrorSettings,
    loops: ControlLoops,
    stopping: threading.Event,
    directory: Path,
    *,
    until_caught_up: bool,
    on_progress: Callable[[tuple[FlowProgress, ...]], None],
) -> None:
    with warnings.catch_warnings():
        # pyspark warns about every new pandas, which the mirror does not use.
        warnings.simplefilter("ignore", FutureWarning)
        from klamm.mirror.spark.session import start_session  # noqa: PLC0415 - takes a second to import
        from klamm.mirror.spark.stream import MirrorStream  # noqa: PLC0415

        spark = start_session(settings.spark, directory)
    with contextlib.ExitStack() as ending:
        ending.callback(spark.stop)
        checkpoint = settings.checkpoint_dir or (directory / "checkpoint").as_uri()
        stream = MirrorStream(spark, loops.coordinator, checkpoint=checkpoint)
        ending.callback(stream.stop)
        stream.start()
        report_at = 0.0
        while not stopping.wait(_TURN_S):
            stream.check()
            is_due = time.monotonic() >= report_at
            if not is_due and not until_caught_up:
                continue  # to look at ten thousand partitions takes its time
            progress = loops.status.snapshot()
            if is_due:
                report_at = time.monotonic() + _REPORT_EVERY_S
                stream.count_slots()
                on_progress(progress)
            if _is_over(progress, until_caught_up=until_caught_up):
                break


def _is_over(progress: Sequence[FlowProgress], *, until_caught_up: bool) -> bool:
    running = [flow for flow in progress if flow.state is not FlowState.FAILED]
    if not running:
        return True
    return until_caught_up and all(flow.is_done for flow in running)


@contextlib.contextmanager
def _signals() -> Iterator[threading.Event]:
    """Set an event on SIGINT and SIGTERM."""
    stopping = threading.Event()

    def on_signal(_: int, __: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class ProgressLines:
    """Writes a line for each flow whose progress changed, and for the others one now and then."""

    def __init__(self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._written: dict[str, tuple[str, float]] = {}

    def __call__(self, flows: tuple[FlowProgress, ...]) -> None:
        """Take what is the progress now."""
        out = self._out or sys.stderr
        now = self._clock()
        for flow in flows:
            line = describe(flow)
            before, at = self._written.get(flow.flow, ("", 0.0))
            if line != before or now - at >= _REPEATED_EVERY_S:
                out.write(line + "\n")
                self._written[flow.flow] = line, now
        out.flush()
