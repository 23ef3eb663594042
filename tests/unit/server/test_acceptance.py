"""Connections count from the moment they are accepted."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.protocol.api import Api, ApiKey
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.server import sockets
from klamm.server.client_registry import ClientRegistry
from klamm.server.connection_limits import ConnectionLimits
from klamm.server.context import HandlerContext
from klamm.server.quotas.throttles import Throttles
from klamm.server.route import Route
from klamm.server.security.endpoints import Endpoint
from klamm.server.security.tls import ServerTls
from klamm.server.server import Server
from klamm.server.sockets import Acceptor, fastest_event_loop
from tests.support.quotas import NoQuotas
from tests.support.security import Certificates
from tests.support.streams import is_closed
from tests.support.wire import request_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

pytestmark = pytest.mark.process  # openssl issues certificates

MOST = 3
LOOPS = [asyncio.new_event_loop, fastest_event_loop]


class AddressQuotas(NoQuotas):
    """Quotas with one ``connection_creation_rate`` for all addresses."""

    connection_creation_rate: float | None = None

    def limit_of_address(self, address: str) -> float | None:
        return self.connection_creation_rate


class Listening:
    """A server of three connections at most."""

    def __init__(self, listening: socket.socket | None = None) -> None:
        self.quotas = AddressQuotas()
        self.hosts: list[str] = []
        """Hosts of the clients that have asked for versions."""

        async def versions(_: ApiVersionsRequest, context: HandlerContext) -> ApiVersionsResponse:
            self.hosts.append(context.session.client_host)
            return ApiVersionsResponse()

        route = Route(
            api=Api(key=ApiKey.API_VERSIONS, min_version=0, max_version=3), request=ApiVersionsRequest, handle=versions
        )
        self.server = Server(
            new_context=HandlerContext,
            routes={ApiKey.API_VERSIONS: route},
            limits=ConnectionLimits(lambda _: None, most=MOST),
            throttles=Throttles(self.quotas, lambda _: None),
            client_registry=ClientRegistry(now_ms=lambda: 0),
            max_idle_ms=lambda: 0,
        )
        self._socket = listening or socket.create_server(("127.0.0.1", 0))
        self.address = ("127.0.0.1", self._socket.getsockname()[1])
        self._writers: list[asyncio.StreamWriter] = []

    def listen(self, tls: ssl.SSLContext | None) -> None:
        endpoint = Endpoint(name="MAIN", tls=None if tls is None else ServerTls(context=tls, certificate=b""))
        self.server.listen(endpoint, {1: self._socket}, tls)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address)
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        """Stop the server, then close the clients' connections."""
        await self.server.close(grace_s=5)
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def answers(self, tls: ssl.SSLContext | None) -> bool:
        """Return whether a request of a new connection is answered. Wait until there is a place for it."""
        for _ in range(50):
            try:
                reader, writer = await asyncio.open_connection(*self.address, ssl=tls)
                self._writers.append(writer)
                writer.write(request_frame(ApiVersionsRequest(), 0))
                await reader.readexactly(4)
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return True
        return False


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(test, 60))


def server_tls(directory: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Certificates.create(directory).issue("broker", "/CN=broker"))
    return context


