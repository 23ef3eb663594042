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

from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


class HeldBudget:
    """Budget of the bytes that all cutters of a process keep. Clients cannot fill the memory with unfinished frames.

    When the budget is exceeded, the unfinished frame that was begun first is given up. Most frames are complete after
    milliseconds, so this one belongs to a client that does not send the rest.

    Args:
        max_bytes: Limit in bytes. Frames of up to 64 KiB do not count.
    """

    __slots__ = ("_max_bytes", "_unfinished", "held_bytes")

    def __init__(self, max_bytes: int = DEFAULT_HELD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._unfinished: dict[FrameCutter, None] = {}
        """Cutters that keep a part of a frame, oldest first."""
        self.held_bytes = 0

    def change(self, before: int, after: int, unfinished: FrameCutter | None = None) -> None:
        """Account for ``after`` bytes that are kept in place of ``before`` bytes.

        Args:
            before: Number of bytes kept so far.
            after: Number of bytes kept now.
            unfinished: Cutter that keeps a part of a frame; None for bytes that wait for the gateway itself.

        Raises:
            ProtocolError: The budget is exceeded; the caller closes the connection that needs more.
        """
        self.held_bytes += max(after - _SMALL_BYTES, 0) - max(before - _SMALL_BYTES, 0)
        if after <= before or after <= _SMALL_BYTES:
            return
        if unfinished is not None:
            self._unfinished[unfinished] = None
        while self.held_bytes > self._max_bytes:
            oldest = next(iter(self._unfinished), None)
            if oldest is None or oldest is unfinished:
                raise ProtocolError(f"Unfinished and decoded frames of all connections exceed {self._max_bytes} bytes")
            oldest.give_up()

    def forget(self, cutter: FrameCutter) -> None:
        """Remove a cutter that keeps no part of a frame any more."""
        self._unfinished.pop(cutter, None)


def _no_run(_chunk: memoryview, position: int, _end: int) -> int:
    return position


class FrameCutter:
    """Cutter of one direction of one connection.

    Args:
        decide: Function that decides about each frame outside of a run.
        budget: Budget of the bytes that all cutters keep.
        end_of_run: Function that finds runs of frames that pass without a decision.
        on_given_up: Called when the rest of a frame has not arrived and others need the memory. It closes the
            connection.
    """

    __slots__ = ("_budget", "_decide", "_end_of_run", "_held", "_left", "_on_given_up", "_wanted", "is_stopped")

    def __init__(
        self,
        decide: Decide,
        budget: HeldBudget,
        end_of_run: EndOfRun = _no_run,
        on_given_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._decide = decide
        self._on_given_up = on_given_up
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

    def give_up(self) -> None:
        """Drop the part of a frame and have the connection closed."""
        self.drop()
        self._on_given_up()

    def cut(self, chunk: memoryview, out: list[Piece]) -> None:
        """Add bytes of the stream and append the bytes to pass on to ``out``. Slices of ``chunk`` are not copied.

        Raises:
            ProtocolError: A frame is rejected, or the budget of kept bytes is exceeded.
        """
        if self._held or self.is_stopped:
            before = len(self._held)
            self._held += chunk
            self._budget.change(before, len(self._held), None if self.is_stopped else self)
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
        self._budget.change(len(held), 0)
        self._budget.forget(self)
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
        self._budget.change(0, len(self._held), None if stopped else self)


def _append(chunk: memoryview, start: int, end: int, out: list[Piece]) -> None:
    if end > start:
        out.append(chunk if end - start == len(chunk) else chunk[start:end])
