"""What a task does with its lease, inside Spark's Python worker."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from klamm.mirror.copy.copier import Copier, PartitionProgress
from klamm.mirror.progress import RATE_WINDOW_S
from klamm.mirror.spark.channel import WORKER_LINE, ChannelClient

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from klamm.mirror.spark.leases import Group, Share

logger = logging.getLogger(__name__)

_REPEATED_FOR_S: Final = 3 * RATE_WINDOW_S
"""So that the driver sees that nothing comes any more, and its rates go down to zero."""
_REPORT_EVERY_S: Final = 0.25
_LISTEN_EVERY_S: Final = 0.05
_JOIN_S: Final = 60.0


class LeaseSession:
    """The copiers of one group; may serve lease after lease in one process."""

    def __init__(self, shares: Sequence[Share]) -> None:
        self.token = uuid.uuid4().hex
        self.shares = tuple(shares)
        self.copiers = [Copier(share.settings, share.partitions) for share in shares]

    def close(self) -> None:
        """Close all connections."""
        for copier in self.copiers:
            copier.close()


_sessions: dict[int, LeaseSession] = {}
"""Sessions that ended their lease in order, by group; they may go on if the driver says so. One task at a time
runs in a worker process, so nothing else touches it."""


class News:
    """Tells which rows of progress the driver has to hear of: with ten thousand partitions most have nothing to say."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str, int], tuple[PartitionProgress, float]] = {}

    def of(self, rows: Iterable[PartitionProgress], now: float) -> Iterator[PartitionProgress]:
        """Yield the rows that changed since they were yielded, and those that did so a short while ago."""
        for row in rows:
            key = (row.flow, row.topic, row.partition)
            before, changed_at = self._told.get(key, (None, now))
            if row is not before and row != before:
                self._told[key] = row, now
            elif now - changed_at >= _REPEATED_FOR_S:
                continue
            yield row


class _Lease:
    """One run of a session: watches the time and the channel, reports what the copiers did."""

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
        self._rows: list[Sequence[PartitionProgress]] = [() for _ in session.copiers]
        self._news = News()

    def run(self) -> None:
        """Copy until the lease is over; every copier has a thread, the first one this one."""
        threads = [
            threading.Thread(target=self._copy, args=(number,), name=f"copier-{number}", daemon=True)
            for number in range(1, len(self._session.copiers))
        ]
        for thread in threads:
            thread.start()
        self._copy(0)
        for thread in threads:
            thread.join(_JOIN_S)
        if self._errors:
            raise self._errors[0]

    def _copy(self, number: int) -> None:
        copier = self._session.copiers[number]
        try:
            copier.run(self._should_end if number == 0 else self._ended.is_set, lambda: self._note(number))
        except Exception as error:  # noqa: BLE001 - raised again by run(): a copier never dies silently
            self._errors.append(error)
            self._ended.set()
        self._rows[number] = copier.progress()

    def _note(self, number: int) -> None:
        """Keep the progress of a copier, made in its own thread; the first one's thread sends all of it."""
        now = time.monotonic()
        if now < self._report_at[number]:
            return
        self._report_at[number] = now + _REPORT_EVERY_S
        self._rows[number] = self._session.copiers[number].progress()
        if number == 0:
            self.report()

    def report(self) -> None:
        """Send what is new of the progress to the driver."""
        news = [asdict(row) for row in self._news.of(self.rows(), time.monotonic())]
        try:
            self._channel.send({"session": self._session.token, "progress": news})
        except OSError:
            self._lose_driver()

    def rows(self) -> list[PartitionProgress]:
        """Return the last known progress of all copiers."""
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
                    self._ended.set()
        except OSError:
            self._lose_driver()

    def _lose_driver(self) -> None:
        self.driver_is_gone = True
        self._ended.set()


def serve(
    group: Group, *, lease: int, seconds: float, address: tuple[str, int], token: str
) -> Iterator[dict[str, Any]]:
    """Copy the partitions of a group until its lease is over, then yield a row of progress per partition."""
    logging.basicConfig(format=WORKER_LINE)
    channel = ChannelClient(address, token)
    session = _resume(group)
    finished = False
    try:
        channel.send({"task": group.number, "lease": lease, "pid": os.getpid()})
        run = _Lease(session, channel, lease=lease, seconds=seconds)
        run.run()
        run.report()
        finished = not run.driver_is_gone
        if finished:
            _sessions[group.number] = session
            channel.send({"finished": group.number, "lease": lease, "session": session.token})
        yield from (asdict(row) for row in run.rows())
    finally:
        if not finished:
            session.close()
        channel.close()


def _resume(group: Group) -> LeaseSession:
    """Return the session that the driver wants to go on, or a new one; sessions that others overtook are closed."""
    kept = _sessions.pop(group.number, None)
    for number in list(_sessions):
        # A worker serves one group at a time: what is left here belongs to groups that went elsewhere.
        _sessions.pop(number).close()
    if kept is not None:
        if kept.token == group.session and kept.shares == group.shares:
            return kept
        kept.close()
    return LeaseSession(group.shares)