def client_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("encrypted", [False, True])
def test_silent_connections_are_counted_and_released(
    tmp_path: Path, encrypted: bool, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def test() -> None:
        listening = Listening()
        listening.listen(server_tls(tmp_path) if encrypted else None)
        peers = [await listening.connect() for _ in range(MOST + 2)]
        closed = await asyncio.gather(*(is_closed(reader) for reader, _ in peers))
        assert closed == [False] * MOST + [True] * 2
        for _, writer in peers:
            writer.close()
        assert await listening.answers(client_tls() if encrypted else None)
        await listening.close()

    run(new_loop, test())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_ipv4_client_of_ipv6_listener_has_its_ipv4_address(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Or no ACL by host would concern it."""

    async def test() -> None:
        sock = socket.socket(socket.AF_INET6)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("::ffff:127.0.0.1", 0))
        listening = Listening(sock)
        listening.listen(None)
        assert await listening.answers(None)
        await listening.close()
        assert listening.hosts == ["127.0.0.1"]

    run(new_loop, test())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_failed_handshakes_are_released_from_the_limits(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def test() -> None:
        listening = Listening()
        listening.listen(server_tls(tmp_path))
        for number in range(3 * MOST):
            reader, writer = await listening.connect()
            writer.write(b"GET / HTTP/1.1\r\n\r\n" if number % 2 else b"\x16\x03\x01")
            if number % 2:
                await reader.read()
            writer.close()
        assert await listening.answers(client_tls())
        await listening.close()

    run(new_loop, test())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_unfinished_tls_handshake_times_out_and_ends_with_the_server(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("klamm.server.server.TLS_HANDSHAKE_TIMEOUT_S", 0.5)

    async def test() -> None:
        listening = Listening()
        listening.listen(server_tls(tmp_path))
        peers = [await listening.connect() for _ in range(MOST)]
        assert await listening.answers(client_tls())
        assert all(await asyncio.gather(*(is_closed(reader, within_s=60) for reader, _ in peers)))
        monkeypatch.setattr("klamm.server.server.TLS_HANDSHAKE_TIMEOUT_S", 60)
        reader, _ = await listening.connect()
        await asyncio.sleep(0.1)
        await listening.server.close(grace_s=5)
        assert await is_closed(reader)
        await listening.close()

    run(new_loop, test())


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("encrypted", [False, True])
def test_connection_beyond_the_rate_of_its_address_is_closed_before_its_handshake(
    tmp_path: Path,
    encrypted: bool,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("klamm.server.quotas.throttles._MAX_REJECTION_S", 0.01)

    async def test() -> None:
        listening = Listening()
        listening.quotas.connection_creation_rate = 0.01
        listening.listen(server_tls(tmp_path) if encrypted else None)
        for _ in range(2 * MOST):
            reader, _ = await listening.connect()
            assert await is_closed(reader, within_s=5)
        assert listening.server.connection_count == 0
        listening.quotas.connection_creation_rate = None
        assert await listening.answers(client_tls() if encrypted else None)
        await listening.close()

    run(new_loop, test())


def test_connection_beyond_the_rate_of_its_address_ends_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.server.quotas.throttles._MAX_REJECTION_S", 60)

    async def test() -> None:
        listening = Listening()
        listening.quotas.connection_creation_rate = 0.01
        listening.listen(None)
        reader, _ = await listening.connect()
        for _ in range(100):
            if listening.server._opening:
                break
            await asyncio.sleep(0.01)
        await listening.server.close(grace_s=5)
        assert await is_closed(reader)
        await listening.close()

    run(asyncio.new_event_loop, test())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_accepted_connections_send_small_responses_at_once(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    flags: list[int] = []

    async def test() -> None:
        listening = Listening()
        listening.listen(None)
        _, writer = await listening.connect()
        for _ in range(100):
            if listening.server.connection_count:
                break
            await asyncio.sleep(0.01)
        (connection,) = listening.server._shared.connections
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        flags.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()
        await listening.close()

    run(new_loop, test())
    assert flags == [1]


class Exhausted:
    """A listening socket of a process without a free descriptor, for a while."""

    def __init__(self, sock: socket.socket, failures: int) -> None:
        self._socket = sock
        self._failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def accept(self) -> tuple[socket.socket, Any]:
        if self._failures:
            self._failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._socket.accept()


def test_connections_are_accepted_again_after_descriptors_ran_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sockets, "_PAUSE_S", 0.05)

    async def test() -> None:
        accepted: asyncio.Queue[socket.socket] = asyncio.Queue()
        sock = socket.create_server(("127.0.0.1", 0))
        accepting = Acceptor(
            cast("socket.socket", Exhausted(sock, 2)), lambda connection, _: accepted.put_nowait(connection)
        )
        accepting.start(backlog=16)
        with socket.create_connection(sock.getsockname()):
            (await accepted.get()).close()
        accepting.close()
        assert sock.fileno() < 0

    run(asyncio.new_event_loop, test())
    assert caplog.messages == ["A connection cannot be accepted: Too many open files"] * 2
