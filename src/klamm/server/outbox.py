"""Back-pressure for responses: each is handed to the transport piece by piece, as fast as the peer reads.

A transport keeps in memory all bytes that the kernel does not accept. A client that requests much and never reads
would fill the broker's memory. Three rules prevent that:

=====================  =======================  ===============================================================
Limit                  Scope                    Effect
=====================  =======================  ===============================================================
``PIECE_BYTES``        one response             A large response is split. The next piece is handed over (and
                                                read from the log, if it lies there) only after the peer has
                                                read the pieces before it.
``MAX_UNREAD_BYTES``   all connections          While the sum of unread bytes exceeds the limit, no connection
                                                starts a request. Responses in progress continue, because
                                                finishing them is what frees memory.
``STALLED_S``          a connection, while the  The broker aborts connections whose transport has been full for
                       sum is exceeded          this long, the most expensive (seconds x bytes) first, until
                                                the sum is below the limit. If a request has to wait, it also
                                                aborts those that read less than a quarter of their unread
                                                bytes in this time, the largest first, provided that this
                                                brings the sum below the limit.
=====================  =======================  ===============================================================

A transport with TLS passes encrypted bytes on to another transport, and does not report how many of them the kernel has
not accepted. These bytes are not counted as unread. ``ENCRYPTED_PIECE_BYTES`` keeps them few.

Long ranges of log files are not read where the connection is not encrypted: the kernel copies them from the page cache
to the socket (``os.sendfile``).

So a client that does not read, or reads a little now and then, delays other clients for about a second. Clients that
read faster delay them until they have read what is above the limit; each second they read a quarter or are aborted. A
slow client that delays no request may take as long as it needs.

A connection that streams a long response holds the same number of bytes however fast its peer reads. So what counts is
what the peer has read, and not what the connection still holds. But if many such connections together exceed the limit,
requests would wait until enough of their responses end. After ``_LATE_S`` seconds the bytes held must fall as well.

States of one outbox:

==========  =========================================  =============================================
State       Entered when                               Left when
==========  =========================================  =============================================
ready       the transport's buffer has room            the transport calls ``pause_writing``
stalled     ``pause``; ``_stalled_since`` is set       the transport calls ``resume_writing``, or the
                                                       connection is aborted
==========  =========================================  =============================================
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from klamm.server.route import Piece, Range

Buffer: TypeAlias = bytes | bytearray | memoryview
_BUFFERS: Final = (bytes, bytearray, memoryview)
"""The same as a tuple, with which ``isinstance`` is ten times faster."""

PIECE_BYTES: Final = 512 * 1024
"""Maximum number of bytes one connection hands to its transport at a time."""
ENCRYPTED_PIECE_BYTES: Final = 128 * 1024
"""The same for an encrypted connection, and the size of its transport's buffer."""
_PIECES_AT_ONCE: Final = 1_000
"""Maximum number of small pieces, such as the entries of a long response, that it hands over at a time."""
MAX_UNREAD_BYTES: Final = 128 * 1024 * 1024
"""Maximum number of unread response bytes that all connections together may keep in memory."""
STALLED_S: Final = 1.0
"""Seconds with a full transport after which a connection may be aborted while the budget is exceeded."""
_RELIEF_S: Final = 0.05
"""Seconds between two counts while the budget is exceeded."""
_MIN_READ: Final = 0.25
"""Share of its unread bytes that the peer of a connection must read in ``STALLED_S`` while requests wait."""
_LATE_S: Final = 10.0
"""Seconds of waiting requests after which a connection must also hold fewer bytes by this share."""

SENT_BY_KERNEL_BYTES: Final = 64 * 1024
"""Number of bytes from which a piece in a log file is copied to the socket by the kernel, without being read."""
_FEW_BYTES: Final = 16 * 1024
"""Number of bytes that the transport gets when the socket is full."""


