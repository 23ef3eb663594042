"""Acceptance of connections on a listening socket.

``asyncio.Server`` reports a connection only when its TLS handshake is complete, and accepts any number of them before
that. Here, each connection is passed on as soon as it is accepted, so limits apply to all of them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from klamm.hosts import plain_host
from klamm.server.sockets import start_listening

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_ACCEPTS_PER_EVENT: Final = 64
"""Number of connections that are accepted before other events of the loop have their turn."""
_PAUSE_S: Final = 1.0
"""Seconds for which no connection is accepted after an error of this machine."""


class Acceptor:
    """A listening socket whose connections are passed to a function. Used on the event loop only.

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
        """Stop accepting, and close the socket."""
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
