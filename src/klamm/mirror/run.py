"""Run a mirror as ``mm2.properties`` says: ``klamm mirror mm2.properties [--clusters ...]``."""

from __future__ import annotations

import contextlib
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.mirror.errors import SparkFailedError
from klamm.mirror.progress import FlowProgress, FlowState, describe
from klamm.mirror.settings.mirror import MirrorSettings, parse_settings
from klamm.mirror.settings.providers import resolve
from klamm.mirror.signals import signals_as_event
from klamm.mirror.topics.plan_output import print_plan
from klamm.properties import SettingsError, read_properties

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

logger = logging.getLogger(__name__)

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

_THREADS_END_S: Final = 2.5
"""How long control loops may take to end: one that waits for a cluster that is away has nothing to lose."""
_AT_MOST_EVERY_S: Final = 60.0
"""How often figures are logged that change all the time."""


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
        on_progress: called about once a second, and at the end; None means: log records when something changed.
        stop: ends the mirror when set; None means: SIGINT and SIGTERM do.
        overrides: keys that win over those of the file.

    Returns:
        0 done, 1 a flow failed, a partition stopped, a topic was refused, or a flow gave up because only a person can
        change what it waits for (``until_caught_up``), 2 the file asks for something that cannot be.
    """
    try:
        properties = resolve({**read_properties(properties_path), **(overrides or {})})
        settings = parse_settings(properties, target_aliases=clusters)
        settings.check_clients()
        settings.log_notes(logger)
        if plan:
            return print_plan(settings, sys.stdout)
        return _mirror(settings, until_caught_up=until_caught_up, on_progress=on_progress, stop=stop)
    except SettingsError as error:
        sys.stderr.write(f"{properties_path}: {error}\n")
        return EXIT_USAGE
    except SparkFailedError as error:
        logger.error("%s", error)  # noqa: TRY400 - the text says it all
        return EXIT_FAILED


def _mirror(
    settings: MirrorSettings,
    *,
    until_caught_up: bool,
    on_progress: Callable[[tuple[FlowProgress, ...]], None] | None,
    stop: threading.Event | None,
) -> int:
    """Run from the main thread when signals are to end it, and return the exit code."""
    from klamm.mirror.spark.driver import ControlLoops  # noqa: PLC0415 - the data path is loaded on demand
    from klamm.mirror.spark.running import SparkRun  # noqa: PLC0415

    loops = ControlLoops(settings, join_s=_THREADS_END_S)
    lines = ProgressLines()
    gave_up = False
    with (
        signals_as_event() if stop is None else contextlib.nullcontext(stop) as stopping,
        tempfile.TemporaryDirectory(prefix="klamm-mirror-", ignore_cleanup_errors=True) as directory,
        # Spark takes a while to import and to start: topics are created and configs synced meanwhile.
        loops,
    ):
        if settings.flows:
            on_spark = SparkRun(
                settings,
                loops,
                stopping,
                Path(directory),
                until_caught_up=until_caught_up,
                on_progress=on_progress or lines,
            )
            on_spark.run()
            gave_up = bool(on_spark.gave_up)
        elif not until_caught_up:
            stopping.wait()
    final = loops.status.snapshot()
    (on_progress or lines.finish)(final)
    return EXIT_FAILED if gave_up else exit_code(final)


def exit_code(flows: Sequence[FlowProgress]) -> int:
    """Return what a mirror ends with: 0 only where nobody is needed."""
    failed = any(flow.state is FlowState.FAILED or flow.stopped or flow.refused for flow in flows)
    return EXIT_FAILED if failed else EXIT_OK


class ProgressLines:
    """Logs how far each flow is when something changed, at most once a minute.

    What a person may have to react to, such as a flow's state and its reason, is logged at once, but the same thing not
    twice within a minute. A mirror with nothing to do logs nothing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[str, tuple[str, float]] = {}
        """The last line of each flow, and when it was logged."""
        self._standings: dict[tuple[object, ...], float] = {}
        """When each standing of a flow was logged last."""
        self._caught_up: set[str] = set()
        """Flows that have caught up once: under load they do so again and again."""

    def __call__(self, flows: Sequence[FlowProgress]) -> None:
        """Take the progress of now."""
        now = self._clock()
        self._standings = {key: at for key, at in self._standings.items() if now - at < _AT_MOST_EVERY_S}
        for flow in flows:
            line, standing = describe(flow), self._standing(flow)
            before, at = self._logged.get(flow.flow, ("", -_AT_MOST_EVERY_S))
            if line != before and (standing not in self._standings or now - at >= _AT_MOST_EVERY_S):
                self._log(flow.flow, line, standing, now)

    def finish(self, flows: Sequence[FlowProgress]) -> None:
        """Log where each flow ended, unless its last line says so."""
        for flow in flows:
            if (line := describe(flow)) != self._logged.get(flow.flow, ("", 0.0))[0]:
                self._log(flow.flow, line, self._standing(flow), self._clock())

    def _log(self, flow: str, line: str, standing: tuple[object, ...], now: float) -> None:
        logger.info("%s", line)
        self._logged[flow] = line, now
        self._standings[standing] = now

    def _standing(self, flow: FlowProgress) -> tuple[object, ...]:
        """Return what of a flow's progress a person may have to react to."""
        if flow.caught_up:
            self._caught_up.add(flow.flow)
        return flow.flow, flow.state, flow.reason, len(flow.stopped), flow.refused, flow.flow in self._caught_up
