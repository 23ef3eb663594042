"""Synthetic load for a relay: a sender of Produce frames and a sink that answers them, each in one thread or process.

``python -m benchmarks.relay_load`` runs the sink and prints its port.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import statistics
import struct
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_HEAD: Final = struct.Struct(">ihhih")
_VERSION: Final = 9
"""A version of Produce whose responses carry no addresses."""
_IN_FLIGHT: Final = 5
_OPENED_AT_ONCE: Final = 200
"""Number of connections that are opened at a time. A gateway gives up those that wait when there are too many."""
_FRAMES_PER_TURN: Final = 16
"""Frames that one connection sends at a time at most, so that all of them take part."""
_BUFFER: Final = memoryview(bytearray(1024 * 1024))


def produce_frame(size: int, *, acks: int = 1) -> bytearray:
    """Return a Produce request of ``size`` bytes, of which only the part before the records is real.

    Its correlation id is ``acks``, for the sink.
    """
    body = b"\0" + b"\0" + acks.to_bytes(2)  # tagged fields, no transactional id, acks
    head = _HEAD.pack(size - 4, 0, _VERSION, acks, 5) + b"bench" + body
    return bytearray(head + bytes(size - len(head)))


@dataclass(slots=True)
class _Stream:
    sock: socket.socket
    left: int = 0
    kept: bytearray = field(default_factory=bytearray)

    def answers(self, chunk: memoryview) -> bytearray:
        """Return the answers to the requests that begin in a chunk."""
        out = bytearray()
        if self.kept:
            self.kept += chunk
            chunk, self.kept = memoryview(self.kept), bytearray()
        position = min(self.left, len(chunk))
        self.left -= position
        while position < len(chunk):
            if len(chunk) - position < _HEAD.size:
                self.kept = bytearray(chunk[position:])
                break
            size, _, _, correlation_id, _ = _HEAD.unpack_from(chunk, position)
            if correlation_id:
                out += struct.pack(">iib", 5, correlation_id, 0)
            taken = min(size + 4, len(chunk) - position)
            self.left = size + 4 - taken
            position += taken
        return out


def sink() -> None:
    """Answer requests until the process is ended."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                accepted, _ = listener.accept()
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(accepted, selectors.EVENT_READ, _Stream(accepted))
                continue
            stream: _Stream = key.data
            try:
                count = stream.sock.recv_into(_BUFFER)
                if count:
                    stream.sock.sendall(stream.answers(_BUFFER[:count]))
                    continue
            except OSError:
                pass
            selector.unregister(stream.sock)
            stream.sock.close()


class _Sender:
    """One connection that keeps some frames in flight."""

    def __init__(self, port: int, size: int, acks: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self._frame = memoryview(produce_frame(size, acks=acks))
        self._acks = acks
        self._rest = self._frame[:0]
        self._received = 0
        self.sent = 0

    @property
    def answered(self) -> int:
        """Number of answered frames; with ``acks=0`` those sent before the latest one."""
        return self._received // 9 if self._acks else max(self.sent - 1, 0)

    def drive(self) -> None:
        """Read answers and send what may be sent."""
        try:
            while True:
                count = self.sock.recv_into(_BUFFER)
                if not count:
                    raise ConnectionResetError("The relay closed a connection")
                self._received += count
        except BlockingIOError:
            pass
        try:
            turn = 0
            while self._rest or (self.sent - self.answered < _IN_FLIGHT and turn < _FRAMES_PER_TURN):
                if not self._rest:
                    self._rest = self._frame
                    self.sent += 1
                    turn += 1
                self._rest = self._rest[self.sock.send(self._rest) :]
        except BlockingIOError:
            pass


def throughput(port: int, *, size: int, connections: int, seconds: float, acks: int = 1) -> tuple[float, float]:
    """Return sent and answered megabytes, and the seconds that this took."""
    senders = [_Sender(port, size, acks) for _ in range(connections)]
    with selectors.DefaultSelector() as selector:
        for sender in senders:
            selector.register(sender.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, sender)
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for key, _ in selector.select(1):
                key.data.drive()
        took = time.perf_counter() - began
    answered = sum(sender.answered for sender in senders)
    for sender in senders:
        sender.sock.close()
    return answered * size / 1e6, took


def tls_throughput(port: int, *, size: int, seconds: float, authority: Path) -> tuple[float, float]:
    """Return the megabytes sent without acks over one TLS connection, and the seconds that this took."""
    context = ssl.create_default_context(cafile=str(authority))
    frame = produce_frame(size, acks=0)
    sent = 0
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        began = time.perf_counter()
        while (took := time.perf_counter() - began) < seconds:
            sock.sendall(frame)
            sent += size
    return sent / 1e6, took


def idle_connections(port: int, count: int) -> list[socket.socket]:
    """Open connections, some at a time, and have one request answered on each, so that all of them are relayed."""
    opened: list[socket.socket] = []
    while len(opened) < count:
        batch = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(_OPENED_AT_ONCE)]
        for sock in batch:
            sock.sendall(produce_frame(64))
        for sock in batch:
            got = 0
            while got < 9:  # noqa: PLR2004 - bytes of an answer
                got += len(sock.recv(9 - got))
        opened += batch
    return opened


def latencies(port: int, *, size: int, requests: int, per_second: int) -> Mapping[str, float]:
    """Return the median and the 99th percentile of the time of one request at a time, in microseconds."""
    times = []
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        frame = produce_frame(size)
        due = time.perf_counter()
        for _ in range(requests):
            due += 1 / per_second
            time.sleep(max(due - time.perf_counter(), 0))
            began = time.perf_counter()
            sock.sendall(frame)
            got = 0
            while got < 9:  # noqa: PLR2004 - bytes of an answer
                got += len(sock.recv(9 - got))
            times.append((time.perf_counter() - began) * 1e6)
    cuts = statistics.quantiles(times, n=100)
    return {"p50 us": cuts[49], "p99 us": cuts[98]}


if __name__ == "__main__":
    sink()
