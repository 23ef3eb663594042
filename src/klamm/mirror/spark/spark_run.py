"""Run of a mirror on a Spark session that the mirror itself starts, and restarts when the JVM dies.

States of ``SparkRun``, all in the calling thread:

=================  ==================================================================================================
waiting for work   Every flow waits for a cluster, has failed, or selects no topic. Spark is not started, since it
                   would only use memory. A flow in its first round and one that stands by count as work.
starting           ``_Launch`` starts JVM and session in another thread, while this one reports progress and obeys
                   ``stopping``.
following          The query runs. Ten times a second, check the JVM and the query; once a second, report progress and
                   count Spark's slots.
ending             End the lease and give the tasks 3 s. Then stop query and session, or kill the JVM if a task still
                   runs.
=================  ==================================================================================================

When the JVM dies in ``following``, the run returns to ``starting``. A start that fails then counts as a loss, too. The
fifth loss within ten minutes ends the mirror with an error. A query that fails while the JVM lives is restarted in the
same session (``MirrorStream.check``).
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections import deque
from typing import TYPE_CHECKING, Final

from klamm.mirror.progress.flow_progress import FlowState, SparkFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from klamm.mirror.progress.flow_progress import FlowProgress
    from klamm.mirror.settings.mirror import MirrorSettings
    from klamm.mirror.spark.driver import ControlLoops
    from klamm.mirror.spark.session import StartedSpark
    from klamm.mirror.spark.stream import MirrorStream

logger = logging.getLogger(__name__)

_TURN_S: Final = 0.1
_REPORT_EVERY_S: Final = 1.0
_TASKS_END_S: Final = 3.0
"""Time that tasks get to end in order. It is short enough for the whole mirror to end within five seconds."""
_LOSS_SHOWS_S: Final = 2.0
"""Time to wait for the exit code of the JVM after a failed call. The call fails shortly before the exit is visible."""
_BLOCKED_S: Final = 10.0
"""Time that a rejection must last before the flow counts as blocked. A new ACL takes a while to reach every broker."""
_MAX_LOSSES: Final = 5
_LOSSES_WITHIN_S: Final = 600.0


class SparkRun:
    """Loop that runs the coordinator's leases until the mirror ends. Confined to the thread that calls ``run``.

    Args:
        settings: Settings of the mirror.
        loops: Control loops, already running.
        stopping: Event that ends the mirror.
        directory: Private directory that exists as long as the mirror.
        until_caught_up: Whether the run ends as soon as no flow has any lag.
        on_progress: Function called about once a second with the progress of all flows.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        loops: ControlLoops,
        stopping: threading.Event,
        directory: Path,
        *,
        until_caught_up: bool,
        on_progress: Callable[[tuple[FlowProgress, ...]], None],
    ) -> None:
        self._settings = settings
        self._loops = loops
        self._stopping = stopping
        self._directory = directory
        self._until_caught_up = until_caught_up
        self._on_progress = on_progress
        self._report_at = 0.0
        self._start_at = 0.0
        """Monotonic time at which the start of Spark began."""
        self._blocked_since: dict[str, float] = {}
        """Monotonic time at which a flow became blocked on something that only an operator can correct."""
        self.gave_up: tuple[str, ...] = ()
        """Flows that ended before they had caught up, because an operator has to correct something."""
        self._losses: deque[float] = deque(maxlen=_MAX_LOSSES)

    def run(self) -> None:
        """Mirror until ``stopping`` is set, everything is copied (if requested), or every flow has failed.

        Raises:
            SettingsError: Spark cannot run the mirror with the given settings.
            SparkFailedError: Spark does not start, or its JVM or query ended too often within ten minutes.
        """
        while not (self._loops.coordinator.has_work or self._expects_work()):
            self._report()
            if self._is_over() or self._stopping.wait(_TURN_S):
                return
        while not self._is_over():
            try:
                spark = self._start()
            except SparkFailedError as error:
                if not self._losses:
                    raise
                self._count_loss(str(error))
                continue
            if spark is None or self._serve(spark):
                return

    def _expects_work(self) -> bool:
        """Return whether Spark is to start although no flow has published partitions yet.

        In its first round, a flow creates topics while Spark starts. A flow that stands by has to take over within ten
        seconds. A flow that waits for a cluster, or selects no topic, needs no Spark, which would only use memory.
        """
        states = {flow.state for flow in self._loops.status.snapshot()}
        return not states.isdisjoint({FlowState.STARTING, FlowState.STANDBY})

    def _is_over(self) -> bool:
        """Return whether the mirror ends: stopped, all flows failed, or everything copied if that was requested."""
        if self._stopping.is_set():
            return True
        running = [flow for flow in self._loops.status.snapshot() if flow.state is not FlowState.FAILED]
        if not running or not self._until_caught_up:
            return not running
        blocked = self._blocked(running)
        if any(not flow.is_done and flow.flow not in blocked for flow in running):
            return False
        for flow in running:
            if flow.flow in blocked:
                logger.error(
                    "%s: gives up, because only an operator can correct this: %s",
                    flow.flow,
                    flow.what_blocks,
                )
        self.gave_up = tuple(blocked)
        return True

    def _blocked(self, flows: Sequence[FlowProgress]) -> list[str]:
        """Return the flows that have been blocked for at least ``_BLOCKED_S`` seconds."""
        now = time.monotonic()
        names = [flow.flow for flow in flows if flow.is_blocked]
        self._blocked_since = {name: self._blocked_since.get(name, now) for name in names}
        return [name for name, since in self._blocked_since.items() if now - since >= _BLOCKED_S]

    def _start(self) -> StartedSpark | None:
        """Start a session and return it, or None if the mirror ends before the session has started."""
        self._start_at = time.monotonic()
        launch = _Launch(self._settings.spark, self._directory)
        while not launch.is_done.wait(_TURN_S):
            self._report()
            if self._is_over():
                launch.abandon()
                return None
        return launch.result()

    def _serve(self, spark: StartedSpark) -> bool:
        """Run the stream in a session. Return True at the end of the mirror, False if the JVM died.

        Raises:
            SettingsError: Spark cannot run the mirror with the given settings.
            SparkFailedError: Spark's JVM or query ended too often within ten minutes.
        """
        from klamm.mirror.spark.class_archive import write_in_background  # noqa: PLC0415 - it imports pyspark
        from klamm.mirror.spark.stream import MirrorStream  # noqa: PLC0415 - pyspark takes a second to import

        stream: MirrorStream | None = None
        checkpoint = self._settings.checkpoint_dir or (self._directory / "checkpoint").as_uri()
        try:
            stream = MirrorStream(spark.session, self._loops.coordinator, checkpoint=checkpoint)
            stream.start()
            if spark.jvm is not None:
                write_in_background()
            self._follow(spark, stream)
            spark.output.is_muted = True
            has_ended = stream.end_lease(_TASKS_END_S)
            self._loops.end()  # all source offsets are written: translate group offsets a last time while Spark stops
            if not has_ended and spark.jvm is not None:
                spark.jvm.kill()
            else:
                stream.stop(_TASKS_END_S)
        except Exception as error:
            if not _lost_jvm(spark, error):
                raise
            if self._stopping.is_set():
                return True
            self._note_loss(spark)
            return False
        finally:
            spark.stop()
        return True

    def _follow(self, spark: StartedSpark, stream: MirrorStream) -> None:
        query_at = time.monotonic()
        is_logged = False
        while not self._stopping.wait(_TURN_S):
            if not is_logged and self._loops.coordinator.has_tasks:
                self._log_start(spark, query_at)
                is_logged = True
            if spark.is_lost:
                raise _JvmLostError
            stream.check()
            if self._report():
                stream.count_slots()
            if self._is_over():
                return

    def _log_start(self, spark: StartedSpark, query_at: float) -> None:
        """Log how long the parts of the start took, when the first task copies."""
        now = time.monotonic()
        logger.info(
            "Spark started in %.1f s: JVM %.1f s, session %.1f s, query %.1f s, first task %.1f s",
            now - self._start_at,
            spark.jvm_s,
            spark.session_s,
            query_at - self._start_at - spark.jvm_s - spark.session_s,
            now - query_at,
        )

    def _report(self) -> bool:
        """Report the progress if it is due, and return whether it was."""
        if time.monotonic() < self._report_at:
            return False
        self._report_at = time.monotonic() + _REPORT_EVERY_S
        self._on_progress(self._loops.status.snapshot())
        return True

    def _note_loss(self, spark: StartedSpark) -> None:
        """Log the loss of the JVM, with its probable cause and the remedy.

        Raises:
            SparkFailedError: Another program launched the JVM, or this is the fifth loss within ten minutes.
        """
        if spark.jvm is None:
            raise SparkFailedError("Spark's JVM has ended. Submit the mirror again; it resumes from its source offsets")
        self._count_loss(f"Spark's JVM {spark.jvm.describe_end()}")

    def _count_loss(self, how: str) -> None:
        now = time.monotonic()
        self._losses.append(now)
        memory = (
            "if it was not stopped on purpose, the kernel may have killed it to free memory "
            "(journalctl -k | grep -i oom): reduce spark.driver.memory or the number of tasks, or add memory"
        )
        if len(self._losses) == _MAX_LOSSES and now - self._losses[0] < _LOSSES_WITHIN_S:
            raise SparkFailedError(f"{how}, the {_MAX_LOSSES}th within {_LOSSES_WITHIN_S / 60:.0f} minutes; {memory}")
        logger.warning("%s; a new session is started and records in flight are copied again; %s", how, memory)


