"""Driver's part of a mirror: control loops, group translation, heartbeats and the metrics page.

Each flow has two threads: one runs its control loop (``FlowControl``), one translates consumer group offsets. Each pair
of clusters with heartbeats has one more thread. The control loops publish the partitions to copy to the
``Coordinator``, which deals them to Spark's tasks. A flow that fails publishes no partitions; the other flows continue.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from klamm.mirror.cluster_admin import admin_client
from klamm.mirror.copy.settings import copy_settings, partitions_of
from klamm.mirror.groups.control import translate_groups
from klamm.mirror.naming import is_heartbeats_topic
from klamm.mirror.progress.flow_progress import FlowState, GroupStatus, MirrorStatus
from klamm.mirror.settings.definitions import MAX_BYTES_PER_SECOND
from klamm.mirror.settings.mirror import METRICS_LISTEN
from klamm.mirror.spark.coordinator import Coordinator
from klamm.mirror.spark.leases import FlowShare
from klamm.mirror.topics.control import FlowControl
from klamm.mirror.topics.heartbeats import new_instance, write_heartbeats
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.settings.live_keys import LiveKeys
    from klamm.mirror.settings.mirror import MirrorSettings
    from klamm.mirror.topics.control import Assignment

logger = logging.getLogger(__name__)

_JOIN_S: Final = 10.0
_LIVE_KEYS_EVERY_S: Final = 1.0
"""Interval in seconds at which the properties file is read again for its live keys."""


class ControlLoops:
    """All parts of a mirror except Spark. A context manager for one run; ``coordinator`` holds the work for Spark."""

    def __init__(self, settings: MirrorSettings, *, join_s: float = _JOIN_S, live_keys: LiveKeys | None = None) -> None:
        """Prepare the flows without connecting to a cluster.

        Args:
            settings: Settings of the mirror.
            join_s: Maximum time that leaving the context waits for all threads, in seconds. Threads that still
                run after it are daemon threads and end with the process.
            live_keys: Keys of the properties file that are followed. None: their first values are kept.

        Raises:
            SettingsError: A flow has a client property that klamm does not support.
        """
        self._settings = settings
        self._join_s = join_s
        self._copy_settings = {flow.name: copy_settings(flow) for flow in settings.flows}
        self.groups = GroupStatus()
        policies = {flow.name: flow.policy for flow in settings.flows}
        self.status = MirrorStatus(policies, counts=lambda flow, topic: not is_heartbeats_topic(policies[flow], topic))
        bounds = {flow.name: flow.tasks_max for flow in settings.flows if flow.tasks_max is not None}
        self.coordinator = Coordinator(self.status, lease_s=settings.lease.total_seconds(), tasks_max=bounds)
        limits = {flow.name: flow.max_bytes_per_second for flow in settings.flows}
        self._limits = {flow: limit for flow, limit in limits.items() if limit is not None}
        self.coordinator.set_limits(self._limits)
        self._live_keys = live_keys
        self._ended = threading.Event()
        self._running = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start all threads, and serve metrics if the settings contain ``klamm.metrics.listen``.

        Raises:
            SettingsError: The mirror cannot listen on the address in ``klamm.metrics.listen``.
        """
        with contextlib.ExitStack() as starting:
            starting.callback(self.coordinator.close)
            starting.enter_context(self._watched())
            threads = self._threads()
            # Callbacks run in reverse order: the threads are joined first, so no loop publishes to a closed
            # coordinator.
            starting.callback(self._join, threads)
            for thread in threads:
                thread.start()
            self._running = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the threads and close all sockets."""
        self._running.close()

    def end(self) -> None:
        """Ask the threads to end. Leaving the context waits for them."""
        self._ended.set()

    def _join(self, threads: list[threading.Thread]) -> None:
        self.end()
        deadline = time.monotonic() + self._join_s
        for thread in threads:
            # A thread that waits for an unreachable cluster has nothing to finish, so it may be left behind.
            thread.join(max(0.0, deadline - time.monotonic()))

    def _watched(self) -> contextlib.AbstractContextManager[object]:
        address = self._settings.metrics_listen
        if address is None:
            return contextlib.nullcontext()
        from klamm.mirror.status.live import status_server, watch  # noqa: PLC0415 - loaded only if metrics are served
        from klamm.page.samples import Samples  # noqa: PLC0415

        samples = Samples()
        try:
            server = status_server(address, self.status, self.groups, samples)
        except OSError as error:
            raise SettingsError(f"{METRICS_LISTEN}={address[0]}:{address[1]}: {error.strerror}") from error
        return watch(server, self._settings.flows, self.status, samples)

    def _threads(self) -> list[threading.Thread]:
        """Return one control loop and one group thread per flow, and one heartbeat thread per cluster pair."""

        def thread(name: str, work: Callable[..., None], *arguments: object) -> threading.Thread:
            return threading.Thread(target=work, args=(*arguments, self._ended), name=name, daemon=True)

        instances = dict.fromkeys((flow.name for flow in self._settings.flows), new_instance())
        live_keys = [] if self._live_keys is None else [thread("live keys", self._follow, self._live_keys)]
        return [
            *live_keys,
            *(thread(flow.name, self._control, flow) for flow in self._settings.flows),
            *(thread(f"{flow.name} groups", translate_groups, flow, self.groups) for flow in self._settings.flows),
            *(
                thread(f"{pair.name} heartbeats", partial(write_heartbeats, instance=instances.get(pair.name)), pair)
                for pair in self._settings.heartbeats
            ),
        ]

    def _follow(self, live_keys: LiveKeys, ended: threading.Event) -> None:
        """Apply changes of the live keys until the mirror ends."""
        while not ended.wait(_LIVE_KEYS_EVERY_S):
            limits = live_keys.limits(self._settings.flows)
            if limits is None or limits == self._limits:
                continue
            for flow in sorted({flow for flow, _ in limits.items() ^ self._limits.items()}):
                logger.info("%s: %s=%s", flow, MAX_BYTES_PER_SECOND.key, limits.get(flow, "(no limit)"))
            self._limits = limits
            self.coordinator.set_limits(limits)

    def _control(self, flow: FlowSettings, ended: threading.Event) -> None:
        """Run the control loop of a flow in its thread. An unexpected error fails this flow only."""

        def publish(assignment: Assignment) -> None:
            share = FlowShare(settings=self._copy_settings[flow.name], partitions=partitions_of(assignment))
            self.coordinator.publish(flow.name, share)

        source, target = admin_client(flow, "source"), admin_client(flow, "target")
        back = f"{flow.target.alias}->{flow.source.alias}"
        heartbeats = next((pair for pair in self._settings.heartbeats if pair.name == back), None)
        try:
            FlowControl(flow, source, target, status=self.status, publish=publish, heartbeats=heartbeats).run(ended)
        except Exception as error:  # a control loop never dies silently
            logger.exception("%s: the control loop failed", flow.name)
            publish(())
            self.status.set_state(flow.name, FlowState.FAILED, f"{type(error).__name__}: {error}")
        finally:
            source.close()
            target.close()
