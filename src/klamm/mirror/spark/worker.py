"""Task's side of a lease, inside a Python worker process of Spark.

A task runs one copier per flow of its group. The first copier runs in the task's own thread, the others each in a
thread of their own. The first copier's thread also owns the side channel: it reads ``end`` lines every 0.05 s and sends
the progress of all copiers every 0.25 s.

A flow that another process may claim (see ``topics.claims``) is copied only while the driver holds the claim. A thread
asks the driver twice a second on a connection of its own. The seconds in the answer count from the question, so a
driver or a task that was suspended never copies longer than the claim is held. Without a claim, the task pauses. It
continues if the driver holds the claim again and no other process mirrored the flow. Otherwise the driver ends the
lease.

A task ends its lease when the driver sends ``end``, when its deadline passes, when the side channel breaks, or when one
of its copiers raises an error. Each copier then stops fetching, waits for produce requests in flight and writes its
source offsets. Only a task that still has its driver at that point, and whose copiers all ended in time, sends
``finished`` and keeps its session for the next lease. Every other task closes its session. A kept session that no lease
resumes within 10 s is closed too: its flows may have been stopped, and a broker without storage (``replica``) would go
on serving.

If Spark takes a task for lost, for example because its process was suspended, it starts another one for the same group.
The driver then reports to the older task that it was replaced. That task closes its session without another write: the
newer task may already have written later source offsets.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from klamm.display import log_to_stderr
from klamm.mirror.copy.copier import ClaimLostError, Copier
from klamm.mirror.progress.flow_progress import RATE_WINDOW_S
from klamm.mirror.records.requested_states import RequestedState
from klamm.mirror.replay.copier import ReplayCopier
from klamm.mirror.spark.channel import WORKER_LINE, ChannelClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from klamm.mirror.copy.partition import PartitionId
    from klamm.mirror.copy.settings import CopySettings
    from klamm.mirror.progress.partition_progress import PartitionProgress
    from klamm.mirror.spark.leases import FlowShare, PartitionGroup


_REPEATED_FOR_S: Final = 3 * RATE_WINDOW_S
"""Time for which an unchanged row is still sent, so that the driver's rates fall to zero when copying stops."""
_REPORT_EVERY_S: Final = 0.25
_LISTEN_EVERY_S: Final = 0.05
_JOIN_S: Final = 60.0
_ASK_EVERY_S: Final = 0.5
_CLAIM_ANSWER_S: Final = 1.0
_PLACE_S: Final = 2.0
"""Seconds for which a task waits until all tasks of its lease have started. It is some hundredths of a second."""
_KEPT_S: Final = 10.0
"""Seconds for which a session is kept between two leases. There are fractions of a second between them."""


class LeaseSession:
    """Copiers of one group, with their connections and fetched records. May serve several leases in one process."""

    def __init__(self, shares: Sequence[FlowShare]) -> None:
        self.token = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._is_revoked = False
        self.shares = tuple(shares)
        self.copiers = [new_copier(share.settings, share.partitions) for share in shares]

    def adopt(self, shares: Sequence[FlowShare]) -> None:
        """Take over the shares of a new lease. Copiers go on if their settings are the same, the others are closed.

        Shares may have other partitions if their copiers can change them.
        """
        before = list(zip(self.shares, self.copiers, strict=True))
        kept: dict[int, Copier] = {}
        for at, share in enumerate(shares):
            for own, copier in before:
                is_same = own == share or (
                    replace(own, partitions=share.partitions) == share and copier.assign(share.partitions)
                )
                if is_same:
                    kept[at] = copier
                    before.remove((own, copier))
                    break
        for _, copier in before:
            copier.close()
        self.shares = tuple(shares)
        self.copiers = [kept.get(at) or new_copier(each.settings, each.partitions) for at, each in enumerate(shares)]

    def apply(self, live: Iterable[Sequence[Any]]) -> None:
        """Set the live values of each copier, in the order of ``shares``: the fields of ``LiveValues``."""
        for copier, (limit, rows, restarts) in zip(self.copiers, live, strict=False):
            states = {topic: RequestedState(state) for topic, state in rows}
            copier.throttle.limit = limit
            copier.promoted = {topic: state for topic, state in states.items() if state.is_promoted}
            copier.demoted = frozenset(topic for topic, state in states.items() if state is RequestedState.DEMOTED)
            copier.paused = frozenset(states.keys() - copier.promoted.keys() - copier.demoted)
            copier.restarts = dict(restarts)

    def claim(self, until: Callable[[str], float]) -> None:
        """Let each copier write until the monotonic time in seconds that belongs to its flow, unless revoked."""
        with self._lock:
            if not self._is_revoked:
                for share, copier in zip(self.shares, self.copiers, strict=True):
                    copier.claimed_until = until(share.settings.flow)

    def revoke(self) -> None:
        """Let the copiers write nothing more: a newer task copies their partitions, or the session is closed."""
        with self._lock:
            self._is_revoked = True
            for copier in self.copiers:
                copier.claimed_until = -math.inf

    def close(self) -> None:
        """Close all connections of the copiers. A thread that still runs one writes nothing more, and ends."""
        self.revoke()
        for copier in self.copiers:
            copier.close()


