"""The two sides of a relayed connection: sockets that send what fits and keep the rest."""

from __future__ import annotations

import ssl
from collections import deque
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.connection.transport import PlainTransport, TlsStream

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable, Sequence

    from klamm.gateway.frames.cutter import Piece
    from klamm.kafka_client.connection.transport import Transport

MAX_BYTES: Final = 1024 * 1024
"""Number of bytes relayed at a time to a peer that takes them. A relay is fast when it makes few large copies."""
MIN_BYTES: Final = 16 * 1024
"""Number of bytes relayed at a time to a peer that takes fewer."""
_MAX_VIEWS: Final = 512


class Backlog:
    """Number of bytes that the sockets of all connections keep, because their peers do not read them."""

    __slots__ = ("kept_bytes",)

    def __init__(self) -> None:
        self.kept_bytes = 0


class RelayedSocket:
    """One side of a relayed connection. Used on the event loop only.

    Args:
        stream: The connected socket, with or without TLS.
        loop: The running event loop.
        backlog: Counter of the kept bytes of all sides.
        on_readable: Callback when bytes arrived, or the peer closed the connection.
        on_drained: Callback when all kept bytes were sent, or sending failed.
    """

    __slots__ = (
        "_backlog",
        "_is_reading",
        "_kept",
        "_loop",
        "_on_drained",
        "_on_readable",
        "is_blocked",
        "late_bytes",
        "max_bytes",
        "may_hide",
        "stream",
    )

    def __init__(
        self,
        stream: Transport,
        loop: asyncio.AbstractEventLoop,
        backlog: Backlog,
        *,
        on_readable: Callable[[], None],
        on_drained: Callable[[OSError | None], None],
    ) -> None:
        self.stream = stream
        self.may_hide = not isinstance(stream, PlainTransport)
        """Whether the stream can hold bytes that the event loop cannot see."""
        self._loop = loop
        self._backlog = backlog
        self._on_readable = on_readable
        self._on_drained = on_drained
        self._kept: deque[memoryview] = deque()
        self.max_bytes = MAX_BYTES
        """Number of bytes to send at a time. It follows what the socket took, because the rest must be copied."""
        self._is_reading = False
        self.is_blocked = False
        """Whether bytes are kept because the peer does not read fast enough."""
        self.late_bytes = 0
        """Number of bytes that the peer has taken after they were kept. It grows as long as a slow peer reads."""

    @property
    def kept_bytes(self) -> int:
        """Number of bytes that the peer has not taken so far."""
        return sum(map(len, self._kept))

    def send(self, pieces: Sequence[Piece]) -> int:
        """Send pieces, keep a copy of those that the socket does not take now, and return the number of all bytes.

        Raises:
            OSError: The connection is broken.
        """
        if len(pieces) == 1 and not self._kept and pieces[0]:
            view = memoryview(pieces[0])
            sent = self.stream.send_views([view])
            if sent == len(view):
                if self.max_bytes < MAX_BYTES:
                    self.max_bytes *= 2
                return sent
            self.max_bytes = MIN_BYTES
            while 2 * self.max_bytes <= sent:
                self.max_bytes *= 2
            return sent + self._send_or_keep([view[sent:]])
        return self._send_or_keep([memoryview(piece) for piece in pieces if piece])

    def _send_or_keep(self, views: list[memoryview]) -> int:
        total = sum(map(len, views))
        if not self._kept:
            views = self._send_now(views)
        for view in views:
            self._kept.append(memoryview(bytes(view)))
            self._backlog.kept_bytes += len(view)
        if self._kept and not self.is_blocked:
            self.is_blocked = True
            self._loop.add_writer(self.stream.fileno(), self._on_writable)
        return total

    def set_reading(self, wanted: bool) -> None:
        """Start or stop reading."""
        if wanted == self._is_reading:
            return
        self._is_reading = wanted
        if wanted:
            self._loop.add_reader(self.stream.fileno(), self._on_readable)
            if self.stream.pending():
                self._loop.call_soon(self._read_pending)
        else:
            self._loop.remove_reader(self.stream.fileno())

    def close(self) -> None:
        """Close the socket. Kept bytes are dropped."""
        self.set_reading(False)
        if self.is_blocked:
            self._loop.remove_writer(self.stream.fileno())
            self.is_blocked = False
        self._drop_kept()
        self.stream.close()

    def read_pending_soon(self) -> None:
        """Call ``on_readable`` again soon if the stream holds bytes that the event loop cannot see."""
        if self._is_reading and self.stream.pending():
            self._loop.call_soon(self._read_pending)

    def _read_pending(self) -> None:
        if self._is_reading:
            self._on_readable()

    def _drop_kept(self) -> None:
        self._backlog.kept_bytes -= sum(map(len, self._kept))
        self._kept.clear()

    def _send_now(self, views: list[memoryview]) -> list[memoryview]:
        """Send views until the socket takes no more; return the rest."""
        while views:
            sent = self.stream.send_views(views[:_MAX_VIEWS])
            if sent == 0:
                return views
            index = 0
            while index < len(views) and sent >= len(views[index]):
                sent -= len(views[index])
                index += 1
            views = views[index:]
            if sent:
                views[0] = views[0][sent:]
        return views

    def _on_writable(self) -> None:
        try:
            left = self._send_now(list(self._kept))
        except OSError as error:
            self._drop_kept()
            self._on_drained(error)
            return
        taken = sum(map(len, self._kept)) - sum(map(len, left))
        self._backlog.kept_bytes -= taken
        self.late_bytes += taken
        self._kept = deque(left)
        if not left:
            self.is_blocked = False
            self._loop.remove_writer(self.stream.fileno())
            self._on_drained(None)


