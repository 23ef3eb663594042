"""Ranges of log files sent to real sockets: by the kernel without encryption, and in order."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any

import pytest

from klamm.protocol.errors import StorageError
from klamm.server.outbox import SENT_BY_KERNEL_BYTES, Outbox, UnreadBudget, plain_socket
from klamm.server.sockets import fastest_event_loop
from klamm.storage.log import LogRange
from klamm.storage.log.files import FilePool, LogFile
from tests.support.security import Certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from klamm.server.route import Piece

CONTENT = random.Random(1).randbytes(6_000_000)
LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, fastest_event_loop])


class CountedRange(LogRange):
    """A range that counts the bytes which the kernel has sent."""

    __slots__ = ()
    by_kernel = 0

    def send_to(self, socket: int, start: int, size: int) -> int:
        sent = super().send_to(socket, start, size)
        CountedRange.by_kernel += sent
        return sent


class Server(asyncio.Protocol):
    """Sends pieces to a client, then closes the connection."""

    def __init__(self, pieces: Sequence[Piece], ended: asyncio.Future[BaseException | None]) -> None:
        self._pieces = pieces
        self._ended = ended
        self._outbox: Outbox | None = None
        self.has_ended = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        sock = transport.get_extra_info("socket")
        if transport.get_extra_info("sslcontext") is None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 200_000)
        self._transport = transport
        self._outbox = Outbox(transport, UnreadBudget(), self, plain_socket(transport))
        self._sending = asyncio.get_running_loop().create_task(self._send(self._outbox))

    async def _send(self, outbox: Outbox) -> None:
        error: BaseException | None = None
        try:
            await outbox.send(self._pieces, sum(map(len, self._pieces)))
        except (StorageError, asyncio.CancelledError) as failure:
            error = failure
        self._transport.close()
        if not self._ended.done():
            self._ended.set_result(error)

    def connection_lost(self, _: Exception | None) -> None:
        self._sending.cancel()
        self.has_ended.set()

    def pause_writing(self) -> None:
        if self._outbox is not None:
            self._outbox.pause()

    def resume_writing(self) -> None:
        if self._outbox is not None:
            self._outbox.resume()

    @property
    def unread_bytes(self) -> int:
        return 0

    @property
    def taken_bytes(self) -> int:
        return 0

    def stalled_s(self, _: float) -> float:
        return 0.0

    def give_up(self) -> None:
        self._transport.abort()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogFile]:
    (tmp_path / "0.log").write_bytes(CONTENT)
    pool = FilePool(4)
    yield LogFile(pool, tmp_path / "0.log")
    pool.close()


def received(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    pieces: Sequence[Piece],
    tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    most: int = 10 * len(CONTENT),
) -> tuple[bytes, BaseException | None]:
    """Return what a client has received, which leaves after ``most`` bytes, and the error of the sender."""
    got = bytearray()

    def read(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as plain:
            sock = plain if tls is None else tls[1].wrap_socket(plain, server_hostname="localhost")
            with sock:
                while len(got) < most and (data := sock.recv(70_000)):
                    got.extend(data)

    async def serve() -> BaseException | None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[BaseException | None] = loop.create_future()
        served = Server(pieces, ended)
        server = await loop.create_server(lambda: served, "127.0.0.1", 0, ssl=None if tls is None else tls[0])
        client = threading.Thread(target=read, args=(server.sockets[0].getsockname()[1],))
        client.start()
        error = await asyncio.wait_for(ended, 30)
        await asyncio.to_thread(client.join, 30)
        await asyncio.wait_for(served.has_ended.wait(), 30)  # with TLS, when the client's end is known
        server.close()
        await server.wait_closed()
        return error

    CountedRange.by_kernel = 0
    with asyncio.Runner(loop_factory=new_loop) as runner:
        error = runner.run(serve())
    return bytes(got), error


def pieces_of(log: LogFile) -> tuple[Sequence[Piece], bytes]:
    """Return pieces of all kinds, and their bytes."""
    ends = (0, 10, 10 + SENT_BY_KERNEL_BYTES, 200_000, 200_001, 3_000_000, 3_100_000, len(CONTENT))
    pieces: list[Piece] = [b"head"]
    expected = bytearray(b"head")
    for number, (start, end) in enumerate(itertools.pairwise(ends)):
        between = b"%d" % number * (number % 3)
        pieces += [CountedRange(log, start, end - start, 0), between]
        expected += CONTENT[start:end] + between
    return pieces, bytes(expected)


@LOOPS
def test_kernel_sends_long_ranges_in_order(log: LogFile, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    pieces, expected = pieces_of(log)
    got, error = received(new_loop, pieces)
    assert error is None
    assert got == expected
    assert CountedRange.by_kernel > len(CONTENT) // 4


@pytest.mark.process
@LOOPS
def test_encrypted_bytes_pass_through_the_transport(
    log: LogFile, tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    certificates = Certificates.create(tmp_path)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificates.issue("broker", "/CN=broker"))
    asking = ssl.create_default_context(cafile=str(certificates.authority))
    pieces, expected = pieces_of(log)
    got, error = received(new_loop, pieces, (serving, asking))
    assert error is None
    assert got == expected
    assert CountedRange.by_kernel == 0


@LOOPS
def test_missing_range_ends_the_response(log: LogFile, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    pieces: list[Piece] = [b"head", CountedRange(log, len(CONTENT) - 100_000, 300_000, 0), b"tail"]
    got, error = received(new_loop, pieces)
    assert isinstance(error, StorageError)
    assert not got.endswith(b"tail")
    log.give_up()
    assert isinstance(received(new_loop, pieces)[1], StorageError)


@LOOPS
def test_disconnected_client_ends_the_response(log: LogFile, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    pieces: list[Piece] = [CountedRange(log, 0, len(CONTENT), 0)] * 10
    got, error = received(new_loop, pieces, most=1_000_000)
    assert len(got) < 2_000_000
    assert error is None or isinstance(error, asyncio.CancelledError)
    assert CountedRange.by_kernel < 6 * len(CONTENT)
