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
from typing import TYPE_CHECKING, Final

from klamm.mirror.admin import KafkaAdmin
from klamm.mirror.control import FlowControl
from klamm.mirror.copying import copy_settings, partitions_of
from klamm.mirror.groups.running import translate_groups
from klamm.mirror.groups.status import GroupStatus
from klamm.mirror.heartbeats import write_heartbeats
from klamm.mirror.naming import is_heartbeats_topic
from klamm.mirror.planning import print_plan
from klamm.mirror.progress import FlowProgress, FlowState, MirrorStatus, describe
from klamm.mirror.providers import resolve
from klamm.mirror.settings import METRICS_LISTEN, MirrorSettings, parse_settings
from klamm.properties import SettingsError, read_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from klamm.mirror.control import Assignment
    from klamm.mirror.flow_settings import FlowSettings
    from klamm.mirror.spark.coordinator import Coordinator

logger = logging.getLogger(__name__)

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

_TURN_S: Final = 0.1
_REPORT_EVERY_S: Final = 1.0
_JOIN_S: Final = 10.0


def run(
    properties_path: Path,
    clusters: Sequence[str] = (),
    *,
    plan: bool = False,
    until_caught_up: bool = False,
    on_progress: Callable[[tuple[FlowProgress, ...]], None] | None = None,
    stop: threading.Event | None = None,
    metrics_listen: str | None = None,
) -> int:
    """Mirror until a signal, or until everything is copied, or until every flow has failed.

    Args:
        properties_path: MirrorMaker's file.
        clusters: only flows to these clusters; empty means all.
        plan: show what the next round would change, and change nothing.
        until_caught_up: end when no flow lags.
        on_progress: called about once a second; None means: lines on stderr.
        stop: ends the mirror when set; None means: SIGINT and SIGTERM do.
        metrics_listen: ``host:port`` of metrics and status page; None means: as the file says.

    Returns:
        0 done, 1 a flow failed or a partition stopped, 2 the file asks for something that cannot be.
    """
    try:
        properties = resolve(read_properties(properties_path))
        if metrics_listen is not None:
            properties = {**properties, METRICS_LISTEN: metrics_listen}
        settings = parse_settings(properties, target_aliases=clusters)
        for note in settings.notes:
            logger.info("%s", note)
        for warning in settings.warnings:
            logger.warning("%s", warning)
        if plan:
            return print_plan(settings, sys.stdout)
        return Mirror(settings).run(
            until_caught_up=until_caught_up, on_progress=on_progress or _print_progress, stop=stop
        )
    except SettingsError as error:
        sys.stderr.write(f"{properties_path}: {error}\n")
        return EXIT_USAGE


