"""The run of a mirror on a Spark of its own: started once it is needed, started again when its JVM dies."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections import deque
from typing import TYPE_CHECKING, Final

from klamm.mirror.errors import SparkFailedError
from klamm.mirror.progress import FlowState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from klamm.mirror.progress import FlowProgress
    from klamm.mirror.settings.mirror import MirrorSettings
    from klamm.mirror.spark.driver import ControlLoops
    from klamm.mirror.spark.session import StartedSpark
    from klamm.mirror.spark.stream import MirrorStream

logger = logging.getLogger(__name__)

_TURN_S: Final = 0.1
_REPORT_EVERY_S: Final = 1.0
_TASKS_END_S: Final = 3.0
"""How long tasks may take to end in order: little enough for the whole mirror to end within five seconds."""
_LOSS_SHOWS_S: Final = 2.0
"""A call to a JVM that is killed fails a moment before its parent learns that it is gone."""
_BLOCKED_S: Final = 10.0
"""How long a refusal has to last to count: a right that was just given takes a while to be known to every broker."""
_MOST_LOSSES: Final = 5
_LOSSES_WITHIN_S: Final = 600.0


class SparkRun:
    """Runs the coordinator's leases until the mirror is to end. Confined to the thread that calls ``run``.

    Args:
        settings: Of the mirror.
        loops: The control loops, running.
        stopping: Set when the mirror is to end.
        directory: A private one that lives as long as the mirror.
        until_caught_up: End when no flow lags.
        on_progress: Called about once a second.
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
        self._blocked_since: dict[str, float] = {}
        """When a flow began to wait for a person."""
        self.gave_up: tuple[str, ...] = ()
        """Flows that ended before they had caught up, because only a person can mend what they wait for."""
        self._losses: deque[float] = deque(maxlen=_MOST_LOSSES)

    def run(self) -> None:
        """Mirror until the end is asked for, everything is copied, or every flow has failed.

        Raises:
            SettingsError: Spark does not start as it is asked to.
            SparkFailedError: Spark's JVM or query ends again and again.
        """
        while not self._loops.coordinator.has_work:
            # Before anything can be copied Spark would only take memory: a flow may fail in its first round.
            self._report()
            if self._is_over() or self._stopping.wait(_TURN_S):
                return
        while not self._is_over() and (spark := self._start()) is not None:
            if self._serve(spark):
                return

    def _is_over(self) -> bool:
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
                logger.error("%s: gives up, as only a person can change this: %s", flow.flow, flow.what_blocks)
        self.gave_up = tuple(blocked)
        return True

    def _blocked(self, flows: Sequence[FlowProgress]) -> list[str]:
        """Return the flows that have waited for a person for long enough."""
        now = time.monotonic()
        names = [flow.flow for flow in flows if flow.is_blocked]
        self._blocked_since = {name: self._blocked_since.get(name, now) for name in names}
        return [name for name, since in self._blocked_since.items() if now - since >= _BLOCKED_S]

    def _start(self) -> StartedSpark | None:
        """Return a new session; None when the mirror is to end before it is there."""
        launch = _Launch(self._settings.spark, self._directory)
        while not launch.is_done.wait(_TURN_S):
            self._report()
            if self._is_over():
                launch.abandon()
                return None
        return launch.result()

    def _serve(self, spark: StartedSpark) -> bool:
        """Run the stream in a session; return True at the end of the mirror, False when the JVM is lost."""
        from klamm.mirror.spark.stream import MirrorStream  # noqa: PLC0415 - pyspark takes a second to import

        stream: MirrorStream | None = None
        checkpoint = self._settings.checkpoint_dir or (self._directory / "checkpoint").as_uri()
        try:
            stream = MirrorStream(spark.session, self._loops.coordinator, checkpoint=checkpoint)
            stream.start()
            self._follow(spark, stream)
            spark.output.is_muted = True
            has_ended = stream.end_lease(_TASKS_END_S)
            self._loops.end()  # now that all is written, groups are translated a last time while Spark stops
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
        while not self._stopping.wait(_TURN_S):
            if spark.is_lost:
                raise _JvmLostError
            stream.check()
            if self._report():
                stream.count_slots()
            if self._is_over():
                return

    def _report(self) -> bool:
        """Show the progress when it is due; return whether it was."""
        if time.monotonic() < self._report_at:
            return False
        self._report_at = time.monotonic() + _REPORT_EVERY_S
        self._on_progress(self._loops.status.snapshot())
        return True

    def _note_loss(self, spark: StartedSpark) -> None:
        """Log that the JVM is lost and what helps.

        Raises:
            SparkFailedError: This process cannot start another one, or several were lost within a short time.
        """
        if spark.jvm is None:
            raise SparkFailedError("Spark's JVM has ended; submit the mirror again: it resumes where it was")
        now = time.monotonic()
        self._losses.append(now)
        how = f"Spark's JVM {spark.jvm.describe_end()}"
        memory = (
            "if nobody ended it, the kernel may have, for lack of memory (journalctl -k | grep -i oom): "
            "let spark.driver.memory and the workers fit the machine"
        )
        if len(self._losses) == _MOST_LOSSES and now - self._losses[0] < _LOSSES_WITHIN_S:
            raise SparkFailedError(f"{how}, the {_MOST_LOSSES}th within {_LOSSES_WITHIN_S / 60:.0f} minutes; {memory}")
        logger.warning("%s; a new session is started and what was in flight is copied again; %s", how, memory)


class _JvmLostError(Exception):
    """The JVM has ended."""


def _lost_jvm(spark: StartedSpark, error: Exception) -> bool:
    """Return whether an error means that the JVM is gone."""
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]  # noqa: PLC0415 - comes with pyspark

    if spark.jvm is None:
        return isinstance(error, (Py4JNetworkError, OSError))
    return isinstance(error, _JvmLostError) or spark.jvm.wait(_LOSS_SHOWS_S) is not None


class _Launch:
    """The start of a session in a thread of its own, so that a signal ends the mirror meanwhile."""

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
                # pyspark warns about every new pandas, which the mirror does not use.
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
        """Let the session end as soon as it is there; at the latest it ends with this process."""
        with self._lock:
            self._is_abandoned = True
            started = self._started
        if started is not None:
            started.stop()

    def result(self) -> StartedSpark:
        """Return the session.

        Raises:
            SettingsError: Spark does not start as it is asked to.
        """
        if self._started is None:
            raise self._error or SparkFailedError("Spark did not start")
        return self._started
