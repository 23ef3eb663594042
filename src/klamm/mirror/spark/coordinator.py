"""The driver's side of leases: what is to be copied, who copies it, how far they are."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from klamm.mirror.spark import leases
from klamm.mirror.spark.channel import ChannelServer, ServerConnection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.mirror.progress import MirrorStatus
    from klamm.mirror.spark.leases import Group, Share

_NOTHING_TO_DO_S: Final = 0.2
_GRACE_S: Final = 60.0


class Coordinator:
    """Deals leases and collects progress. Thread-safe: one lock over everything."""

    def __init__(
        self,
        status: MirrorStatus,
        *,
        lease_s: float,
        tasks_max: Mapping[str, int],
    ) -> None:
        self._status = status
        self._slots = 1
        self._lease_s = lease_s
        self._tasks_max = dict(tasks_max)
        self._changed = threading.Condition()
        self._shares: dict[str, Share] = {}
        self._lease = 0
        """The newest lease that was announced."""
        self._version = 0
        """Counts changes of what is to be copied."""
        self._dealt_version = 0
        self._done = 0
        """The newest lease that Spark has counted as done."""
        self._timer: threading.Timer | None = None
        self._tasks: dict[int, ServerConnection] = {}
        """The last task that began to serve a group."""
        self._sessions: dict[int, str] = {}
        """Sessions that ended the newest lease in order, by group."""
        self._ending = False
        self.failure: str | None = None
        """Why nothing will be copied any more, until somebody changes something."""
        self.server = ChannelServer(self)

    def set_slots(self, slots: int) -> None:
        """Say how many tasks can run at once: no more groups are dealt, and what runs is dealt anew.

        A task that waits for a slot would wait until the lease of the others is over.
        """
        with self._changed:
            if slots == self._slots:
                return
            self._slots = slots
            self._version += 1 if self._lease else 0
            lease = self._lease
        self.server.broadcast({"end": lease})

    @property
    def has_work(self) -> bool:
        """Whether a flow has published something to copy."""
        with self._changed:
            return bool(self._shares)

    def fail(self, reason: str) -> None:
        """Let Spark's query fail with this reason when it asks for the next lease."""
        with self._changed:
            self.failure = reason
        self.end()

    def publish(self, flow: str, share: Share | None) -> None:
        """Say what a flow copies from now on; running leases end so that it takes effect."""
        with self._changed:
            before = self._shares.get(flow)
            if share is None or not share.partitions:
                self._shares.pop(flow, None)
            else:
                self._shares[flow] = share
            self._status.expect(flow, [(p.topic, p.partition) for p in share.partitions] if share else [])
            if self._shares.get(flow) == before:
                return
            self._version += 1
            lease = self._lease
            self._changed.notify_all()
        self.server.broadcast({"end": lease})

    def end(self) -> None:
        """Let the running lease end and announce no other."""
        with self._changed:
            self._ending = True
            lease = self._lease
            self._changed.notify_all()
        self.server.broadcast({"end": lease})

    def on_line(self, connection: ServerConnection, message: Mapping[str, Any]) -> None:
        """Handle a line of a task or of the planning process."""
        match message:
            case {"progress": list(rows), "session": str(session)}:
                self._status.update(session, rows)
            case {"ask": "next", "after": int(after)}:
                lease = self._next_lease(after)
                connection.send({"lease": lease} if self.failure is None else {"failed": self.failure})
            case {"ask": "groups", "lease": int(lease)}:
                connection.send(self._plan(lease))
            case {"task": int(group), "lease": int(lease)}:
                connection.is_task = True
                self._replace(group, connection, lease)
                self._end_if_stale(connection, lease)
            case {"finished": int(group), "lease": int(lease), "session": str(session)}:
                self._finish(group, lease, session)
            case {"unable": str(reason)}:
                self.fail(reason)
            case _:
                pass

    def on_close(self, connection: ServerConnection) -> None:
        """Nothing to do: a task that is gone is started again by Spark, and has no session to go on with."""

    def _next_lease(self, after: int) -> int:
        with self._changed:
            # Spark asks for the next lease once it is done with the one before.
            self._done = max(self._done, after)
            self._changed.notify_all()
            if self._ending or not self._shares:
                self._changed.wait(_NOTHING_TO_DO_S)
            if self._ending or not self._shares:
                return after
            self._lease = max(self._lease, after) + 1 if self._lease <= after else self._lease
            return self._lease

    def _plan(self, lease: int) -> dict[str, Any]:
        with self._changed:
            self._lease = max(self._lease, lease)
            shares: Sequence[Share] = list(self._shares.values())
            groups = leases.deal(shares, slots=self._slots, tasks_max=self._tasks_max)
            sessions, self._sessions = self._sessions, {}
            self._dealt_version = self._version
            self._start_timer(lease)
        named: list[Group] = [replace(group, session=sessions.get(group.number, "")) for group in groups]
        # The driver ends leases; a task that it can not reach any more ends by itself a little later.
        return {
            "lease": lease,
            "seconds": self._lease_s + _GRACE_S,
            "groups": [leases.to_json(group) for group in named],
        }

    def _start_timer(self, lease: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(self._lease_s, self._expire, (lease,))
        self._timer.daemon = True
        self._timer.start()

    def _expire(self, lease: int) -> None:
        """End a lease whose time is over, also for tasks that were started again meanwhile."""
        with self._changed:
            if lease == self._lease:
                self._dealt_version = -1
        self.server.broadcast({"end": lease})

    def _replace(self, group: int, connection: ServerConnection, lease: int) -> None:
        """Note who serves a group now. Another attempt may still live that Spark has given up: it is to end."""
        with self._changed:
            before = self._tasks.get(group)
            self._tasks[group] = connection
        if before is not None and before is not connection:
            before.send({"end": lease})

    def _end_if_stale(self, connection: ServerConnection, lease: int) -> None:
        with self._changed:
            stale = self._ending or lease < self._lease or self._dealt_version != self._version
        if stale:
            connection.send({"end": lease})

    def _finish(self, group: int, lease: int, session: str) -> None:
        with self._changed:
            if lease == self._lease:
                self._sessions[group] = session

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until Spark is done with the newest lease; False when it takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._done >= self._lease, timeout_s)

    def close(self) -> None:
        """Close the side channel: tasks that still run stop."""
        if self._timer is not None:
            self._timer.cancel()
        self.server.close()