class _JvmLostError(Exception):
    """The JVM has ended while the query was running."""


def _lost_jvm(spark: StartedSpark, error: Exception) -> bool:
    """Return whether an error was caused by the end of the JVM."""
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]  # noqa: PLC0415 - comes with pyspark

    if spark.jvm is None:
        return isinstance(error, (Py4JNetworkError, OSError))
    return isinstance(error, _JvmLostError) or spark.jvm.wait(_LOSS_SHOWS_S) is not None


class _Launch:
    """Start of a session in a separate thread, so that a signal can end the mirror at the same time."""

    def __init__(self, properties: Mapping[str, str], directory: Path) -> None:
        self._properties = properties
        self._directory = directory
        self._lock = threading.Lock()
        self._started: StartedSpark | None = None
        self._error: BaseException | None = None
        self._is_abandoned = False
        self.is_done = threading.Event()
        threading.Thread(target=self._run, name="spark-start", daemon=True).start()

    def _run(self) -> None:
        try:
            with warnings.catch_warnings():
                # pyspark warns about each pandas version newer than itself. The mirror does not use pandas.
                warnings.simplefilter("ignore", FutureWarning)
                from klamm.mirror.spark.session import start_session  # noqa: PLC0415 - takes a second to import

                started = start_session(self._properties, self._directory)
        except BaseException as error:  # noqa: BLE001 - raised again by result()
            self._error = error
        else:
            with self._lock:
                self._started = started
                is_abandoned = self._is_abandoned
            if is_abandoned:
                started.stop()
        self.is_done.set()

    def abandon(self) -> None:
        """Stop the session as soon as it has started. If it never does, it ends with this process."""
        with self._lock:
            self._is_abandoned = True
            started = self._started
        if started is not None:
            started.stop()

    def result(self) -> StartedSpark:
        """Return the started session.

        Raises:
            SettingsError: Spark cannot run the mirror with the given settings.
            SparkFailedError: Spark does not start.
        """
        if self._started is None:
            raise self._error or SparkFailedError("Spark did not start")
        return self._started
