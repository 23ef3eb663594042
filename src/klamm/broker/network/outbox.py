"""Responses on their way to the socket: handed to the transport piece by piece, as fast as the peer reads.

A transport keeps in memory what the kernel does not take. A peer that asks for much and never reads would fill the
broker's memory, so three rules hold here:

- A large response is cut into pieces. The next piece is handed over, and read from disk where it still lies there,
  when the peer has read what came before.
- All connections share one budget for what they hold (``UnreadBudget``). While it is exceeded, no connection begins
  another request. Responses that were begun go on, since that is what frees memory.
- Meanwhile the budget aborts the connections whose peers have read nothing for a second, those that cost most first.
  So a peer that does not read makes others wait for about a second, and never for good.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from klamm.broker.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from klamm.broker.route import Piece

Buffer: TypeAlias = bytes | bytearray | memoryview

PIECE_BYTES: Final = 512 * 1024
"""What one connection hands to its transport at a time."""
MAX_UNREAD_BYTES: Final = 128 * 1024 * 1024
"""What all connections together hold for peers that have not read it yet."""
STALLED_S: Final = 1.0
"""A peer that has caught up at no moment of this time may lose its connection when the budget is exceeded."""
_RELIEF_S: Final = 0.05
"""How often the budget is counted while it is exceeded."""


class Holder(Protocol):
    """A connection, as the budget sees it."""

    @property
    def unread_bytes(self) -> int:
        """Bytes of responses that are kept in memory for the peer."""

    def stalled_s(self, now: float) -> float:
        """Return for how many seconds the peer has not caught up; ``now`` by the event loop's clock."""

    def give_up(self) -> None:
        """Abort the connection, so that its memory is free at once."""


class UnreadBudget:
    """Counts what all connections hold for peers that do not read. Loop-confined.

    A count looks at every connection that holds something. It is made when so much was added since the last one that
    the limit may be exceeded, so most writes cost an addition.
    """

    def __init__(self, max_bytes: int = MAX_UNREAD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._holders: set[Holder] = set()
        self._counted = 0
        self._added = 0
        self._relief: asyncio.Task[None] | None = None

    def add(self, holder: Holder, size: int) -> None:
        """Note that a connection holds ``size`` bytes more; above the limit, connections are given up from now on."""
        self._holders.add(holder)
        self._added += size
        if self._counted + self._added > self._max_bytes and not self.is_exceeded and self._count() > self._max_bytes:
            self._relief = asyncio.get_running_loop().create_task(self._relieve())

    def remove(self, holder: Holder) -> None:
        """Forget a connection."""
        self._holders.discard(holder)

    @property
    def is_exceeded(self) -> bool:
        """Whether all connections together hold more than they may."""
        return self._relief is not None and not self._relief.done()

    async def room(self) -> None:
        """Return when the budget is not exceeded."""
        while self._relief is not None and self.is_exceeded:
            await asyncio.shield(self._relief)

    def _count(self) -> int:
        held = {holder: holder.unread_bytes for holder in self._holders}
        self._holders = {holder for holder, size in held.items() if size}
        self._counted, self._added = sum(held.values()), 0
        return self._counted

    async def _relieve(self) -> None:
        loop = asyncio.get_running_loop()
        while self._count() > self._max_bytes:
            now = loop.time()
            stalled = [holder for holder in self._holders if holder.stalled_s(now) >= STALLED_S]
            stalled.sort(key=lambda holder: holder.stalled_s(now) * holder.unread_bytes, reverse=True)
            for holder in stalled:
                self._counted -= holder.unread_bytes
                self.remove(holder)
                holder.give_up()
                if self._counted <= self._max_bytes:
                    break
            await asyncio.sleep(_RELIEF_S)


class Outbox:
    """The way out of one connection. Loop-confined.

    Args:
        transport: Where responses go.
        budget: Shared by all connections.
        holder: The connection that the budget aborts when its peer does not read.
    """

    __slots__ = ("_budget", "_holder", "_rest", "_stalled_since", "_transport", "_writable")

    def __init__(self, transport: asyncio.Transport, budget: UnreadBudget, holder: Holder) -> None:
        self._transport = transport
        self._budget = budget
        self._holder = holder
        self._rest = 0
        self._writable: asyncio.Future[None] | None = None
        self._stalled_since = 0.0

    @property
    def unread_bytes(self) -> int:
        """Bytes in memory that the kernel has not taken."""
        return self._rest + self._transport.get_write_buffer_size()

    def stalled_s(self, now: float) -> float:
        """Return for how many seconds the transport has been full; 0 when it is not."""
        return 0.0 if self._writable is None else now - self._stalled_since

    def pause(self) -> None:
        """Take note that the transport is full."""
        loop = asyncio.get_running_loop()
        self._stalled_since = loop.time()
        self._writable = loop.create_future()

    def resume(self) -> None:
        """Take note that the peer caught up."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    @property
    def is_ready(self) -> bool:
        """Whether this peer has caught up, and all peers together leave room in the budget."""
        return self._writable is None and not self._budget.is_exceeded

    async def ready(self) -> None:
        """Return when ``is_ready`` holds: another request may begin."""
        while not self.is_ready:
            await self._caught_up()
            await self._budget.room()

    async def _caught_up(self) -> None:
        while self._writable is not None:
            await self._writable

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Hand over what is small."""
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)
        size = self._transport.get_write_buffer_size()
        if size:
            self._budget.add(self._holder, size)

    async def send(self, pieces: Sequence[Piece], size: int) -> None:
        """Hand over a response of ``size`` bytes; returns when the transport has the last piece of it.

        Raises:
            StorageError: A piece cannot be read from disk. The response is incomplete, so the connection must end.
        """
        in_memory = [piece for piece in pieces if isinstance(piece, Buffer)]
        if size <= PIECE_BYTES and len(in_memory) == len(pieces):
            self.write(in_memory)
            return
        self._rest = sum(map(len, in_memory))
        self._budget.add(self._holder, self._rest)
        time_slice = TimeSlice()
        try:
            for run, from_memory in _runs(pieces):
                self._rest -= from_memory
                size -= sum(map(len, run))
                self.write(run)
                if size:
                    await time_slice.give_way()
                    await self._caught_up()
        finally:
            self._rest = 0


def _runs(pieces: Iterable[Piece]) -> Iterator[tuple[list[Buffer], int]]:
    """Yield buffers of some ``PIECE_BYTES`` together, and how many bytes of them were in memory before.

    What lies on disk is read when it is asked for.
    """
    run: list[Buffer] = []
    size = from_memory = 0
    for piece in pieces:
        for start in range(0, len(piece), PIECE_BYTES):
            if isinstance(piece, Buffer):
                part: Buffer = memoryview(piece)[start : start + PIECE_BYTES]
                from_memory += len(part)
            else:
                part = piece.read(start, PIECE_BYTES)
            run.append(part)
            size += len(part)
            if size >= PIECE_BYTES:
                yield run, from_memory
                run, size, from_memory = [], 0, 0
    if run:
        yield run, from_memory