class Holder(Protocol):
    """Interface of a connection that the budget uses."""

    @property
    def unread_bytes(self) -> int:
        """Bytes of responses kept in memory for the peer."""

    @property
    def taken_bytes(self) -> int:
        """Bytes of responses that the kernel has accepted so far."""

    def stalled_s(self, now: float) -> float:
        """Return for how many seconds the transport has been full. ``now`` is a time of the event loop's clock."""

    def give_up(self) -> None:
        """Abort the connection, so its memory is freed at once."""


class UnreadBudget:
    """Budget of unread response bytes, shared by all connections. Used on the event loop only.

    An exact count visits every connection with unread bytes. It is done only when the bytes added since the last count
    could exceed the limit, so most writes cost one addition.
    """

    def __init__(self, max_bytes: int = MAX_UNREAD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._holders: set[Holder] = set()
        self._counted = 0
        self._added = 0
        self._relief: asyncio.Task[None] | None = None
        self._waiting = 0
        """Number of connections that wait in ``room``."""

    def add(self, holder: Holder, size: int) -> None:
        """Record that a connection holds ``size`` more bytes.

        When the limit is exceeded, start to abort stalled and slow connections.
        """
        self._holders.add(holder)
        self._added += size
        if self._counted + self._added > self._max_bytes and not self.is_exceeded and self._count() > self._max_bytes:
            self._relief = asyncio.get_running_loop().create_task(self._relieve())

    def remove(self, holder: Holder) -> None:
        """Stop counting the unread bytes of a connection."""
        self._holders.discard(holder)

    @property
    def is_exceeded(self) -> bool:
        """Return whether all connections together exceed the limit."""
        return self._relief is not None and not self._relief.done()

    async def room(self) -> None:
        """Wait until the budget is not exceeded."""
        self._waiting += 1
        try:
            while self._relief is not None and self.is_exceeded:
                await asyncio.shield(self._relief)
        finally:
            self._waiting -= 1

    def _count(self) -> int:
        held = {holder: holder.unread_bytes for holder in self._holders}
        self._holders = {holder for holder, size in held.items() if size}
        self._counted, self._added = sum(held.values()), 0
        return self._counted

    async def _relieve(self) -> None:
        loop = asyncio.get_running_loop()
        before: dict[Holder, tuple[int, int]] = {}
        rounds = 0
        waited_s = 0.0
        while self._count() > self._max_bytes:
            now = loop.time()
            stalled = [holder for holder in self._holders if holder.stalled_s(now) >= STALLED_S]
            self._give_up(sorted(stalled, key=lambda holder: holder.stalled_s(now) * holder.unread_bytes, reverse=True))
            # Rounds are counted instead of seconds: while the event loop is blocked, no peer can read.
            if rounds * _RELIEF_S >= STALLED_S:
                rounds = 0
            if rounds == 0:
                if self._waiting:
                    self._give_up(self._slow_since(before, is_late=waited_s >= _LATE_S))
                    waited_s += STALLED_S
                before = {holder: (holder.unread_bytes, holder.taken_bytes) for holder in self._holders}
            rounds += 1
            await asyncio.sleep(_RELIEF_S)

    def _slow_since(self, before: Mapping[Holder, tuple[int, int]], *, is_late: bool) -> list[Holder]:
        """Return the connections that have read little since then, the largest first.

        If they hold too little together, aborting them would not end the wait, so none is returned. The others hold
        more than the limit then, and read.

        Args:
            before: Unread and taken bytes of each connection ``STALLED_S`` ago.
            is_late: Whether to count the bytes by which the memory of a connection has fallen, instead of those that
                its peer has read. One that holds more than before has another response.
        """
        slow = []
        for holder in self._holders:
            unread, taken = before.get(holder, (0, 0))
            read = unread - holder.unread_bytes if is_late else holder.taken_bytes - taken
            if 0 <= read < _MIN_READ * unread:
                slow.append(holder)
        if sum(holder.unread_bytes for holder in slow) < self._counted - self._max_bytes:
            return []
        return sorted(slow, key=lambda holder: holder.unread_bytes, reverse=True)

    def _give_up(self, holders: Iterable[Holder]) -> None:
        """Abort connections, in this order, until the budget is not exceeded."""
        for holder in holders:
            if self._counted <= self._max_bytes:
                return
            self._counted -= holder.unread_bytes
            self.remove(holder)
            holder.give_up()


class Outbox:
    """Outgoing side of one connection. Used on the event loop only.

    Args:
        transport: Transport that receives the responses.
        budget: Budget shared by all connections.
        holder: Connection that the budget aborts when its peer does not read.
        socket: Descriptor of the transport's socket, if the kernel may copy files to it (``plain_socket``).
    """

    __slots__ = (
        "_budget",
        "_handed_over",
        "_holder",
        "_piece_bytes",
        "_rest",
        "_socket",
        "_stalled_since",
        "_transport",
        "_writable",
    )

    def __init__(
        self, transport: asyncio.Transport, budget: UnreadBudget, holder: Holder, socket: int | None = None
    ) -> None:
        self._transport = transport
        self._budget = budget
        self._holder = holder
        self._rest = 0
        self._handed_over = 0
        self._piece_bytes = PIECE_BYTES
        if transport.get_extra_info("sslcontext") is not None:
            self._piece_bytes = ENCRYPTED_PIECE_BYTES
            # Whenever the transport below has sent what it holds, it gets the whole buffer of this one.
            transport.set_write_buffer_limits(high=ENCRYPTED_PIECE_BYTES)
        self._socket = socket
        self._writable: asyncio.Future[None] | None = None
        self._stalled_since = 0.0

    @property
    def unread_bytes(self) -> int:
        """Bytes in memory that the kernel has not accepted."""
        return self._rest + self._transport.get_write_buffer_size()

    @property
    def taken_bytes(self) -> int:
        """Bytes that the kernel has accepted, from memory or from log files. It grows as long as the peer reads."""
        return self._handed_over - self._transport.get_write_buffer_size()

    def stalled_s(self, now: float) -> float:
        """Return for how many seconds the transport has been full, 0 when it is not full."""
        return 0.0 if self._writable is None else now - self._stalled_since

    def pause(self) -> None:
        """Record that the transport is full."""
        loop = asyncio.get_running_loop()
        self._stalled_since = loop.time()
        self._writable = loop.create_future()

    def resume(self) -> None:
        """Record that the peer has caught up."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    @property
    def is_ready(self) -> bool:
        """Return whether this peer has caught up and the shared budget is not exceeded."""
        return self._writable is None and not self._budget.is_exceeded

    async def ready(self) -> None:
        """Wait until another request may start (``is_ready``)."""
        while not self.is_ready:
            await self._caught_up()
            await self._budget.room()

    async def _caught_up(self) -> None:
        while self._writable is not None:
            await self._writable

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Hand small buffers to the transport at once."""
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)
        size = self._transport.get_write_buffer_size()
        if size:
            self._budget.add(self._holder, size)

    async def send(self, pieces: Sequence[Piece], size: int) -> None:
        """Hand a response of ``size`` bytes to the transport; return when the transport has its last piece.

        Raises:
            StorageError: A piece cannot be read from the log. The response is incomplete, so the connection must be
                closed.
        """
        if size <= self._piece_bytes and len(pieces) <= _PIECES_AT_ONCE:
            in_memory = [piece for piece in pieces if isinstance(piece, _BUFFERS)]
            if len(in_memory) == len(pieces):
                self._handed_over += size
                self.write(in_memory)
                return
        time_slice = TimeSlice()
        left, held = await _sizes_in_memory(pieces, time_slice)
        self._rest = held
        self._budget.add(self._holder, self._rest)
        try:
            by_kernel = sys.maxsize if self._socket is None else SENT_BY_KERNEL_BYTES
            for run, from_memory in _runs(pieces, by_kernel, self._piece_bytes):
                left -= from_memory
                self._rest = min(left, held)
                if isinstance(run, list):
                    handed_over = sum(map(len, run))
                    size -= handed_over
                    self._handed_over += handed_over
                    self.write(run)
                elif self._socket is not None:
                    size -= len(run)
                    await self._send_range(run, self._socket, time_slice)
                if size:
                    await time_slice.give_way()
                    await self._caught_up()
        finally:
            self._rest = 0

    async def _send_range(self, piece: Range, socket: int, time_slice: TimeSlice) -> None:
        """Let the kernel copy a range of a log file to the socket.

        The kernel gets bytes only while the transport holds none, so the order is kept. When the socket is full, the
        transport gets the next few bytes. Its limit is 0 meanwhile, so it calls ``resume_writing`` when the socket has
        taken them all, and the kernel continues.
        """
        transport, start = self._transport, 0
        if not transport.is_closing():
            transport.set_write_buffer_limits(high=0)
        while start < len(piece):
            await time_slice.give_way()
            await self._caught_up()
            if transport.is_closing():
                return
            try:
                sent = 0 if transport.get_write_buffer_size() else piece.send_to(socket, start, PIECE_BYTES)
            except BlockingIOError:
                sent = 0
            except ConnectionError:
                transport.abort()
                return
            if not sent:
                few = piece.read(start, _FEW_BYTES)
                self.write([few])
                sent = len(few)
            start += sent
            self._handed_over += sent
        if not transport.is_closing():
            transport.set_write_buffer_limits()


