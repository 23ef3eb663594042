"""Sans-I/O cutter of a byte stream into frames, of which most are passed on unread.

A function looks at the first bytes of each frame and decides:

========  =============================================================================================================
Action    Meaning of the number
========  =============================================================================================================
PASS      The frame of so many bytes, size included, is passed on as it arrives. It is never kept.
NEED      The function must see so many bytes of the frame before it can decide. They are kept until then.
TAKE      So many bytes are complete and removed from the stream; the pieces take their place.
STOP      Nothing more may be cut at present. The rest of the chunk is kept until ``resume``.
========  =============================================================================================================
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from klamm.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klamm.gateway.frames.peer import Peer

Piece: TypeAlias = "bytes | bytearray | memoryview"


class CutAction(IntEnum):
    """Decision about the first bytes of a frame."""

    PASS = 0
    NEED = 1
    TAKE = 2
    STOP = 3


Cut: TypeAlias = "tuple[CutAction, int, Sequence[Piece]]"
"""Action, its number, and the pieces that take the place of the bytes."""
Decide: TypeAlias = "Callable[[memoryview, int, int], Cut]"
"""Takes the chunk, the position of a frame in it and the number of available bytes from there on."""
EndOfRun: TypeAlias = "Callable[[memoryview, int, int], int]"
"""Takes the chunk, the position of a frame in it and the position after the available bytes. Returns the position after
the run of frames that pass without a decision: beyond the available bytes if the last of them is incomplete, that of
the frame if there are none.
"""

PASS: Final = CutAction.PASS
NEED: Final = CutAction.NEED
TAKE: Final = CutAction.TAKE
STOP: Final = CutAction.STOP
DEFAULT_HELD_BYTES: Final = 256 * 1024 * 1024
_SMALL_BYTES: Final = 64 * 1024


class FrameHolder(Protocol):
    """Interface of a connection that the budget uses."""

    peer: Peer

    def give_up(self) -> None:
        """Close the connection, so its memory is freed at once."""
        ...


class HeldBudget:
    """Budget of the bytes that all cutters of a process keep, and of the requests that are decoded from them.

    When the budget is exceeded, the largest connection of the client host that holds the most is closed. So a client
    that fills the memory, with unfinished frames or with frames that wait, loses connections of its own, however many
    it has. Clients behind a load balancer without PROXY headers are one host; of these, the largest is closed.

    Args:
        max_bytes: Limit in bytes. Frames of up to 64 KiB do not count, so their connections are never closed.
    """

    __slots__ = ("_max_bytes", "_shares", "held_bytes")

    def __init__(self, max_bytes: int = DEFAULT_HELD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._shares: dict[FrameHolder, int] = {}
        """Number of bytes of each connection that holds any, oldest first."""
        self.held_bytes = 0

    def change(self, before: int, after: int, holder: FrameHolder) -> None:
        """Account for ``after`` bytes that a connection keeps in place of ``before`` bytes.

        Args:
            before: Number of bytes kept so far.
            after: Number of bytes kept now.
            holder: The connection.

        Raises:
            ProtocolError: The budget is exceeded; the caller closes this connection, which holds the most.
        """
        grown = max(after - _SMALL_BYTES, 0) - max(before - _SMALL_BYTES, 0)
        self.held_bytes += grown
        share = self._shares.get(holder, 0) + grown
        if share > 0:
            self._shares[holder] = share
        else:
            self._shares.pop(holder, None)
        # This connection is in the midst of its work, so it is not closed from here.
        while grown > 0 and self.held_bytes > self._max_bytes:
            largest = self._largest(holder)
            if largest is holder:
                raise ProtocolError(f"Unfinished and decoded frames of all connections exceed {self._max_bytes} bytes")
            del self._shares[largest]
            largest.give_up()

    def _largest(self, newest: FrameHolder) -> FrameHolder:
        """Return the connection to close next: of equal ones, the one that needs more now."""
        hosts: Counter[str] = Counter()
        for holder, share in self._shares.items():
            hosts[holder.peer.host] += share
        return max(self._shares, key=lambda each: (hosts[each.peer.host], self._shares[each], each is newest))


def _no_run(_chunk: memoryview, position: int, _end: int) -> int:
    return position


class FrameCutter:
    """Cutter of one direction of one connection.

    Args:
        decide: Function that decides about each frame outside of a run.
        budget: Budget of the bytes that all cutters keep.
        holder: The connection.
        end_of_run: Function that finds runs of frames that pass without a decision.
    """

    __slots__ = ("_budget", "_decide", "_end_of_run", "_held", "_holder", "_left", "_wanted", "is_stopped")

    def __init__(
        self,
        decide: Decide,
        budget: HeldBudget,
        holder: FrameHolder,
        end_of_run: EndOfRun = _no_run,
    ) -> None:
        self._decide = decide
        self._holder = holder
        self._end_of_run = end_of_run
        self._budget = budget
        self._left = 0
        self._held = bytearray()
        self._wanted = 0
        self.is_stopped = False
        """Whether the stream is stopped (``STOP``)."""

    @property
    def is_between_frames(self) -> bool:
        """Return whether the bytes passed on so far end with a frame."""
        return not self._left

    @property
    def is_empty(self) -> bool:
        """Return whether no byte of an unfinished frame has arrived or is kept."""
        return not self._left and not self._held

    @property
    def unfinished_bytes(self) -> int:
        """Number of bytes kept of a frame that must be complete before it is decided on."""
        return 0 if self.is_stopped else len(self._held)

    def cut(self, chunk: memoryview, out: list[Piece]) -> None:
        """Add bytes of the stream and append the bytes to pass on to ``out``. Slices of ``chunk`` are not copied.

        Raises:
            ProtocolError: A frame is rejected, or the budget of kept bytes is exceeded.
        """
        if self._held or self.is_stopped:
            before = len(self._held)
            self._held += chunk
            self._budget.change(before, len(self._held), self._holder)
            if self.is_stopped or len(self._held) < self._wanted:
                return
            chunk = self._unhold()
        end, position = len(chunk), self._left
        if position < end and (position := self._end_of_run(chunk, position, end)) < end:
            self._cut(chunk, position, out)
        else:
            self._left = position - end
            out.append(chunk)

    def resume(self, out: list[Piece]) -> None:
        """Continue after a stop.

        Raises:
            ProtocolError: As in ``cut``.
        """
        if self.is_stopped:
            self.is_stopped = False
            self._cut(self._unhold(), 0, out)

    def drop(self) -> None:
        """Forget the kept bytes. The connection is closed."""
        self._unhold()

    def _unhold(self) -> memoryview:
        held, self._held, self._wanted = self._held, bytearray(), 0
        self._budget.change(len(held), 0, self._holder)
        return memoryview(held)

    def _cut(self, chunk: memoryview, position: int, out: list[Piece]) -> None:
        """Cut a chunk of which all bytes before a position pass."""
        end, start = len(chunk), 0
        self._left = 0
        while position < end and (position := self._end_of_run(chunk, position, end)) < end:
            try:
                action, count, pieces = self._decide(chunk, position, end - position)
            except ProtocolError:
                _append(chunk, start, position, out)  # the frames before it are passed on
                raise
            if action is PASS:
                position += count
                continue
            _append(chunk, start, position, out)
            if action is not TAKE:
                self._hold(chunk[position:], count, stopped=action is STOP)
                return
            out.extend(pieces)
            position = start = position + count
        if position > end:
            self._left, position = position - end, end
        _append(chunk, start, position, out)

    def _hold(self, rest: memoryview, wanted: int, *, stopped: bool) -> None:
        self._held, self._wanted, self.is_stopped = bytearray(rest), wanted, stopped
        self._budget.change(0, len(self._held), self._holder)


def _append(chunk: memoryview, start: int, end: int, out: list[Piece]) -> None:
    if end > start:
        out.append(chunk if end - start == len(chunk) else chunk[start:end])
