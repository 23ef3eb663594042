"""Listening sockets of a server process, their accepted connections, and the event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from klamm.hosts import plain_host
from klamm.server.listeners import ANY_HOST, Address

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)


def bind(address: Address, *, shared: bool = False) -> socket.socket:
    """Return a bound socket.

    Args:
        address: Address to listen on.
        shared: Whether other processes that share it, too, may listen on the address (SO_REUSEPORT).

    Raises:
        OSError: The address cannot be bound. The message names it.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((address.host or ANY_HOST, address.port))
    except OSError as error:
        sock.close()
        raise OSError(f"cannot listen on {address}: {error.strerror or error}") from error
    return sock


def start_listening(sock: socket.socket, *, backlog: int = 128) -> None:
    """Listen on a bound socket.

    With SO_REUSEADDR, binding succeeds although another process listens on the address. uvloop does not report the
    error of listening either, so it is detected here.

    Raises:
        OSError: Another process listens on the address. The message names it.
    """
    try:
        sock.listen(backlog)
    except OSError as error:
        raise OSError(f"cannot listen on {bound_address(sock)}: {error.strerror or error}") from error


def bound_address(sock: socket.socket) -> Address:
    """Return the address that a socket is bound to."""
    host, port = sock.getsockname()[:2]
    return Address(host=host, port=port)


def fastest_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop of uvloop if that is installed, else of asyncio."""
    try:
        import uvloop  # noqa: PLC0415  # not on every platform
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


_ACCEPTS_PER_EVENT: Final = 64
"""Number of connections that are accepted before other events of the loop have their turn."""
_PAUSE_S: Final = 1.0
"""Seconds for which no connection is accepted after an error of this machine."""


class Acceptor:
    """A listening socket whose connections are passed to a function. Used on the event loop only.

    ``asyncio.Server`` reports a connection only when its TLS handshake is complete, and accepts any number of them
    before that. Here, each connection is passed on as soon as it is accepted, so limits apply to all of them.

    Args:
        sock: Bound socket. ``close`` closes it.
        on_accepted: Function that takes over an accepted connection, which does not block and has TCP_NODELAY, and the
            host and port of its peer. The host is written as Kafka shows it.
    """

    def __init__(self, sock: socket.socket, on_accepted: Callable[[socket.socket, tuple[str, int]], None]) -> None:
        self._sock = sock
        self._on_accepted = on_accepted
        self._pause: asyncio.TimerHandle | None = None

    def start(self, *, backlog: int) -> None:
        """Listen, and accept connections from now on.

        Args:
            backlog: Number of connections that may wait until they are accepted.

        Raises:
            OSError: Another process listens on the address. The socket stays open.
        """
        start_listening(self._sock, backlog=backlog)
        self._sock.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Stop accepting connections, and close the listening socket."""
        if self._pause is not None:
            self._pause.cancel()
        asyncio.get_running_loop().remove_reader(self._sock.fileno())
        self._sock.close()

    def _resume(self) -> None:
        self._pause = None
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_EVENT):
            try:
                accepted, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                # Most likely no file descriptor is left. The socket stays readable, so the event loop would spin.
                logger.warning("A connection cannot be accepted: %s", error.strerror or error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._sock.fileno())
                self._pause = loop.call_later(_PAUSE_S, self._resume)
                return
            accepted.setblocking(False)
            with suppress(OSError):  # macOS: the peer has closed the connection already
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._on_accepted(accepted, (plain_host(address[0]), address[1]))