class KeptSessions:
    """Sessions that ended their lease in order, by group number. The driver decides whether one is resumed."""

    def __init__(self, kept_s: float = _KEPT_S) -> None:
        self._kept_s = kept_s
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[LeaseSession, threading.Timer]] = {}

    def keep(self, number: int, session: LeaseSession) -> None:
        """Keep the session of a group, and close it if no lease takes it in time."""
        timer = threading.Timer(self._kept_s, lambda: self._expire(number, timer))
        timer.daemon = True
        with self._lock:
            self._kept[number] = session, timer
        timer.start()

    def _expire(self, number: int, timer: threading.Timer) -> None:
        with self._lock:
            session, current = self._kept.get(number, (None, None))
            if current is not timer:
                return
            del self._kept[number]
        if session is not None:
            session.close()

    def tokens(self) -> list[str]:
        """Return the tokens of all sessions."""
        with self._lock:
            return [session.token for session, _ in self._kept.values()]

    def take_all(self) -> dict[int, LeaseSession]:
        """Return all sessions by group number. They are not kept any more."""
        with self._lock:
            kept, self._kept = self._kept, {}
        for _, timer in kept.values():
            timer.cancel()
        return {number: session for number, (session, _) in kept.items()}


kept_sessions = KeptSessions()


class ProgressFilter:
    """Filter that drops unchanged progress rows. At any time, most partitions have not changed."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str, int], tuple[PartitionProgress, float]] = {}

    def of(self, rows: Iterable[PartitionProgress], now: float) -> Iterator[PartitionProgress]:
        """Yield the rows that are new, have changed since they were last yielded, or changed recently."""
        for row in rows:
            key = (row.flow, row.topic, row.partition)
            before, changed_at = self._sent.get(key, (None, now))
            if row is not before and row != before:
                self._sent[key] = row, now
            elif now - changed_at >= _REPEATED_FOR_S:
                continue
            yield row


class _Claims:
    """Claims of a session's flows, as the driver answers. Used in a thread of its own."""

    def __init__(self, session: LeaseSession, address: tuple[str, int], token: str) -> None:
        self._session = session
        self._channel = ChannelClient(address, token)
        self._ended = threading.Event()

    def ask(self) -> None:
        """Ask the driver, and limit the copiers by its answer.

        Raises:
            OSError: The connection to the driver is lost.
        """
        asked_at = time.monotonic()
        self._channel.send({"ask": "claims", "session": self._session.token})
        answer = None
        while answer is None and not self._ended.is_set():
            answer = self._channel.receive(timeout_s=_CLAIM_ANSWER_S)
        if answer is None or self._ended.is_set():
            return
        left = answer["claims"]
        if "replaced" in answer:
            self._session.revoke()
        self._session.claim(lambda flow: asked_at + left.get(flow, math.inf))

    def keep_asking(self) -> None:
        """Renew the claims until the lease ends. Without a response the copiers pause when their claims end.

        Flows without a limit ask, too: the driver may answer that the session was replaced.
        """
        with contextlib.suppress(OSError):
            while not self._ended.wait(_ASK_EVERY_S):
                self.ask()

    def close(self) -> None:
        """End the thread at its next turn."""
        self._ended.set()
        self._channel.close()


class _Lease:
    """Run of one lease by a session. Watches deadline and side channel, and reports the copiers' progress."""

    def __init__(self, session: LeaseSession, channel: ChannelClient, *, lease: int, seconds: float) -> None:
        self._session = session
        self._channel = channel
        self._lease = lease
        self._deadline = time.monotonic() + seconds
        self._listen_at = 0.0
        self._report_at = [0.0 for _ in session.copiers]
        self._ended = threading.Event()
        self._errors: list[Exception] = []
        self.driver_is_gone = False
        self.claim_is_lost = False
        self.is_stuck = False
        """Whether a copier's thread did not end in time. No other thread may run its copier."""
        self._rows: list[Sequence[PartitionProgress]] = [() for _ in session.copiers]
        self._filter = ProgressFilter()

    def run(self) -> None:
        """Copy until the lease is over. The first copier runs in this thread, each other copier in a thread of its own.

        Raises:
            Exception: The first error of a copier. The lease ends for all copiers of the group.
        """
        threads = [
            threading.Thread(target=self._copy, args=(number,), name=f"copier-{number}", daemon=True)
            for number in range(1, len(self._session.copiers))
        ]
        for thread in threads:
            thread.start()
        self._copy(0)
        for thread in threads:
            thread.join(_JOIN_S)
            self.is_stuck |= thread.is_alive()
        if self._errors:
            raise self._errors[0]

    def _copy(self, number: int) -> None:
        copier = self._session.copiers[number]
        try:
            copier.run(self._should_end if number == 0 else self._ended.is_set, lambda: self._note(number))
        except ClaimLostError:
            self.claim_is_lost = True
            self._ended.set()
        except Exception as error:  # noqa: BLE001 - raised again by run(): a copier never dies silently
            self._errors.append(error)
            self._ended.set()
        self._rows[number] = copier.progress()

    def _note(self, number: int) -> None:
        """Keep the progress of a copier. Called in the copier's thread; the first copier's thread sends all of it."""
        now = time.monotonic()
        if now < self._report_at[number]:
            return
        self._report_at[number] = now + _REPORT_EVERY_S
        self._rows[number] = self._session.copiers[number].progress()
        if number == 0:
            self.report()

    def report(self) -> None:
        """Send the progress rows that are new to the driver."""
        news = [row.to_json() for row in self._filter.of(self.rows(), time.monotonic())]
        try:
            self._channel.send({"session": self._session.token, "progress": news})
        except OSError:
            self._lose_driver()

    def rows(self) -> list[PartitionProgress]:
        """Return the latest known progress of all copiers."""
        return [row for rows in self._rows for row in rows]

    def _should_end(self) -> bool:
        now = time.monotonic()
        if now >= self._listen_at:
            self._listen_at = now + _LISTEN_EVERY_S
            self._listen()
        if now >= self._deadline:
            self._ended.set()
        return self._ended.is_set()

    def _listen(self) -> None:
        try:
            while (message := self._channel.receive(timeout_s=0)) is not None:
                if message.get("end", -1) >= self._lease:
                    if "replaced" in message:
                        self._session.revoke()
                    self._ended.set()
                self._session.apply(message.get("live", ()))
        except OSError:
            self._lose_driver()

    def _lose_driver(self) -> None:
        self.driver_is_gone = True
        self._ended.set()


