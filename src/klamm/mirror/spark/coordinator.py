"""Driver's side of the leases: the partitions to copy, the tasks that copy them, and their progress.

Life cycle of a lease. A lease is one micro-batch of Spark; its number is Spark's offset.

=============  ==============================  ======================================================================
state          entered when                    what happens
=============  ==============================  ======================================================================
announced      Spark asks for ``next``         The number is one above the last lease. A restarted query that asks again
                                               before this lease is done gets the same number. Asking also reports that
                                               Spark has finished the lease in ``after``. Without work, or while the
                                               mirror ends, the answer is ``after`` itself: Spark then starts no
                                               micro-batch and asks again. The first lease is announced even without
                                               work: its groups are empty, so that Spark starts its Python workers
                                               while the mirror stands by.
dealt          Spark asks for ``groups``       The current shares of all flows are dealt to at most ``slots`` groups.
                                               A group gets the session that ended the previous lease in order. The
                                               timer for ``lease_s`` starts.
placed         a task sends ``place``          Only if a flow is a broker of its target. Spark chooses the process of a
                                               task, and may choose another one for each lease. So the group of each
                                               task depends on the sessions that its process keeps
                                               (``leases.place_tasks``): the broker stays in its process.
served         a task sends ``task``           The task copies and sends progress. The driver sends it the
                                               ``LiveValues`` if they changed since the plan, and after each later
                                               change. A second task for the same group is a
                                               retry by Spark: the driver ends the older attempt,
                                               which writes nothing more, and the retry resumes no
                                               session.
ending         the driver sends ``end``        The tasks stop fetching, wait for produce requests in flight, write
                                               their source offsets, and send ``finished`` with their session.
done           Spark asks for ``next`` with    Spark has committed the micro-batch.
               this number in ``after``
=============  ==============================  ======================================================================

The driver ends a lease for one of these reasons:

- ``lease_s`` seconds have passed since it was dealt.
- A flow publishes other partitions or settings.
- The number of slots changes.
- The mirror ends or fails.

A task also ends without the driver: when the side channel breaks, or 60 s after the regular end of the lease. Such a
task closes its connections, and no later task may resume its session.

A task can start late, for example when Spark retries it. By then its plan may be out of date. ``_end_if_stale``
therefore ends it at once if the mirror ends, if a newer lease exists, or if the partitions, settings or slots have
changed since the lease was dealt. An expired lease counts as changed.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from klamm.mirror.spark import leases
from klamm.mirror.spark.channel import ChannelServer, ServerConnection
from klamm.mirror.spark.leases import PartitionGroup

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from klamm.mirror.progress.flow_progress import MirrorStatus
    from klamm.mirror.records.requested_states import RequestedState
    from klamm.mirror.spark.leases import FlowShare
    from klamm.mirror.topics.claims import FlowClaim

logger = logging.getLogger(__name__)

_NOTHING_TO_DO_S: Final = 0.2
_NO_WORK_S: Final = 5.0
"""Seconds until Spark gets an answer while no flow has partitions, as in a process that stands by."""
_MAX_REPLACED: Final = 1_000
"""Most replaced sessions that are remembered. The oldest ones are forgotten first."""
_GRACE_S: Final = 60.0


class Coordinator:
    """Owner of the current lease and of the partitions to copy. Thread-safe: one lock guards all state.

    Args:
        status: Receiver of the progress of all partitions.
        lease_s: Duration of a lease, in seconds.
        tasks_max: ``tasks.max`` by flow name. Flows without an entry have no limit.
        claims: Claims of the flows. Flows without an entry are always held.
        replicas: Names of the flows that are brokers of their targets, in a fixed order.
    """

    def __init__(
        self,
        status: MirrorStatus,
        *,
        lease_s: float,
        tasks_max: Mapping[str, int],
        claims: Mapping[str, FlowClaim] = MappingProxyType({}),
        replicas: Sequence[str] = (),
    ) -> None:
        self._replicas = replicas
        self._status = status
        self._claims = claims
        self._slots = 1
        self._lease_s = lease_s
        self._tasks_max = dict(tasks_max)
        self._changed = threading.Condition()
        self._shares: dict[str, FlowShare] = {}
        self._lease = 0
        """Number of the newest announced lease. 0: none yet."""
        self._version = 0
        """Counter of changes to shares and slots. A lease is out of date when it was dealt at another version."""
        self._dealt_version = 0
        self._done = 0
        """Number of the newest lease that Spark has committed."""
        self._timer: threading.Timer | None = None
        self._tasks: dict[int, ServerConnection] = {}
        """Connection of the latest task per group number."""
        self._groups: Sequence[PartitionGroup] = ()
        """Groups of the newest lease, with the current live values."""
        self._limits: dict[str, int] = {}
        """Bytes per second by flow name."""
        self._topic_states: dict[str, Mapping[str, RequestedState]] = {}
        """Source topics that an operator paused, stopped, promoted or demoted by flow name."""
        self._sending = threading.Lock()
        """Held from reading live values to sending them, so that the last line to a task has the latest values."""
        self._restarts: dict[str, dict[str, int]] = {}
        """Number of restarts of each source topic by flow name."""
        self._replaced: deque[str] = deque(maxlen=_MAX_REPLACED)
        """Session tokens of the latest tasks whose groups were given to later tasks. These sessions must not write any
        more.
        """
        self._entrants: dict[int, tuple[ServerConnection, Collection[str]]] = {}
        """Connection and kept sessions of the tasks of the newest lease that have asked for a group, by task number."""
        self._places: dict[int, int] = {}
        """Group number by task number, of the newest lease. A retry of a task gets the same group."""
        self._max_groups = 0
        """Largest number of groups of a lease so far. Spark on one machine has that many worker processes at most."""
        self._dealt_groups: Sequence[PartitionGroup] = ()
        """Groups of the newest lease, with the live values of its plan."""
        self._sessions: dict[int, str] = {}
        """Session tokens per group number, from the tasks that ended the newest lease in order."""
        self._ending = False
        self._are_workers_started = False
        """Whether a lease was dealt since Spark started."""
        self._waits_for_work = False
        self.failure: str | None = None
        """Reason why the mirror copies nothing until an operator corrects something. None while it works."""
        self.server = ChannelServer(self)

    def set_slots(self, slots: int) -> None:
        """Set the number of tasks that can run at the same time, and end the running lease if the number changed.

        A lease never has more groups than slots. A group without a slot would wait until the lease of the other
        groups is over, and its partitions would not be copied until then.
        """
        with self._changed:
            if slots == self._slots:
                return
            self._slots = slots
            self._version += 1 if self._lease else 0
            lease = self._lease
        self.server.broadcast({"end": lease})

    @property
    def has_tasks(self) -> bool:
        """Whether a task has connected since the mirror started."""
        with self._changed:
            return bool(self._tasks)

    @property
    def has_work(self) -> bool:
        """Return whether at least one flow has published partitions to copy."""
        with self._changed:
            return bool(self._shares)

    def fail(self, reason: str) -> None:
        """End the running lease, and let Spark's query fail with this reason when it asks for the next one."""
        with self._changed:
            self.failure = reason
        self.end()

    def publish(self, flow: str, share: FlowShare | None) -> None:
        """Replace the partitions and settings of a flow. If they changed, end the running lease.

        The next lease uses the new ones.

        Args:
            flow: Name of the flow.
            share: Partitions and settings. None, or a share without partitions, releases the flow: it copies
                nothing, and its lag is unknown.
        """
        with self._changed:
            before = self._shares.get(flow)
            if share is None or not share.partitions:
                self._shares.pop(flow, None)
                self._status.release(flow)
            else:
                self._shares[flow] = share
                self._status.expect(flow, [(p.topic, p.partition) for p in share.partitions])
            if self._shares.get(flow) == before:
                return
            self._version += 1
            lease = self._lease
            self._changed.notify_all()
        self.server.broadcast({"end": lease})

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """Set the bytes per second of each flow and send them to the running tasks. The lease continues.

        Args:
            limits: ``klamm.max.bytes.per.second`` by flow name. Flows without an entry have no limit.
        """
        with self._changed:
            self._limits = dict(limits)
        self._send_live_values()

    def set_topic_states(self, flow: str, states: Mapping[str, RequestedState]) -> None:
        """Replace the paused and promoted topics of a flow and send them to the running tasks. The lease continues."""
        with self._changed:
            if self._topic_states.get(flow, {}) == states:
                return
            self._topic_states[flow] = states
        self._send_live_values()

    def restart(self, flow: str, topics: Iterable[str]) -> None:
        """Let the running tasks start the STOPPED partitions of these source topics again. The lease continues."""
        with self._changed:
            counts = self._restarts.get(flow, {})
            self._restarts[flow] = counts | {topic: counts.get(topic, 0) + 1 for topic in topics}
        self._send_live_values()

    def _send_live_values(self) -> None:
        with self._changed:
            self._groups = self._with_live_values(self._groups)
            numbers = list(self._tasks)
        for number in numbers:
            self._send_live(number)

    def _with_live_values(self, groups: Sequence[PartitionGroup]) -> tuple[PartitionGroup, ...]:
        return leases.with_live_values(groups, self._limits, self._topic_states, self._restarts)

    def _send_live(self, number: int) -> None:
        """Send the current live values to the task of a group."""
        with self._sending:
            with self._changed:
                live = next((group.live for group in self._groups if group.number == number), ())
                connection = self._tasks.get(number)
            if connection is not None:
                connection.send({"live": live})

    def end(self) -> None:
        """End the running lease and announce no further one."""
        with self._changed:
            self._ending = True
            lease = self._lease
            self._changed.notify_all()
        self.server.broadcast({"end": lease})

    def on_line(self, connection: ServerConnection, message: Mapping[str, Any]) -> None:
        """Handle a line from a task or from the planning process. Unknown lines are ignored."""
        match message:
            case {"progress": list(rows), "session": str(session)}:
                self._status.update(session, rows)
            case {"ask": "next", "after": int(after)}:
                lease = self._next_lease(after)
                connection.send({"lease": lease} if self.failure is None else {"failed": self.failure})
            case {"ask": "groups", "lease": int(lease)}:
                connection.send(self._plan(lease))
            case {"ask": "place", "task": int(task), "lease": int(lease), "sessions": list(kept)}:
                self._place(connection, task, lease, kept, has_waited=message["waited"])
            case {"ask": "claims"}:
                with self._changed:
                    replaced = {"replaced": True} if message.get("session") in self._replaced else {}
                connection.send({"claims": self._claims_left()} | replaced)
            case {"task": int(group), "lease": int(lease)}:
                connection.is_task = True
                connection.session = message.get("session", "")
                self._replace(group, connection, lease)
                if self._groups != self._dealt_groups:  # the plan of this task is older than the change
                    self._send_live(group)
                self._end_if_stale(connection, lease)
            case {"finished": int(group), "lease": int(lease), "session": str(session)}:
                self._finish(group, lease, session)
            case {"unable": str(reason)}:
                self.fail(reason)
            case _:
                pass

    def _claims_left(self) -> dict[str, float]:
        """Return the seconds that each flow is still held. Flows without a limit are left out.

        Tasks of a lease from before another process mirrored a flow do not hold it, even if this process does again.
        """
        dealt = {share.settings.flow: share.times_taken for group in self._groups for share in group.shares}
        left = {
            flow: claim.left_s if dealt.get(flow, claim.times_taken) == claim.times_taken else 0.0
            for flow, claim in self._claims.items()
        }
        return {flow: left_s for flow, left_s in left.items() if left_s < math.inf}

    def on_close(self, connection: ServerConnection) -> None:
        """Do nothing: Spark retries a lost task, and the retry cannot resume the session of the lost one."""

    def _next_lease(self, after: int) -> int:
        with self._changed:
            # Spark asks for the next lease only after it has committed the previous one.
            self._done = max(self._done, after)
            self._changed.notify_all()
            if self._ending:
                self._changed.wait(_NOTHING_TO_DO_S)
            elif not self._shares and self._are_workers_started:
                if not self._waits_for_work:
                    self._waits_for_work = True
                    logger.info("Spark has started and waits for a flow to take over")
                self._changed.wait_for(lambda: self._ending or bool(self._shares), _NO_WORK_S)
            if self._ending or (not self._shares and self._are_workers_started):
                return after
            self._lease = max(self._lease, after) + 1 if self._lease <= after else self._lease
            return self._lease

    def _plan(self, lease: int) -> dict[str, Any]:
        """Deal the current shares to groups, start the timer of the lease, and return the plan for Spark."""
        with self._changed:
            self._lease = max(self._lease, lease)
            shares: Sequence[FlowShare] = list(self._shares.values())
            groups = leases.partition_groups(
                shares, slots=self._slots, tasks_max=self._tasks_max, replicas=self._replicas
            )
            width = 0
            if not shares and not self._are_workers_started:
                width = self._slots
            elif self._replicas:  # each worker process gets a task, because any of them may keep a session
                width = min(self._slots, self._max_groups)
            taken = {group.number for group in groups}
            empty = [number for number in range(self._slots) if number not in taken][: max(0, width - len(groups))]
            groups += tuple(PartitionGroup(number=number, shares=()) for number in empty)
            self._max_groups = max(self._max_groups, len(groups))
            self._are_workers_started = True
            sessions, self._sessions = self._sessions, {}
            groups = tuple(replace(group, session=sessions.get(group.number, "")) for group in groups)
            groups = self._groups = self._dealt_groups = self._with_live_values(groups)
            self._entrants, self._places = {}, {}
            self._dealt_version = self._version
            self._start_timer(lease)
            self._changed.notify_all()
        # Normally the driver ends a lease. The deadline of the tasks is later: it ends those that no longer reach the
        # driver.
        return {
            "lease": lease,
            "seconds": self._lease_s + _GRACE_S,
            "groups": [leases.to_json(group) for group in groups],
            "any_task": bool(self._replicas),
        }

    def _place(
        self, connection: ServerConnection, task: int, lease: int, kept: Collection[str], *, has_waited: bool
    ) -> None:
        """Send their groups to this task and to those that waited for it. None if there is a newer lease."""
        with self._changed:
            if lease != self._lease:
                answers: list[tuple[ServerConnection, int | None]] = [(connection, None)]
            elif task in self._places:
                answers = [(connection, self._places[task])]
            else:
                self._entrants[task] = connection, kept
                sessions = {group.number: group.session for group in self._groups}
                free = {number: session for number, session in sessions.items() if number not in self._places.values()}
                waiting = {task: kept for task, (_, kept) in self._entrants.items() if task not in self._places}
                placed = leases.place_tasks(free, waiting, is_final=has_waited)
                self._places |= placed
                answers = [(self._entrants[task][0], group) for task, group in placed.items()]
        for each, group in answers:
            each.send({"group": group})

    def _start_timer(self, lease: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(self._lease_s, self._expire, (lease,))
        self._timer.daemon = True
        self._timer.start()

    def _expire(self, lease: int) -> None:
        """End a lease whose time is over, and mark it as out of date for tasks that Spark retries afterwards."""
        with self._changed:
            if lease == self._lease:
                self._dealt_version = -1
        self.server.broadcast({"end": lease})

    def _replace(self, group: int, connection: ServerConnection, lease: int) -> None:
        """Record the task that serves a group, and end an older attempt.

        Spark may have given up that attempt while it still copies, or while its process was suspended. It must not
        write its source offsets: the new attempt may already have written later ones.
        """
        with self._changed:
            if lease >= self._lease:
                replaced, self._tasks[group] = self._tasks.get(group), connection
                if replaced is None or replaced.session == connection.session:
                    return
                self._sessions.pop(group, None)
            else:  # its process was suspended before it sent this line, and Spark went on without it
                replaced = connection
            self._replaced.append(replaced.session)
        replaced.send({"end": lease, "replaced": True})

    def _end_if_stale(self, connection: ServerConnection, lease: int) -> None:
        with self._changed:
            stale = self._ending or lease < self._lease or self._dealt_version != self._version
        if stale:
            connection.send({"end": lease})

    def _finish(self, group: int, lease: int, session: str) -> None:
        with self._changed:
            if lease == self._lease and session not in self._replaced:
                self._sessions[group] = session

    def wait_released(self, flow: str, topics: Collection[str], timeout_s: float) -> bool:
        """Wait until no task has partitions of these source topics any more. Return False after ``timeout_s`` seconds.

        Call it after an assignment without them was published.
        """

        def is_released() -> bool:
            shares = [share for group in self._groups for share in group.shares if share.settings.flow == flow]
            if (next_share := self._shares.get(flow)) and any(each.topic in topics for each in next_share.partitions):
                return False  # the next lease would have them
            is_dealt = any(partition.topic in topics for share in shares for partition in share.partitions)
            return not is_dealt or self._done >= self._lease

        with self._changed:
            return self._changed.wait_for(is_released, timeout_s)

    def forget_sessions(self, flow: str) -> None:
        """Let no later lease resume the copiers of a flow: what they know of its source offsets is out of date."""
        with self._changed:
            for group in self._groups:
                if any(share.settings.flow == flow for share in group.shares):
                    self._sessions.pop(group.number, None)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until Spark has committed the newest lease. Return False after ``timeout_s`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._done >= self._lease, timeout_s)

    def close(self) -> None:
        """Close the side channel. Tasks that still run stop copying."""
        if self._timer is not None:
            self._timer.cancel()
        self.server.close()
