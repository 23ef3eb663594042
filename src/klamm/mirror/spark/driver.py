"""Driver's part of a mirror: control loops, group translation, heartbeats and the metrics page.

Each flow has two threads: one runs its control loop (``FlowControl``), one translates consumer group offsets. Each pair
of clusters with heartbeats has one more thread. The control loops publish the partitions to copy to the
``Coordinator``, which deals them to Spark's tasks. A flow that fails publishes no partitions; the other flows continue.
A flow that another process mirrors stands by: its threads wait for the claim that the heartbeat thread keeps.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from klamm.mirror.cluster_admin import admin_client
from klamm.mirror.copy.settings import copy_settings, partitions_of
from klamm.mirror.groups.control import translate_groups
from klamm.mirror.naming import is_heartbeats_topic
from klamm.mirror.operations.commands import MirrorCommands, TargetStateStore
from klamm.mirror.progress.flow_progress import FlowState, GroupStatus, MirrorStatus
from klamm.mirror.settings.definitions import MAX_BYTES_PER_SECOND
from klamm.mirror.settings.mirror import METRICS_LISTEN
from klamm.mirror.spark.coordinator import Coordinator
from klamm.mirror.spark.leases import FlowShare
from klamm.mirror.topics.claims import FlowClaim
from klamm.mirror.topics.control import FlowControl
from klamm.mirror.topics.deletions import TopicDeletion
from klamm.mirror.topics.heartbeats import new_instance, write_heartbeats
from klamm.mirror.topics.states import FlowStates
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from types import TracebackType

    from klamm.admin import AdminClient
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.settings.groups import HeartbeatSettings
    from klamm.mirror.settings.mirror import LiveKeys, MirrorSettings
    from klamm.mirror.topics.control import Assignment
    from klamm.mirror.topics.remote_topics import RemoteTopics

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
        self.status = MirrorStatus(
            policies,
            counts=lambda flow, topic: not is_heartbeats_topic(policies[flow], topic),
            preserving=[flow.name for flow in settings.flows if flow.preserves_offsets],
        )
        bounds = {flow.name: flow.tasks_max for flow in settings.flows if flow.tasks_max is not None}
        paired = {pair.name for pair in settings.heartbeats}
        self._claims = {
            flow.name: FlowClaim() if flow.name in paired else FlowClaim.always() for flow in settings.flows
        }
        self.coordinator = Coordinator(
            self.status,
            lease_s=settings.lease.total_seconds(),
            tasks_max=bounds,
            claims=self._claims,
            replicas=[flow.name for flow in settings.flows if flow.replica is not None],
        )
        limits = {flow.name: flow.max_bytes_per_second for flow in settings.flows}
        self._limits = {flow: limit for flow, limit in limits.items() if limit is not None}
        self.coordinator.set_limits(self._limits)
        self._states = {flow.name: FlowStates(TargetStateStore(flow)) for flow in settings.flows}
        self._live_keys = live_keys
        self._ended = threading.Event()
        self._heartbeats_ended = threading.Event()
        """Set last, so that a flow is released only when no other thread mirrors it."""
        self._running = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start all threads, and serve metrics if the settings contain ``klamm.metrics.listen``.

        Raises:
            SettingsError: The mirror cannot listen on the address in ``klamm.metrics.listen``.
        """
        with contextlib.ExitStack() as starting:
            starting.callback(self.coordinator.close)
            starting.enter_context(self._watched())
            threads, heartbeats = self._threads(), self._heartbeats()
            # Callbacks run in reverse order: the threads are joined first, so no loop publishes to a closed
            # coordinator.
            starting.callback(self._join, threads, heartbeats)
            for thread in (*heartbeats, *threads):
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

    def _join(self, threads: Sequence[threading.Thread], heartbeats: Sequence[threading.Thread]) -> None:
        deadline = time.monotonic() + self._join_s
        for event, some in ((self._ended, threads), (self._heartbeats_ended, heartbeats)):
            event.set()
            for thread in some:
                # A thread that waits for an unreachable cluster has nothing to finish, so it may be left behind.
                thread.join(max(0.0, deadline - time.monotonic()))

    def _watched(self) -> contextlib.AbstractContextManager[object]:
        address = self._settings.metrics_listen
        if address is None:
            return contextlib.nullcontext()
        from klamm.mirror.status.live import status_server, watch  # noqa: PLC0415 - loaded only if metrics are served
        from klamm.page.plot import Samples  # noqa: PLC0415

        samples = Samples()
        try:
            commands = MirrorCommands(
                flows={flow.name: flow for flow in self._settings.flows},
                states=self._states,
                claims=self._claims,
                status=self.status,
                tasks=self.coordinator,
            )
            allow_commands = self._settings.allow_commands
            server = status_server(address, self.status, self.groups, samples, commands, allow_commands=allow_commands)
        except OSError as error:
            raise SettingsError(f"{METRICS_LISTEN}={address[0]}:{address[1]}: {error.strerror}") from error
        return watch(server, self._settings.flows, self.status, samples)

    def _threads(self) -> list[threading.Thread]:
        """Return one control loop and one group thread per flow."""

        def thread(name: str, work: Callable[..., None], *arguments: object) -> threading.Thread:
            return threading.Thread(target=work, args=(*arguments, self._ended), name=name, daemon=True)

        live_keys = [] if self._live_keys is None else [thread("live keys", self._follow, self._live_keys)]
        return [
            *live_keys,
            *(thread(flow.name, self._control, flow) for flow in self._settings.flows),
            *(
                thread(
                    f"{flow.name} groups",
                    partial(
                        translate_groups,
                        claim=self._claims[flow.name],
                        progress=partial(self.status.partitions, flow.name),
                    ),
                    flow,
                    self.groups,
                )
                for flow in self._settings.flows
            ),
        ]

    def _heartbeats(self) -> list[threading.Thread]:
        """Return one heartbeat thread per pair of clusters. It claims the pair's flow if this mirror has it."""
        instance = new_instance()

        def thread(pair: HeartbeatSettings) -> threading.Thread:
            claim = self._claims.get(pair.name)
            write = partial(write_heartbeats, claim=claim, instance=instance, may_release=self._is_idle)
            arguments = (pair, self._heartbeats_ended)
            return threading.Thread(target=write, args=arguments, name=f"{pair.name} heartbeats", daemon=True)

        return [thread(pair) for pair in self._settings.heartbeats]

    def _is_idle(self) -> bool:
        """Return whether no task of this mirror copies any more."""
        return self.coordinator.wait_idle(0)

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
        """Run the control loop of a flow in its thread, again when an operator restarts the failed flow."""
        states = self._states[flow.name]
        restarts = states.restarts
        while not ended.is_set():
            self._control_once(flow, ended)
            if not states.wait_restart(restarts, ended):
                return
            restarts = states.restarts
            self.status.set_state(flow.name, FlowState.STARTING)

    def _control_once(self, flow: FlowSettings, ended: threading.Event) -> None:
        """Run the control loop of a flow until the mirror ends or the flow fails. An error fails this flow only."""

        def publish(assignment: Assignment) -> None:
            shared_topics = flow.shared_topics(topic for topic, _, _ in assignment)
            share = FlowShare(
                settings=replace(self._copy_settings[flow.name], shared_topics=shared_topics),
                partitions=partitions_of(assignment),
                times_taken=self._claims[flow.name].times_taken,
            )
            self.coordinator.publish(flow.name, share)

        def is_released(topics: Collection[str]) -> bool:
            # klamm as a broker leads a remote topic until it is deleted, and its tasks start where the replicas end.
            return flow.replica is not None or self.coordinator.wait_released(flow.name, topics, 0)

        source, target = admin_client(flow, "source"), admin_client(flow, "target")
        back = f"{flow.target.alias}->{flow.source.alias}"
        heartbeats = next((pair for pair in self._settings.heartbeats if pair.name == back), None)
        try:
            control = FlowControl(
                flow,
                source,
                target,
                status=self.status,
                publish=publish,
                heartbeats=heartbeats,
                claim=self._claims[flow.name],
                states=self._states[flow.name],
                request=partial(self.coordinator.set_topic_states, flow.name),
                deletion=TopicDeletion(flow, source, target, is_released=is_released),
                remote_topics=_remote_topics(flow, target),
            )
            control.run(ended)
        except Exception as error:  # a control loop never dies silently
            logger.exception("%s: the control loop failed", flow.name)
            publish(())
            self.status.set_state(flow.name, FlowState.FAILED, f"{type(error).__name__}: {error}")
        finally:
            source.close()
            target.close()


def _remote_topics(flow: FlowSettings, target: AdminClient) -> RemoteTopics | None:
    """Return the creation of remote topics if klamm is a broker of the target, else None."""
    if flow.replica is None:
        return None
    from klamm.mirror.replica.remote_topics import ReplicaTopics  # noqa: PLC0415 - for this mode only

    return ReplicaTopics(flow, target, flow.replica.node_id)
