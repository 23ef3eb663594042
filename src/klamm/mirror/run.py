"""Entry point of the mirror: ``klamm mirror mm2.properties [--clusters ...]``.

SIGINT, SIGTERM and SIGHUP end a mirror gracefully. SIGHUP arrives when the terminal of the mirror is closed. A mirror
that was started by ``nohup`` ignores it.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.config_providers import resolve
from klamm.display import one_line
from klamm.mirror.progress.flow_progress import FlowProgress, FlowState, SparkFailedError, describe
from klamm.mirror.settings.mirror import LiveKeys, MirrorSettings, parse_settings
from klamm.mirror.topics.plan_output import print_plan
from klamm.properties import SettingsError, read_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from klamm.admin import ConfigEntry
    from klamm.mirror.records.requested_states import RequestedStates
    from klamm.mirror.settings.flow import FlowSettings

logger = logging.getLogger(__name__)

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

_THREADS_END_S: Final = 2.5
"""Seconds that control loops get to end. A loop that waits for an unavailable cluster has nothing to lose."""
_MIN_INTERVAL_S: Final = 60.0
"""Shortest interval in seconds between log lines whose figures change all the time."""


def run(
    properties_path: Path,
    clusters: Sequence[str] = (),
    *,
    plan: bool = False,
    until_caught_up: bool = False,
    on_progress: Callable[[tuple[FlowProgress, ...]], None] | None = None,
    stop: threading.Event | None = None,
    overrides: Mapping[str, str] | None = None,
    strict: bool = False,
    ignore_transforms: bool = False,
) -> int:
    """Mirror until a signal arrives, everything is copied, or every flow has failed.

    Args:
        properties_path: Path of ``mm2.properties``.
        clusters: Aliases of the only target clusters to mirror to. Empty: all.
        plan: Whether to print the changes of the next round without making them.
        until_caught_up: Whether to end when no flow lags.
        on_progress: Called about once per second and at the end. None: progress is logged when it changes.
        stop: Event that ends the mirror. None: SIGINT and SIGTERM end it.
        overrides: Keys that replace those of the file.
        strict: Whether keys without an effect are errors.
        ignore_transforms: Whether to copy records unchanged although the file sets transforms.

    Returns:
        0: done. 1: a flow failed, a partition stopped, a topic was rejected, or a flow gave up because it waits for
        something only an operator can change (``until_caught_up``). 2: the file has an error.
    """
    try:
        properties = read_properties(properties_path)
    except SettingsError as error:
        sys.stderr.write(f"klamm mirror: {one_line(str(error))}\n")
        return EXIT_USAGE
    try:
        settings = parse_settings(resolve({**properties, **(overrides or {})}), target_aliases=clusters)
        settings.check_keys(strict=strict, ignore_transforms=ignore_transforms)
        settings.check_clients()
        _check_listeners(settings)
        settings.log_notes(logger)
        if plan:
            return print_plan(settings, sys.stdout, obstacles=obstacles, requested=requested_states)
        live_keys = LiveKeys(properties_path, overrides)
        return _mirror(settings, live_keys, until_caught_up=until_caught_up, on_progress=on_progress, stop=stop)
    except SettingsError as error:
        sys.stderr.write(f"klamm mirror: {one_line(f'{properties_path}: {error}')}\n")
        return EXIT_USAGE
    except SparkFailedError as error:
        logger.error("%s", error)  # noqa: TRY400 - the text says it all
        return EXIT_FAILED


def _mirror(
    settings: MirrorSettings,
    live_keys: LiveKeys,
    *,
    until_caught_up: bool,
    on_progress: Callable[[tuple[FlowProgress, ...]], None] | None,
    stop: threading.Event | None,
) -> int:
    """Run the mirror and return the exit code. Call it from the main thread if signals are to end it."""
    from klamm.mirror.spark.driver import ControlLoops  # noqa: PLC0415 - the data path is loaded on demand
    from klamm.mirror.spark.spark_run import SparkRun  # noqa: PLC0415

    loops = ControlLoops(settings, join_s=_THREADS_END_S, live_keys=live_keys)
    lines = ProgressLines()
    gave_up = False
    with (
        signals_as_event() if stop is None else contextlib.nullcontext(stop) as stopping,
        _private_directory() as directory,
        # Spark takes seconds to import and start. In that time, the control loops create topics and sync configs.
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


def _private_directory() -> tempfile.TemporaryDirectory[str]:
    """Create the directory of this process' files."""
    try:
        return tempfile.TemporaryDirectory(prefix="klamm-mirror-", ignore_cleanup_errors=True)
    except OSError as error:
        raise SparkFailedError(
            f"Spark needs a temporary directory: {error.strerror or error}. Set TMPDIR to a directory that is writable"
        ) from error


