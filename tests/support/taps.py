"""Taps between clients and the ports of a gateway: everything that clients receive passes, and is searched."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

_BASES = range(12_000, 19_000)
"""Range of the ports. It is below the range from which other tests take theirs."""
_OVERLAP = 64
"""Bytes of a chunk that are searched again with the next one, for an address that is split between them."""


class Taps:
    """Taps on consecutive ports of 127.0.0.1. A context manager.

    Args:
        count: Number of ports.
        target: Function that returns the port which the connections to a tap, by its number, are passed on to.
        forbidden: Ports of 127.0.0.1 that no client may be sent to. They are searched as Kafka encodes them (a string
            and an int32), and as text.
    """

    def __init__(self, count: int, target: Callable[[int], int], forbidden: Iterable[int]) -> None:
        self._target = target
        self._forbidden = tuple(
            each for port in forbidden for each in (b"127.0.0.1" + port.to_bytes(4), b"127.0.0.1:%d" % port)
        )
        self._listeners = _consecutive(count)
        self.base: int = self._listeners[0].getsockname()[1]
        """First port."""
        self._sockets: list[socket.socket] = []
        self.leaked: list[bytes] = []
        """Chunks with a forbidden address."""
        self.received_bytes = 0
        """Bytes that clients received."""

    def __enter__(self) -> Self:
        for number, listener in enumerate(self._listeners):
            threading.Thread(target=self._accept, args=(number, listener), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (*self._listeners, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self, number: int, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._sockets.append(client)
                try:
                    server = socket.create_connection(("127.0.0.1", self._target(number)))
                except OSError:
                    client.close()
                    continue
                self._sockets.append(server)
                threading.Thread(target=self._pass, args=(client, server, None), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, self._search), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, watch: Callable[[bytes, bytes], None] | None) -> None:
        tail = b""
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                if watch is not None:
                    watch(tail, chunk)
                    tail = (tail + chunk)[-_OVERLAP:]
                target.sendall(chunk)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _search(self, tail: bytes, chunk: bytes) -> None:
        self.received_bytes += len(chunk)
        searched = tail + chunk
        if any(address in searched for address in self._forbidden):
            self.leaked.append(searched)


def consecutive_ports(count: int) -> int:
    """Return the first of consecutive ports that are free at present."""
    listeners = _consecutive(count)
    first: int = listeners[0].getsockname()[1]
    for each in listeners:
        each.close()
    return first


def _consecutive(count: int) -> list[socket.socket]:
    """Return listeners on consecutive free ports."""
    for base in random.SystemRandom().sample(_BASES, 100):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            made = [stack.enter_context(socket.create_server(("127.0.0.1", base + number))) for number in range(count)]
            stack.pop_all()
            return made
    raise RuntimeError(f"No {count} consecutive free ports in {_BASES}")
