"""Side channel between the driver and the tasks, for live progress, lease plans and the end of a lease.

The protocol is one JSON object per line over TCP. The driver listens, tasks and Spark's planning process connect. The
first line holds a random token that Spark passes to the tasks of this driver; the driver drops other connections.

==========================================  ========================  ==============================================
line                                        sent by                   meaning
==========================================  ========================  ==============================================
``{"token"}``                               all clients, first        authenticate
``{"ask": "next", "after"}``                planning process          request the lease after a finished one
``{"ask": "groups", "lease"}``              planning process          request the groups of a lease
``{"ask": "place", "task", "lease",         task                      request a group, for the sessions that the process
"sessions", "waited"}``                                               keeps; ``waited``: do not wait for more tasks
``{"task", "lease", "pid", "session"}``     task                      a task starts to serve a group
``{"progress", "session"}``                 task                      changed rows of ``PartitionProgress``
``{"finished", "lease", "session"}``        task                      the group has ended its lease in order
``{"ask": "claims", "session"}``            task, on a second         request the seconds that claims are still held
                                            connection
``{"unable"}``                              task                      this machine lacks klamm or a dependency
``{"lease"}`` or ``{"failed"}``             driver                    answer to ``next``
``{"lease", "seconds", "groups",            driver                    answer to ``groups``; ``any_task``: the tasks ask
"any_task"}``                                                         for their groups
``{"group"}``                               driver                    answer to ``place``: a number, None if the lease
                                                                      is over
``{"claims"}``                              driver                    answer to ``claims``: seconds by flow. With
                                                                      ``"replaced": true`` if a later task has the
                                                                      group of this session
``{"live"}``                                driver                    new ``LiveValues`` by share
``{"end"}``                                 driver                    end this lease and all earlier ones
``{"end", "replaced": true}``               driver                    end them without a write: a later task has the
                                                                      group
==========================================  ========================  ==============================================

The connection is also the task's proof that its driver is alive. A task whose connection breaks stops copying, so that
two tasks do not copy the same partitions once a new driver deals them to another task. With exactly-once delivery, the
new task also fences the old one by InitProducerId.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import secrets
import socket
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

WORKER_LINE: Final = "klamm-worker %(levelname)s %(name)s: %(message)s"
"""Layout of the log lines that a task writes to stderr. With a local Spark, the driver logs them as its own lines."""
_CONNECT_TIMEOUT_S: Final = 10.0
_LOGIN_TIMEOUT_S: Final = 10.0
"""Time in seconds that a peer has for its first line, so that a stranger cannot hold a thread permanently."""
_MAX_LOGIN_LINE: Final = 1024
"""Largest first line in bytes. It holds the token only."""
_MAX_LINE: Final = 64 * 1024 * 1024
_PAUSE_S: Final = 1.0
"""Seconds for which no connection is accepted after an error of this machine."""


class Dispatcher(Protocol):
    """Receiver of the lines that reach the driver. Called from one thread per connection."""

    def on_line(self, connection: ServerConnection, message: Mapping[str, Any]) -> None:
        """Handle one line of an authenticated connection."""
        ...

    def on_close(self, connection: ServerConnection) -> None:
        """Handle the end of an authenticated connection."""
        ...


class ServerConnection:
    """Driver's end of one connection. ``send`` is thread-safe."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._lock = threading.Lock()
        self.is_task = False
        """True for a task, which expects ``end`` lines at any time. False for the planning process, which only reads
        answers.
        """
        self.session = ""
        """Session token of a task. Empty: the connection serves no group."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a line. Drop it if the peer has disconnected."""
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class ChannelServer:
    """Driver's listener and its connections. It opens its port in ``listen``, once Spark's addresses are known."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._listener: socket.socket | None = None
        self.address: tuple[str, int] = ("", 0)
        """Host and port that tasks connect to. Not valid before ``listen``."""
        self.token = secrets.token_hex(16)
        self._connections: set[ServerConnection] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def listen(self, host: str = "127.0.0.1", *, advertised: str | None = None) -> None:
        """Listen on a free port. A second call has no effect.

        Args:
            host: Address to listen on.
            advertised: Address that tasks connect to. None means ``host``.

        Raises:
            OSError: This machine does not have the address ``host``.
        """
        if self._listener is not None:
            return  # the session was started again after the JVM ended: its tasks use the same port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = self._listener = socket.create_server((host, 0), family=family)
        self.address = (advertised or host, listener.getsockname()[1])
        threading.Thread(target=self._accept, args=(listener,), name="mirror-channel", daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            connected = None
            try:
                connected, _ = listener.accept()
                threading.Thread(target=self._serve, args=(connected,), name="mirror-channel", daemon=True).start()
            except (
                OSError,
                RuntimeError,
            ) as error:  # no file descriptor or no thread is left, or the listener is closed
                if connected is not None:
                    connected.close()
                if self._closing.is_set():
                    return
                logger.warning("A connection of a task cannot be accepted: %s", error)
                self._closing.wait(_PAUSE_S)

    def _serve(self, connected: socket.socket) -> None:
        """Authenticate a connection and dispatch its lines until it ends."""
        connection = ServerConnection(connected)
        try:
            connected.settimeout(_LOGIN_TIMEOUT_S)
            with connected.makefile("rb") as lines:
                if not self._is_token(lines.readline(_MAX_LOGIN_LINE)):
                    return
                connected.settimeout(None)
                with self._lock:
                    if self._closing.is_set():
                        return
                    self._connections.add(connection)
                while line := lines.readline(_MAX_LINE):
                    self._dispatcher.on_line(connection, json.loads(line))
        except (OSError, ValueError, RecursionError):
            pass  # the peer has disconnected, or it does not speak this protocol
        finally:
            with self._lock:
                is_authenticated = connection in self._connections
                self._connections.discard(connection)
            if is_authenticated:
                self._dispatcher.on_close(connection)
            connection.close()

    def _is_token(self, line: bytes) -> bool:
        """Return whether the first line of a connection carries the token. Any peer may send any line."""
        first = json.loads(line or b"{}")
        token = first.get("token") if isinstance(first, dict) else None
        return isinstance(token, str) and hmac.compare_digest(token.encode(), self.token.encode())

    def broadcast(self, message: Mapping[str, Any]) -> None:
        """Send a line to every connected task."""
        with self._lock:
            connections = [connection for connection in self._connections if connection.is_task]
        for connection in connections:
            connection.send(message)

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._closing.set()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.close()


class ChannelClient:
    """Client end of the side channel, used by a task or by the planning process. Thread-confined."""

    def __init__(self, address: tuple[str, int], token: str) -> None:
        """Connect to the driver and send the token.

        Raises:
            OSError: The driver cannot be reached.
        """
        self._socket = socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self.send({"token": token})

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a line.

        Raises:
            OSError: The connection to the driver is lost.
        """
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, *, timeout_s: float) -> dict[str, Any] | None:
        """Return the next line, or None if no complete line arrives within ``timeout_s`` seconds.

        Raises:
            OSError: The connection to the driver is lost.
        """
        while b"\n" not in self._received:
            self._socket.settimeout(
                timeout_s
            )  # a copier polls with a timeout of 0 between its batches: it must not block at all
            try:
                data = self._socket.recv(65536)
            except (TimeoutError, BlockingIOError):
                return None
            finally:
                self._socket.settimeout(_CONNECT_TIMEOUT_S)
            if not data:
                raise ConnectionResetError("The driver closed the channel")
            self._received += data
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