async def _sizes_in_memory(pieces: Sequence[Piece], time_slice: TimeSlice) -> tuple[int, int]:
    """Return the number of bytes of a response that are in memory, and how many they are without repetitions.

    Entries of a long response may share a buffer, which is in memory once.
    """
    total = held = 0
    seen = set[int]()
    for start in range(0, len(pieces), _PIECES_AT_ONCE):
        for piece in pieces[start : start + _PIECES_AT_ONCE]:
            if isinstance(piece, _BUFFERS):
                total += len(piece)
                if id(piece) not in seen:
                    seen.add(id(piece))
                    held += len(piece)
        await time_slice.give_way()
    return total, held


def plain_socket(transport: asyncio.Transport) -> int | None:
    """Return the descriptor of a transport's socket; None if the kernel cannot send files to it (``os.sendfile``)."""
    if not hasattr(os, "sendfile") or transport.get_extra_info("sslcontext") is not None:
        return None
    socket = transport.get_extra_info("socket")
    return None if socket is None else int(socket.fileno())


def _runs(pieces: Iterable[Piece], by_kernel: int, piece_bytes: int) -> Iterator[tuple[list[Buffer] | Range, int]]:
    """Yield groups of buffers of about ``piece_bytes``, or of ``_PIECES_AT_ONCE`` small buffers, and long ranges.

    With each comes the number of its bytes that were already in memory. Pieces in a log file are read only when their
    group is requested.

    Args:
        pieces: Pieces of the response.
        by_kernel: Number of bytes from which a piece in a log file is not read, but yielded as it is.
        piece_bytes: Maximum size of one buffer in bytes.
    """
    run: list[Buffer] = []
    size = from_memory = 0
    for piece in pieces:
        if not isinstance(piece, _BUFFERS) and len(piece) >= by_kernel:
            if run:
                yield run, from_memory
                run, size, from_memory = [], 0, 0
            yield piece, 0
            continue
        for start in range(0, len(piece), piece_bytes):
            if isinstance(piece, _BUFFERS):
                part: Buffer = piece if len(piece) <= piece_bytes else memoryview(piece)[start : start + piece_bytes]
                from_memory += len(part)
            else:
                part = piece.read(start, piece_bytes)
            run.append(part)
            size += len(part)
            if size >= piece_bytes or len(run) >= _PIECES_AT_ONCE:
                yield run, from_memory
                run, size, from_memory = [], 0, 0
    if run:
        yield run, from_memory
