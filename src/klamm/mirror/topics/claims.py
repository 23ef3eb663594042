"""Claim of a flow: the right of one process to mirror it, kept in the heartbeats of the flow.

Of several processes that run the same flow, one is active and the others stand by. The heartbeats of the active process
carry a claim: who it is, up to which offset it has read the heartbeats, and for how many milliseconds the claim is
valid. All processes read the heartbeats of the flow in the order of the log, so they agree on the holder:

- A claim of the holder renews its claim.
- A claim of another writer makes it the holder, if it had read the latest claim of the holder. If not, it has no
  effect: of two processes that claim the flow at the same time, the first in the log wins, even if the other one was
  suspended before it wrote. So a claim that arrives late never ends one that its writer did not know.
- A claim that is valid for 0 ms releases the flow. A process that ends in order writes one.
- A claim of an independent flow of the same name has no effect: one of another file, whose effective aliases, offsets
  topic or ``group.id`` are others. Claims of an older klamm do not name these, and count for all flows of the name.

A process that stands by claims the flow when it has read no renewal for as long as the last claim is valid, by its own
monotonic clock. The holder counts from the moment *before* it sends a renewal, and stops 1.5 s before the claim ends
(``HOLD_SHARE``). So it has stopped when another process begins, even if it was suspended, or could not reach the
target: its tasks pause by themselves (see ``Copier.claimed_until``).

========  ==========  ================================================================================================
From      To          On
========  ==========  ================================================================================================
pending   held        No valid claim of another process, and the own claim was read back.
pending   stands by   Another process holds a valid claim.
stands by held        The other process released the flow, or its claim ended; the own claim was read back.
held      pending     No renewal was acknowledged in time. The tasks pause. The flow is claimed again as soon as the
                      target answers, and they continue if no other process claimed it since.
held      stands by   Another process has claimed the flow since.
any       held        The target rejects the heartbeats for a reason that only an operator can change, and no other
                      process was ever read. The flow is then mirrored without a claim, and that is logged.
========  ==========  ================================================================================================
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.kafka_client.errors import ConnectionLostError, error_text
from klamm.mirror.naming import HEARTBEATS_TOPIC
from klamm.mirror.progress.flow_progress import needs_person
from klamm.mirror.records.internal_topic import TopicGoneError

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.mirror.records.internal_topic import ControlConnection
    from klamm.protocol.records import Record

logger = logging.getLogger(__name__)

CLAIM_HEADER: Final = "klamm.mirror.claim"
"""Header of a heartbeat with a claim: flow, writer, position and validity in milliseconds, each in a line."""
_VALID_S: Final = 5.5
"""Validity of a claim in seconds, for heartbeats once a second. It grows with the interval of the heartbeats."""
HOLD_SHARE: Final = 4.0 / 5.5
"""Share of the validity after which the holder stops unless it renewed the claim. The rest allows for clocks of
different speed and for requests on their way."""
_READ_EVERY: Final = 5
"""Number of heartbeats of the holder between two reads. They keep its position near the log end."""
_TAIL: Final = 1000
"""Minimum number of records before the log end at which a process starts to read, whatever the clocks say."""
_GONE_S: Final = 5.0
"""Seconds that a missing topic is waited for. All brokers know a new topic after that."""


class Claim(NamedTuple):
    """Content of the header of one heartbeat."""

    flow: str
    instance: str
    """Identity of the process that wrote it: host, process id and a random number. The identity of the flow follows
    after a point.
    """
    position: int
    """Offset up to which its writer had read the heartbeats."""
    valid_ms: int
    """Milliseconds for which the claim is valid. 0: the flow is released."""

    @property
    def identity(self) -> str:
        """Identity of the flow among flows of its name. Empty: an older klamm wrote the claim."""
        return self.instance.rpartition(", ")[2].partition(".")[2]

    def header(self) -> tuple[str, bytes]:
        """Return the record header."""
        return CLAIM_HEADER, f"{self.flow}\n{self.instance}\n{self.position}\n{self.valid_ms}".encode()

    @staticmethod
    def of(record: Record) -> Claim | None:
        """Return the claim in a heartbeat. None: it has none, such as a heartbeat of MirrorMaker."""
        value = dict(record.headers).get(CLAIM_HEADER)
        if value is None:
            return None
        match bytes(value).decode(errors="replace").split("\n"):
            case [flow, instance, position, valid_ms] if position.isdecimal() and valid_ms.isdecimal():
                return Claim(flow, instance, int(position), int(valid_ms))
            case _:
                return None


class FlowClaim:
    """State of the claim in this process, read by the threads of the flow. Thread-safe."""

    def __init__(self, *, held_until: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a claim.

        Args:
            held_until: Monotonic time until which the flow is held, in seconds. Infinite: always.
            clock: Monotonic time in seconds.
        """
        self._changed = threading.Condition()
        self._until = held_until
        self._clock = clock
        self.holder = ""
        """Host and process that mirror the flow while this process stands by. Empty: it does not stand by."""
        self.times_taken = 0
        """Number of times that this process has taken over the flow. Nothing that a task kept from before counts."""
        self.problem = ""
        """Reason why the flow cannot be claimed now. Empty: there is none."""

    @staticmethod
    def always() -> FlowClaim:
        """Return the claim of a flow that no other process is checked for."""
        return FlowClaim(held_until=math.inf)

    @property
    def left_s(self) -> float:
        """Seconds until this process must stop unless it renews the claim. 0: it must not mirror. May be infinite."""
        return max(0.0, self._until - self._clock())

    @property
    def is_held(self) -> bool:
        """Return whether this process mirrors the flow."""
        return self.left_s > 0

    def wait_held(self, timeout_s: float) -> bool:
        """Wait until the flow is held, at most ``timeout_s`` seconds. Return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_held, timeout_s)

    def hold(self, until: float, *, was_taken: bool = False) -> None:
        """Record that this process may mirror the flow until its claim ends.

        Args:
            until: End of the claim, by the monotonic clock in seconds.
            was_taken: Whether another process may have mirrored the flow since this one held it.
        """
        with self._changed:
            self.times_taken += was_taken
            self._until, self.holder, self.problem = until, "", ""
            self._changed.notify_all()

    def let_go(self, *, holder: str = "", problem: str = "") -> None:
        """Stop holding the flow."""
        with self._changed:
            self._until, self.holder, self.problem = 0.0, holder, problem


class Claimant:
    """Reader and writer of the claims of one flow. Confined to the heartbeat thread."""

    def __init__(
        self,
        flow: str,
        instance: str,
        reader: ControlConnection,
        claim: FlowClaim,
        *,
        interval_s: float,
        identity: str = "",
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Create a claimant. It connects in the first ``prepare``.

        Args:
            flow: Name of the flow, ``A->B``.
            instance: Identity of this process.
            reader: Reader on the flow's target cluster.
            claim: State to update.
            interval_s: Interval of the heartbeats in seconds.
            identity: Identity of the flow among flows of its name. Empty: there are no others.
            clock: Monotonic time in seconds.
            now: Seconds since the epoch.
        """
        self._flow = flow
        self._identity = identity
        self._instance = f"{instance}.{identity}" if identity else instance
        self._reader = reader
        self._claim = claim
        self._clock = clock
        self._now = now
        self._valid_s = _VALID_S * max(1.0, interval_s)
        self._beats = 0
        self._at: int | None = None
        """Next offset to read. None: the start has to be requested first."""
        self._latest: Claim | None = None
        """Claim of the current holder. None: no claim was read."""
        self._latest_offset = -1
        """Its offset in the topic."""
        self._latest_at = 0.0
        """Monotonic time at which it was read."""
        self._has_seen_others = False
        self._was_taken = True
        """Whether another process may have mirrored the flow since this one last held it."""
        self._failing_since: float | None = None
        self._is_unclaimed = False
        """Whether the flow is mirrored without a claim."""
        self._was_held = False
        """Whether this process held the flow and has not yet noticed its loss."""

    def headers(self) -> tuple[tuple[str, bytes | None], ...] | None:
        """Return the headers of the next heartbeat, with a claim. Read the claims first, unless this process holds one.

        Returns:
            None: another process mirrors the flow, so this one writes no heartbeat. Empty: the flow is mirrored without
            a claim.

        Raises:
            ConnectionLostError, TopicGoneError: The claims cannot be read now.
        """
        self._beats += 1
        try:
            return (self._own(self._valid_s).header(),) if self._may_claim() else None
        except (ConnectionLostError, TopicGoneError) as error:
            self.fail(error)
            if self._is_unclaimed:
                return ()
            raise

    def _may_claim(self) -> bool:
        """Return whether this process writes a claim now."""
        is_held = self._is_claimed
        if is_held and self._beats % _READ_EVERY:
            return True
        self._read()
        latest = self._latest
        if latest is not None and latest.instance != self._instance and self._is_valid(latest):
            if self._claim.is_held or not self._claim.holder:
                logger.info("%s: stands by, because another process mirrors it (%s)", self._flow, _process(latest))
            self._is_unclaimed = self._was_held = False
            self._claim.let_go(holder=_process(latest))
            return False
        if not is_held and self._was_held:
            self._was_held = False
            logger.warning(
                "%s: copying was interrupted, because no heartbeat was acknowledged for %g s and another process "
                "could have taken over", self._flow, self._valid_s * HOLD_SHARE,
            )  # fmt: skip
        return True

    def _own(self, valid_s: float) -> Claim:
        return Claim(self._flow, self._instance, self._at or 0, int(valid_s * 1000))

    def _is_valid(self, claim: Claim) -> bool:
        return self._clock() < self._latest_at + claim.valid_ms / 1000

    def _read(self) -> None:
        """Read new claims.

        Raises:
            ConnectionLostError, TopicGoneError: The topic cannot be read to its end now.
        """
        end = self._reader.end_offsets([(HEARTBEATS_TOPIC, 0)]).get((HEARTBEATS_TOPIC, 0))
        try:
            if end is None:  # a read would succeed with a new leader, and could read the whole topic
                raise self._missing()
            records, self._at = self._reader.read(HEARTBEATS_TOPIC, self._at or self._start(end))
        except TopicGoneError:
            self._at, self._latest_offset = None, -1
            self._was_taken = True  # claims in the old topic may have been missed
            raise
        for record in records:
            claim = Claim.of(record)
            if claim is not None and claim.flow == self._flow and claim.identity in ("", self._identity):
                self._take(claim, record.offset)
        if self._at < end:
            raise ConnectionLostError(f"an open transaction of another producer hides records of {HEARTBEATS_TOPIC}")

    def _missing(self) -> ConnectionLostError | TopicGoneError:
        """Return the error of a topic whose end is unknown."""
        if HEARTBEATS_TOPIC in self._reader.cluster.topics:
            return ConnectionLostError(f"the leader of {HEARTBEATS_TOPIC} does not respond")
        return TopicGoneError(f"{HEARTBEATS_TOPIC} does not exist")

    def _start(self, end: int) -> int:
        """Return the offset at which the first read starts, before every claim that may be valid.

        All pairs of clusters write heartbeats to the topic, so any number of records may follow a claim. Its timestamp
        is of another host, so the search starts two validities back, in case the clocks differ.

        Raises:
            ConnectionLostError: The leader does not respond.
        """
        since = self._reader.offset_at(HEARTBEATS_TOPIC, int((self._now() - 2 * self._valid_s) * 1000))
        if since is None:
            raise ConnectionLostError(f"the leader of {HEARTBEATS_TOPIC} does not respond")
        return max(0, min(end if since < 0 else since, end - _TAIL))

    def _take(self, claim: Claim, offset: int) -> None:
        """Apply a claim in the order of the log."""
        latest = self._latest
        if latest is not None and claim.instance != latest.instance and claim.position <= self._latest_offset:
            return  # its writer did not know the latest claim
        self._latest, self._latest_offset, self._latest_at = claim, offset, self._clock()
        if claim.instance != self._instance:
            self._has_seen_others = self._was_taken = True

    def confirm(self, sent_at: float) -> None:
        """Hold the flow after a heartbeat was acknowledged. A new claim is read back first.

        Args:
            sent_at: Monotonic time before the heartbeat was sent, in seconds.

        Raises:
            ConnectionLostError, TopicGoneError: The claims cannot be read now.
        """
        self._failing_since = None
        if not self._is_claimed:
            self._read()
            if self._latest is None or self._latest.instance != self._instance:
                return  # another process was first, so the next call of headers returns None
            if self._has_seen_others:
                logger.info("%s: this process mirrors it now", self._flow)
            self._is_unclaimed, self._was_held = False, True
        self._claim.hold(sent_at + self._valid_s * HOLD_SHARE, was_taken=self._was_taken)
        self._was_taken = False

    def fail(self, error: Exception) -> None:
        """Note that heartbeats cannot be read or written now. Mirror without a claim if only an operator can help."""
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = now
        reason, is_lasting = error_text(error), now >= self._failing_since + _GONE_S
        is_gone = isinstance(error, TopicGoneError) and is_lasting
        if (is_gone or needs_person(reason)) and not self._has_seen_others:
            if not self._is_unclaimed:
                logger.warning(
                    "%s: a second process that mirrors this flow would not stand by, but copy the same records: %s",
                    self._flow, reason,
                )  # fmt: skip
            self._is_unclaimed = True
            self._claim.hold(math.inf)
        elif not self._claim.is_held and is_lasting:
            problem = f"cannot find out whether another process mirrors it: {reason}"
            self._claim.let_go(holder=self._claim.holder, problem=problem)

    def release(self) -> tuple[tuple[str, bytes | None], ...] | None:
        """Return the headers of a heartbeat that releases the flow. None: this process does not hold it."""
        return (self._own(0).header(),) if self._is_claimed else None

    @property
    def stands_by(self) -> bool:
        """Return whether this process does not mirror the flow now."""
        return not self._claim.is_held

    @property
    def _is_claimed(self) -> bool:
        return self._claim.is_held and not self._is_unclaimed


def _process(claim: Claim) -> str:
    """Return host and process id of the writer of a claim."""
    return claim.instance.rpartition(", ")[0] or claim.instance