class Mirror:
    """All flows of a file. For one run, from the main thread when signals are to end it."""

    def __init__(self, settings: MirrorSettings) -> None:
        """Prepare the flows.

        Raises:
            SettingsError: a client property that can not be honoured.
        """
        self._settings = settings
        self._copy_settings = {flow.name: copy_settings(flow) for flow in settings.flows}
        self.groups = GroupStatus()
        policies = {flow.name: flow.policy for flow in settings.flows}
        self.status = MirrorStatus(policies, counts=lambda flow, topic: not is_heartbeats_topic(policies[flow], topic))

    def run(
        self,
        *,
        until_caught_up: bool,
        on_progress: Callable[[tuple[FlowProgress, ...]], None],
        stop: threading.Event | None = None,
    ) -> int:
        """Run and return the exit code."""
        # Spark takes a while to import and to start: topics are created and configs synced meanwhile.
        coordinator = self._coordinator()
        ended = threading.Event()
        threads = self._threads(coordinator, ended)
        with (
            _signals() if stop is None else contextlib.nullcontext(stop) as stopping,
            tempfile.TemporaryDirectory(prefix="klamm-mirror-", ignore_cleanup_errors=True) as directory,
            self._watched(),
        ):
            for thread in threads:
                thread.start()
            try:
                if self._settings.flows:
                    self._run_spark(
                        coordinator, stopping, Path(directory), until_caught_up=until_caught_up, on_progress=on_progress
                    )
                elif not until_caught_up:
                    stopping.wait()
            finally:
                ended.set()
                coordinator.close()
                for thread in threads:
                    thread.join(_JOIN_S)
        final = self.status.snapshot()
        on_progress(final)
        failed = any(flow.state is FlowState.FAILED or flow.stopped for flow in final)
        return EXIT_FAILED if failed else EXIT_OK

    def _watched(self) -> contextlib.AbstractContextManager[object]:
        address = self._settings.metrics_listen
        if address is None:
            return contextlib.nullcontext()
        from klamm.mirror.watching.watch import status_server, watch  # noqa: PLC0415 - only who asks for it loads it

        try:
            server = status_server(address, self.status, self.groups)
        except OSError as error:
            raise SettingsError(f"{METRICS_LISTEN}={address[0]}:{address[1]}: {error.strerror}") from error
        return watch(server, self._settings.flows, self.status)

    def _threads(self, coordinator: Coordinator, ended: threading.Event) -> list[threading.Thread]:
        """Return a thread for each flow's control loop, for its groups, and for each pair's heartbeats."""

        def thread(name: str, work: Callable[..., None], *arguments: object) -> threading.Thread:
            return threading.Thread(target=work, args=(*arguments, ended), name=name, daemon=True)

        return [
            *(thread(flow.name, self._control, flow, coordinator) for flow in self._settings.flows),
            *(thread(f"{flow.name} groups", translate_groups, flow, self.groups) for flow in self._settings.flows),
            *(thread(f"{pair.name} heartbeats", write_heartbeats, pair) for pair in self._settings.heartbeats),
        ]

    def _coordinator(self) -> Coordinator:
        from klamm.mirror.spark.coordinator import Coordinator  # noqa: PLC0415 - the data path is loaded on demand

        bounds = {flow.name: flow.tasks_max for flow in self._settings.flows if flow.tasks_max is not None}
        return Coordinator(self.status, lease_s=self._settings.lease.total_seconds(), tasks_max=bounds)

    def _run_spark(
        self,
        coordinator: Coordinator,
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

            spark = start_session(self._settings.spark, directory)
            coordinator.set_slots(max(1, spark.sparkContext.defaultParallelism))
            stream = MirrorStream(spark, coordinator, checkpoint=str(directory / "checkpoint"))
        try:
            stream.start()
            report_at = 0.0
            while not stopping.wait(_TURN_S):
                stream.check()
                progress = self.status.snapshot()
                if time.monotonic() >= report_at:
                    report_at = time.monotonic() + _REPORT_EVERY_S
                    on_progress(progress)
                if self._is_over(progress, until_caught_up=until_caught_up):
                    break
        finally:
            stream.stop()
            spark.stop()

    @staticmethod
    def _is_over(progress: Sequence[FlowProgress], *, until_caught_up: bool) -> bool:
        running = [flow for flow in progress if flow.state is not FlowState.FAILED]
        if not running:
            return True
        return until_caught_up and all(flow.is_done for flow in running)

    def _control(self, flow: FlowSettings, coordinator: Coordinator, ended: threading.Event) -> None:
        from klamm.mirror.spark.leases import Share  # noqa: PLC0415 - the data path is loaded on demand

        def publish(assignment: Assignment) -> None:
            share = Share(settings=self._copy_settings[flow.name], partitions=partitions_of(assignment))
            coordinator.publish(flow.name, share)

        timeout_ms = int(flow.admin_timeout.total_seconds() * 1000)
        source = KafkaAdmin(flow.source.bootstrap_servers, flow.clients["source.admin"], timeout_ms=timeout_ms)
        target = KafkaAdmin(flow.target.bootstrap_servers, flow.clients["target.admin"], timeout_ms=timeout_ms)
        back = f"{flow.target.alias}->{flow.source.alias}"
        heartbeats = next((pair for pair in self._settings.heartbeats if pair.name == back), None)
        try:
            FlowControl(flow, source, target, status=self.status, publish=publish, heartbeats=heartbeats).run(ended)
        except Exception as error:  # a control loop never dies silently
            logger.exception("%s failed", flow.name)
            self.status.set_state(flow.name, FlowState.FAILED, f"{type(error).__name__}: {error}")
        finally:
            source.close()
            target.close()


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


def _print_progress(flows: tuple[FlowProgress, ...]) -> None:
    for flow in flows:
        sys.stderr.write(describe(flow) + "\n")
    sys.stderr.flush()