class NamedSocket(ssl.SSLSocket):
    """Server side of a TLS socket, with the host name that the client sent (SNI)."""

    requested_name: str | None = None


def keep_asked_name(connected: ssl.SSLSocket | ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
    """Store the host name that a client sent. Used as ``sni_callback`` of contexts that create a ``NamedSocket``."""
    if isinstance(connected, NamedSocket):
        connected.requested_name = name


class AcceptedTls(TlsStream):
    """Server side of a TLS connection."""

    __slots__ = ()

    @property
    def requested_name(self) -> str | None:
        """Host name that the client sent (SNI); None if it sent none."""
        return self._socket.requested_name if isinstance(self._socket, NamedSocket) else None

    @property
    def certificate(self) -> bytes | None:
        """Certificate of the client, in DER; None without one."""
        return self._socket.getpeercert(binary_form=True)

    @classmethod
    async def shake_hands(
        cls, accepted: socket.socket, context: ssl.SSLContext, loop: asyncio.AbstractEventLoop
    ) -> AcceptedTls:
        """Perform the TLS handshake of an accepted, non-blocking socket.

        Raises:
            OSError: The handshake failed.
        """
        connected = context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        try:
            while True:
                try:
                    connected.do_handshake()
                except ssl.SSLWantReadError:
                    await _ready(loop, connected.fileno(), loop.add_reader, loop.remove_reader)
                except ssl.SSLWantWriteError:
                    await _ready(loop, connected.fileno(), loop.add_writer, loop.remove_writer)
                else:
                    return cls(connected)
        except BaseException:
            connected.close()
            raise


async def until_readable(stream: Transport, loop: asyncio.AbstractEventLoop) -> None:
    """Wait until the peer has sent bytes, or the connection has ended."""
    if not stream.pending():
        await _ready(loop, stream.fileno(), loop.add_reader, loop.remove_reader)


async def _ready(
    loop: asyncio.AbstractEventLoop,
    descriptor: int,
    add: Callable[[int, Callable[[], None]], None],
    remove: Callable[[int], bool],
) -> None:
    ready = loop.create_future()
    add(descriptor, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        remove(descriptor)