def exit_code(flows: Sequence[FlowProgress]) -> int:
    """Return the exit code of a mirror: 0 only if no operator has to act."""
    failed = any(flow.state is FlowState.FAILED or flow.stopped or flow.rejected for flow in flows)
    return EXIT_FAILED if failed else EXIT_OK


class ProgressLines:
    """Logger of the progress of each flow, at most once a minute and only after a change.

    Changes that an operator may have to react to, such as a flow's state and its reason, are logged at once, but the
    same one not twice within a minute. An idle mirror logs nothing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[str, tuple[str, float]] = {}
        """Last line of each flow, with the time at which it was logged."""
        self._standings: dict[tuple[object, ...], float] = {}
        """Time at which each important status of a flow was last logged."""
        self._caught_up: set[str] = set()
        """Flows that have caught up at least once. Under load they do so repeatedly, which is not logged again."""

    def __call__(self, flows: Sequence[FlowProgress]) -> None:
        """Log the progress of the flows if it changed."""
        now = self._clock()
        self._standings = {key: at for key, at in self._standings.items() if now - at < _MIN_INTERVAL_S}
        for flow in flows:
            line, standing = describe(flow), self._standing(flow)
            before, at = self._logged.get(flow.flow, ("", -_MIN_INTERVAL_S))
            if line != before and (standing not in self._standings or now - at >= _MIN_INTERVAL_S):
                self._log(flow.flow, line, standing, now)

    def finish(self, flows: Sequence[FlowProgress]) -> None:
        """Log the final progress of each flow, unless its last line is the same."""
        for flow in flows:
            if (line := describe(flow)) != self._logged.get(flow.flow, ("", 0.0))[0]:
                self._log(flow.flow, line, self._standing(flow), self._clock())

    def _log(self, flow: str, line: str, standing: tuple[object, ...], now: float) -> None:
        logger.info("%s", line)
        self._logged[flow] = line, now
        self._standings[standing] = now

    def _standing(self, flow: FlowProgress) -> tuple[object, ...]:
        """Return the part of a flow's progress that an operator may have to react to."""
        if flow.caught_up:
            self._caught_up.add(flow.flow)
        return flow.flow, flow.state, flow.reason, len(flow.stopped), flow.rejected, flow.flow in self._caught_up


def stop_on_signals(stopping: threading.Event) -> Mapping[int, Any]:
    """Install handlers of the signals that set an event. Return the previous handlers."""

    def on_signal(_: int, __: FrameType | None) -> None:
        stopping.set()

    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = (signal.SIGINT, signal.SIGTERM, *(() if is_nohup else (signal.SIGHUP,)))
    return {number: signal.signal(number, on_signal) for number in numbers}


@contextlib.contextmanager
def signals_as_event() -> Iterator[threading.Event]:
    """Yield an event that the signals set until the context ends."""
    stopping = threading.Event()
    before = stop_on_signals(stopping)
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_listeners(settings: MirrorSettings) -> None:
    """Check the configs of the listeners of flows that are brokers of the target, and load their key stores.

    Raises:
        SettingsError: A config is missing or not allowed, or a store cannot be read.
    """
    if any(flow.replica is not None for flow in settings.flows):
        from klamm.mirror.copy.settings import replica_settings  # noqa: PLC0415 - loaded on demand

        for replica in filter(None, map(replica_settings, settings.flows)):
            replica.endpoints(lambda _user, _mechanism: None)


def obstacles(
    flow: FlowSettings, selected: Mapping[str, int], configs: Mapping[str, Mapping[str, ConfigEntry]]
) -> dict[str, str]:
    """Return why offsets cannot be kept, by remote topic. The key is empty for a reason that concerns all topics.

    Raises:
        ConnectionLostError: The target is unavailable.
    """
    if flow.replica is not None:
        from klamm.mirror.replica.obstacles import obstacles as of_replica  # noqa: PLC0415 - loaded on demand

        return of_replica(flow, [flow.remote_topic(topic) for topic in selected])
    from klamm.mirror.replay.obstacles import obstacles as of_replay  # noqa: PLC0415 - as above

    return of_replay(flow, selected, configs)


def requested_states(flow: FlowSettings) -> RequestedStates:
    """Return the stored states that operators requested for a flow and its topics.

    Raises:
        ConnectionLostError: They cannot be read from the target now.
    """
    from klamm.mirror.operations.commands import TargetStateStore  # noqa: PLC0415 - loaded on demand

    return TargetStateStore(flow).load()
