"""Proxy between clients and one broker that records which process sent which request."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import psutil  # type: ignore[import-untyped]

from tests.support.processes import free_port

if TYPE_CHECKING:
    from types import TracebackType

_HEAD: Final = struct.Struct(">ih")


class Asked(NamedTuple):
    """API key of a request, and the process that sent it."""

    api_key: int
    pid: int | None
    """Process id; None if the process no longer existed."""


class RecordingProxy:
    """Proxy from ``address`` to ``upstream``, both on 127.0.0.1. A context manager."""

    def __init__(self, upstream_port: int) -> None:
        self.port = free_port()
        self.asked: set[Asked] = set()
        self._upstream_port = upstream_port
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._sockets: list[socket.socket] = []

    @property
    def address(self) -> str:
        """Address for clients."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, (_, client_port) = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._upstream_port))
            except OSError:
                return
            self._sockets += [client, server]
            pid = owner_of(client_port, self.port)
            threading.Thread(target=self._requests, args=(client, server, pid), daemon=True).start()
            threading.Thread(target=_pump, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, pid: int | None) -> None:
        with contextlib.suppress(OSError):
            while len(head := client.recv(_HEAD.size, socket.MSG_WAITALL)) == _HEAD.size:
                size, api_key = _HEAD.unpack(head)
                self.asked.add(Asked(api_key, pid))
                server.sendall(head)
                left = size - 2
                while left and (data := client.recv(min(left, 1 << 16))):
                    server.sendall(data)
                    left -= len(data)
        for each in (client, server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def owner_of(local_port: int, remote_port: int) -> int | None:
    """Return the id of the process that has a connection from a port to another; None if no process has it."""
    for connection in psutil.net_connections(kind="tcp"):
        here, there = connection.laddr, connection.raddr
        if here and there and (here.port, there.port) == (local_port, remote_port):
            pid: int | None = connection.pid
            return pid
    return None
