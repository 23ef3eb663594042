"""Taps between clients and the ports of a gateway: everything that clients receive passes, and is searched."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import TracebackType

_BASES = range(5_500, 9_900)
"""Range of the ports. It is below the range from which other tests take theirs."""
_handed_out: set[int] = set()
"""Ports that were returned in this process. Those of ``consecutive_ports`` are free until a gateway listens on them."""
_OVERLAP = 64
"""Bytes of a chunk that are searched again with the next one, for an address that is split between them."""


class AddressSearch:
    """Search of the bytes that clients receive.

    Args:
        forbidden: Ports of 127.0.0.1 that no client may be sent to. They are searched as Kafka encodes them (a string
            and an int32), and as text.
    """

    def __init__(self, forbidden: Iterable[int]) -> None:
        self._forbidden = tuple(
            each for port in forbidden for each in (b"127.0.0.1" + port.to_bytes(4), b"127.0.0.1:%d" % port)
        )
        self.leaked: list[bytes] = []
        """Chunks with a forbidden address."""
        self.received_bytes = 0
        """Bytes that clients received."""

    def search(self, tail: bytes, chunk: bytes) -> bytes:
        """Search a chunk behind the end of the one before it. Return its own end."""
        self.received_bytes += len(chunk)
        searched = tail + chunk
        if any(address in searched for address in self._forbidden):
            self.leaked.append(searched)
        return searched[-_OVERLAP:]


class Taps(AddressSearch):
    """Taps on consecutive ports of 127.0.0.1. A context manager.

    Args:
        count: Number of ports.
        target: Function that returns the port which the connections to a tap, by its number, are passed on to.
        forbidden: As in ``AddressSearch``.
    """

    def __init__(self, count: int, target: Callable[[int], int], forbidden: Iterable[int]) -> None:
        super().__init__(forbidden)
        self._target = target
        self._listeners = _consecutive(count)
        self.base: int = self._listeners[0].getsockname()[1]
        """First port."""
        self._sockets: list[socket.socket] = []

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
                threading.Thread(target=self._pass, args=(server, client, self.search), daemon=True).start()

    def _pass(
        self, source: socket.socket, target: socket.socket, search: Callable[[bytes, bytes], bytes] | None
    ) -> None:
        tail = b""
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                if search is not None:
                    tail = search(tail, chunk)
                target.sendall(chunk)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class TlsTap(AddressSearch):
    """Tap on one TLS port of 127.0.0.1. It asks the gateway for the host name that its client asked for.

    A context manager. A thread runs it.

    Args:
        target: Port of the gateway.
        store: Key and certificate of the tap.
        authority: Certificate of the authority that has signed the gateway's.
        forbidden: As in ``AddressSearch``.
    """

    def __init__(self, target: int, store: Path, authority: Path, forbidden: Iterable[int]) -> None:
        super().__init__(forbidden)
        self.asked: set[str] = set()
        """Host names that clients asked for."""
        self._target = target
        self._to_gateway = ssl.create_default_context(cafile=authority)
        self._to_client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._to_client.load_cert_chain(store)
        self._to_client.sni_callback = self._on_name
        self._names: dict[ssl.SSLObject | ssl.SSLSocket, str] = {}
        self._writers: list[asyncio.StreamWriter] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._pass_on, sock=self._listener, ssl=self._to_client)
        await self._end.wait()
        server.close()
        # A closed TLS connection keeps its socket until the other side answers, which may be after the loop.
        for writer in self._writers:
            writer.transport.abort()

    def _on_name(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
        assert name is not None
        self._names[connection] = name
        self.asked.add(name)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        name = self._names.pop(writer.get_extra_info("ssl_object"))
        with contextlib.suppress(OSError), contextlib.closing(writer):
            far_reader, far_writer = await asyncio.open_connection(
                "127.0.0.1", self._target, ssl=self._to_gateway, server_hostname=name
            )
            self._writers.append(far_writer)
            with contextlib.closing(far_writer):
                sending = asyncio.create_task(self._copy(reader, far_writer, None))
                await self._copy(far_reader, writer, self.search)
                sending.cancel()

    async def _copy(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        search: Callable[[bytes, bytes], bytes] | None,
    ) -> None:
        tail = b""
        with contextlib.closing(target), contextlib.suppress(OSError):
            while chunk := await source.read(65536):
                if search is not None:
                    tail = search(tail, chunk)
                target.write(chunk)
                await target.drain()


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
        ports = range(base, base + count)
        if not _handed_out.isdisjoint(ports):
            continue
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            made = [stack.enter_context(socket.create_server(("127.0.0.1", port))) for port in ports]
            stack.pop_all()
            _handed_out.update(ports)
            return made
    raise RuntimeError(f"No {count} consecutive free ports in {_BASES}")
