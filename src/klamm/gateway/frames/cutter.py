"""Sans-I/O cutter of a byte stream into frames, of which most are passed on unread.

A judge looks at the first bytes of each frame and decides:

========  =============================================================================================================
CutVerdict   Meaning of the number
========  =============================================================================================================
PASS      The frame of so many bytes, size included, is passed on as it arrives. It is never kept.
NEED      The judge must see so many bytes of the frame before it can decide. They are kept until then.
TAKE      So many bytes are complete and removed from the stream; the pieces of the verdict take their place.
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


class CutVerdict(IntEnum):
    """Decision about the first bytes of a frame."""

    PASS = 0
    NEED = 1
    TAKE = 2
    STOP = 3


Judgement: TypeAlias = "tuple[CutVerdict, int, Sequence[Piece]]"
Judge: TypeAlias = "Callable[[memoryview, int, int], Judgement]"
"""Takes the chunk, the position of a frame in it and the number of available bytes from there on."""
PassRun: TypeAlias = "Callable[[memoryview, int, int], int]"
"""Takes the chunk, the position of a frame in it and the position after the available bytes. Returns the position after
the frames that pass without a judgement: beyond the available bytes if the last of them is incomplete, the position of
the frame if there are none.
"""

PASS: Final = CutVerdict.PASS
NEED: Final = CutVerdict.NEED
TAKE: Final = CutVerdict.TAKE
STOP: Final = CutVerdict.STOP
DEFAULT_HELD_BYTES: Final = 256 * 1024 * 1024
_SMALL_BYTES: Final = 64 * 1024


class HeldBudget:
    """Budget of the bytes that all cutters of a process keep. Clients cannot fill the memory with unfinished frames.

    When the budget is exceeded, the unfinished frame that was begun first is given up. Most frames are complete after
    milliseconds, so this one belongs to a client that does not send the rest.

    Args:
        most_bytes: Limit in bytes. Frames of up to 64 KiB do not count.
    """

    __slots__ = ("_most_bytes", "_unfinished", "held_bytes")

    def __init__(self, most_bytes: int = DEFAULT_HELD_BYTES) -> None:
        self._most_bytes = most_bytes
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
        while self.held_bytes > self._most_bytes:
            oldest = next(iter(self._unfinished), None)
            if oldest is None or oldest is unfinished:
                raise ProtocolError(f"Unfinished and decoded frames of all connections exceed {self._most_bytes} bytes")
            oldest.give_up()

    def forget(self, cutter: FrameCutter) -> None:
        """Remove a cutter that keeps no part of a frame any more."""
        self._unfinished.pop(cutter, None)


def _pass_none(_chunk: memoryview, position: int, _end: int) -> int:
    return position


class FrameCutter:
    """Cutter of one direction of one connection.

    Args:
        judge: Decides about each frame that does not pass without a judgement.
        budget: Budget of the bytes that all cutters keep.
        pass_run: Finds the frames that pass without a judgement.
        on_given_up: Called when the rest of a frame has not arrived and others need the memory. It closes the
            connection.
    """

    __slots__ = ("_budget", "_held", "_judge", "_left", "_on_given_up", "_pass_run", "_wanted", "is_stopped")

    def __init__(
        self,
        judge: Judge,
        budget: HeldBudget,
        pass_run: PassRun = _pass_none,
        on_given_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._judge = judge
        self._on_given_up = on_given_up
        self._pass_run = pass_run
        self._budget = budget
        self._left = 0
        self._held = bytearray()
        self._wanted = 0
        self.is_stopped = False
        """Whether the judge stopped the stream."""

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
        """Number of bytes kept of a frame that must be complete before it is judged."""
        return 0 if self.is_stopped else len(self._held)

    def give_up(self) -> None:
        """Drop the part of a frame and have the connection closed."""
        self.drop()
        self._on_given_up()

    def cut(self, chunk: memoryview, out: list[Piece]) -> None:
        """Add bytes of the stream and append the bytes to pass on to ``out``. Slices of ``chunk`` are not copied.

        Raises:
            ProtocolError: The judge rejects a frame, or the budget of kept bytes is exceeded.
        """
        if self._held or self.is_stopped:
            before = len(self._held)
            self._held += chunk
            self._budget.change(before, len(self._held), None if self.is_stopped else self)
            if self.is_stopped or len(self._held) < self._wanted:
                return
            chunk = self._unhold()
        end, position = len(chunk), self._left
        if position < end and (position := self._pass_run(chunk, position, end)) < end:
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
        while position < end and (position := self._pass_run(chunk, position, end)) < end:
            try:
                verdict, count, pieces = self._judge(chunk, position, end - position)
            except ProtocolError:
                _append(chunk, start, position, out)  # the frames before it are passed on
                raise
            if verdict is PASS:
                position += count
                continue
            _append(chunk, start, position, out)
            if verdict is not TAKE:
                self._hold(chunk[position:], count, stopped=verdict is STOP)
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
