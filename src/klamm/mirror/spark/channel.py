"""The side channel between driver and tasks: progress up, plans and the end of a lease down.

Lines of JSON over TCP; the first line of a connection holds the token that only the tasks of this driver know. A task
whose channel breaks has lost its driver and stops copying, before somebody else takes its partitions.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

WORKER_LINE: Final = "klamm-worker %(levelname)s %(name)s: %(message)s"
"""Layout of what a task logs to its standard error. Where Spark is local, the driver logs it as its own."""
_CONNECT_TIMEOUT_S: Final = 10.0
_MAX_LINE: Final = 64 * 1024 * 1024


class Dispatcher(Protocol):
    """What the driver does with lines. Called from a thread per connection."""

    def on_line(self, connection: ServerConnection, message: Mapping[str, Any]) -> None:
        """Handle one line."""
        ...

    def on_close(self, connection: ServerConnection) -> None:
        """Note that the other side is gone."""
        ...


class ServerConnection:
    """The driver's end. ``send`` is thread-safe."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._lock = threading.Lock()
        self.is_task = False
        """Whether it is a task, which listens all the time, and not the planning process, which asks."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a line; nothing happens when the other side is gone."""
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """Close."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class ChannelServer:
    """Listens on the driver, from when it is told where."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._listener: socket.socket | None = None
        self.address: tuple[str, int] = ("", 0)
        """Where tasks reach it."""
        self.token = secrets.token_hex(16)
        self._connections: set[ServerConnection] = set()
        self._lock = threading.Lock()

    def listen(self, host: str = "127.0.0.1", *, advertised: str | None = None) -> None:
        """Begin to listen on a free port; does nothing the second time.

        Args:
            host: the address to listen on.
            advertised: what tasks connect to; None means: ``host``.

        Raises:
            OSError: this machine has no such address.
        """
        if self._listener is not None:
            return  # a new session after the JVM was lost: its tasks use the same port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = self._listener = socket.create_server((host, 0), family=family)
        self.address = (advertised or host, listener.getsockname()[1])
        threading.Thread(target=self._accept, args=(listener,), name="mirror-channel", daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connected, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connected,), name="mirror-channel", daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        connection = ServerConnection(connected)
        try:
            with connected.makefile("rb") as lines:
                first = json.loads(lines.readline(_MAX_LINE) or b"{}")
                if not hmac.compare_digest(str(first.get("token", "")), self.token):
                    return
                with self._lock:
                    self._connections.add(connection)
                for line in lines:
                    self._dispatcher.on_line(connection, json.loads(line))
        except (OSError, ValueError):
            pass  # the other side is gone, or is none of ours
        finally:
            with self._lock:
                known = connection in self._connections
                self._connections.discard(connection)
            if known:
                self._dispatcher.on_close(connection)
            connection.close()

    def broadcast(self, message: Mapping[str, Any]) -> None:
        """Send a line to all tasks."""
        with self._lock:
            connections = [connection for connection in self._connections if connection.is_task]
        for connection in connections:
            connection.send(message)

    def close(self) -> None:
        """Stop listening and close all connections."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.close()


class ChannelClient:
    """A task's end. Thread-confined."""

    def __init__(self, address: tuple[str, int], token: str) -> None:
        """Connect.

        Raises:
            OSError: the driver is gone.
        """
        self._socket = socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self.send({"token": token})

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a line.

        Raises:
            OSError: the driver is gone.
        """
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, *, timeout_s: float) -> dict[str, Any] | None:
        """Return the next line, None when none came in time.

        Raises:
            OSError: the driver is gone.
        """
        while b"\n" not in self._received:
            self._socket.settimeout(timeout_s)  # a copier asks with 0 between its batches: it must not wait at all
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
        """Close."""
        self._socket.close()