def _place(groups: Sequence[PartitionGroup], channel: ChannelClient, *, task: int, lease: int) -> PartitionGroup | None:
    """Return the group that the driver chooses by the sessions of this process. None: the lease is over.

    Raises:
        OSError: The connection to the driver is lost.
    """
    question = {"ask": "place", "task": task, "lease": lease, "sessions": kept_sessions.tokens()}
    channel.send({**question, "waited": False})
    if (answer := channel.receive(timeout_s=_PLACE_S)) is None:  # other tasks of the lease do not start
        channel.send({**question, "waited": True})
    # A driver that stalls may have placed this task already, and would not give its group to another one.
    while answer is None:
        answer = channel.receive(timeout_s=_PLACE_S)
    number = answer["group"]
    return next((group for group in groups if group.number == number), None)


def serve(
    groups: Sequence[PartitionGroup], *, task: int, lease: int, seconds: float, address: tuple[str, int], token: str
) -> Iterator[tuple[Any, ...]]:
    """Copy the partitions of a group until its lease is over, then yield one row of progress per partition.

    Args:
        groups: Partitions and settings of each flow of the group. Several groups: the driver chooses one.
        task: Number of the task in the lease.
        lease: Number of the lease.
        seconds: Deadline of the task, in seconds from now, in case the driver does not end the lease.
        address: Host and port of the side channel.
        token: Token of the side channel.

    Raises:
        OSError: The driver cannot be reached.
    """
    if not any(group.shares for group in groups):
        return  # the task only started this process
    log_to_stderr(WORKER_LINE, level=logging.WARNING)
    channel = ChannelClient(address, token)
    group = groups[0] if len(groups) == 1 else _place(groups, channel, task=task, lease=lease)
    if group is None or not group.shares:
        channel.close()
        return
    session = resume(group)
    session.apply(group.live)
    claims = _Claims(session, address, token)
    finished = False
    try:
        claims.ask()
        threading.Thread(target=claims.keep_asking, name="claims", daemon=True).start()
        channel.send({"task": group.number, "lease": lease, "pid": os.getpid(), "session": session.token})
        run = _Lease(session, channel, lease=lease, seconds=seconds)
        run.run()
        run.report()
        finished = not (run.driver_is_gone or run.claim_is_lost or run.is_stuck)
        if finished:
            kept_sessions.keep(group.number, session)
            channel.send({"finished": group.number, "lease": lease, "session": session.token})
        yield from (tuple(row.to_json().values()) for row in run.rows())
    finally:
        claims.close()
        if not finished:
            session.close()
        channel.close()


def resume(group: PartitionGroup) -> LeaseSession:
    """Return the session that the driver named if this process has it, else a new one. Close all other sessions."""
    sessions = kept_sessions.take_all()
    kept = sessions.pop(group.number, None)
    for session in sessions.values():
        # A worker serves one group at a time. The other sessions belong to groups that other workers serve now.
        session.close()
    if kept is not None:
        if kept.token == group.session:
            kept.adopt(group.shares)
            return kept
        kept.close()
    return LeaseSession(group.shares)


def new_copier(settings: CopySettings, partitions: Iterable[PartitionId]) -> Copier:
    """Return the copier of some partitions of a flow."""
    if (replica := settings.replica) is not None:
        # Imported for this mode only: they need the server.
        from klamm.mirror.replica.copier import ReplicaCopier  # noqa: PLC0415
        from klamm.mirror.replica.state import new_member  # noqa: PLC0415

        return ReplicaCopier(settings, replica, partitions, new_member=lambda: new_member(settings, replica))
    if settings.replay is not None:
        return ReplayCopier(settings, settings.replay, partitions)
    return Copier(settings, partitions)
