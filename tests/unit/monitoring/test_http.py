"""Connections to the metrics port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest

from klamm.monitoring import http
from klamm.monitoring.http import MAX_CONNECTIONS, HttpListener
from klamm.server.sockets import fastest_event_loop
from tests.support.streams import is_closed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONG = "x" * 50_000
"""Longer than the buffers of the sockets below, and too short for asyncio to ask for a pause in writing."""


async def unread_connection(address: tuple[str, int]) -> socket.socket:
    """Return a connection that has requested a long page, after the first byte of the response."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, address)
    with contextlib.suppress(ConnectionError):  # the time limit is over
        await loop.sock_sendall(sock, b"GET /long HTTP/1.1\r\n\r\n")
        await loop.sock_recv(sock, 1)
    return sock


async def is_response_complete(sock: socket.socket) -> bool:
    """Read the rest of the response."""
    with sock:
        reader, writer = await asyncio.open_connection(sock=sock)
        try:
            return (await reader.read()).endswith(LONG.encode())
        except ConnectionResetError:
            return False
        finally:
            writer.close()


def listening_socket() -> socket.socket:
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    return sock


async def test_connection_above_the_limit_closes_the_oldest() -> None:
    listener = HttpListener({"/metrics": lambda: ("text/plain", "all well")})
    sock = socket.create_server(("127.0.0.1", 0))
    address = sock.getsockname()
    await listener.listen(sock)
    silent = [await asyncio.open_connection(*address) for _ in range(MAX_CONNECTIONS)]
    for _ in range(2):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert (await reader.read()).endswith(b"all well")
        writer.close()
    oldest, newest = silent[0][0], silent[-1][0]
    assert await is_closed(oldest)
    assert not await is_closed(newest)
    for _, writer in silent:
        writer.close()
    await listener.close()


LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, fastest_event_loop], ids=["asyncio", "uvloop"])


@LOOPS
def test_connection_above_limit_closes_oldest_with_unread_response(
    new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> tuple[bytes, list[bool]]:
        # given
        listener = HttpListener(dict.fromkeys(("/metrics", "/long"), lambda: ("text/plain", LONG)))
        sock = listening_socket()
        address = sock.getsockname()
        await listener.listen(sock)
        unread = [await unread_connection(address) for _ in range(MAX_CONNECTIONS)]
        # when
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        response = await reader.read()
        writer.close()
        are_complete = [await is_response_complete(each) for each in unread]
        await listener.close()
        return response, are_complete

    monkeypatch.setattr(http, "LIMIT_S", 300.0)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        response, are_complete = runner.run(run())
    # then
    assert response.endswith(LONG.encode())
    assert are_complete == [False] + [True] * (MAX_CONNECTIONS - 1)


@LOOPS
def test_connection_with_unread_response_is_closed_after_time_limit(
    new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> bool:
        # given
        listener = HttpListener({"/long": lambda: ("text/plain", LONG)})
        sock = listening_socket()
        await listener.listen(sock)
        # when
        unread = await unread_connection(sock.getsockname())
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        is_complete = await is_response_complete(unread)
        await listener.close()
        return is_complete

    monkeypatch.setattr(http, "LIMIT_S", 0.1)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        is_complete = runner.run(run())
    # then
    assert not is_complete


@pytest.mark.parametrize(
    ("host", "is_served"),
    [
        ("127.0.0.1:9404", True),
        ("[::1]:9404", True),
        ("[fe80::1]", True),
        ("localhost", True),
        ("page.localhost:1", True),
        ("klamm:9404", True),
        (socket.gethostname().upper(), True),
        ("", True),
        ("evil.example", False),
        ("evil.example:9404", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example.", False),
    ],
)
async def test_status_pages_are_served_to_local_host_names_only(host: str, is_served: bool) -> None:
    async def view(_: object) -> tuple[str, str]:
        return "text/plain", "secret"

    pages = dict.fromkeys(("/metrics", "/status.json"), lambda: ("text/plain", "secret"))
    listener = HttpListener(pages, {"/": view}, {"/ready": lambda: None})
    sock = socket.create_server(("127.0.0.1", 0))
    address = sock.getsockname()
    await listener.listen(sock)
    for path in ("/", "/status.json", "/metrics", "/ready"):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(f"GET {path} HTTP/1.1\r\naccept: x\r\nhOSt: {host}\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        assert (b" 200 OK" in answer) == (is_served or path in ("/metrics", "/ready"))
        assert is_served or path == "/metrics" or b"secret" not in answer
    await listener.close()


JSON = "content-type: application/json\r\n"
NO_BODY = f"{JSON}content-length: 2\r\n\r\n{{}}"


@pytest.mark.parametrize(
    ("text", "status", "answer"),
    [
        (f'POST /act HTTP/1.1\r\nhost: a\r\n{JSON}content-length: 7\r\n\r\n{{"a":1}}', 202, '{"got": {"a": 1}}'),
        (f"POST /act HTTP/1.1\r\nhost: evil.example\r\n{NO_BODY}", 421, "Host"),
        (f"POST /act HTTP/1.1\r\norigin: http://localhost\r\n{NO_BODY}", 403, "browser"),
        ("POST /act HTTP/1.1\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n{}", 415, "application/json"),
        (f"POST /act HTTP/1.1\r\n{JSON}content-length: 9999999\r\n\r\n", 413, "Content-Length"),
        (f"POST /act HTTP/1.1\r\n{JSON}content-length: {'9' * 5000}\r\n\r\n", 413, "Content-Length"),
        (f"POST /act HTTP/1.1\r\n{JSON}\r\n", 413, "Content-Length"),
        (f"POST /act HTTP/1.1\r\n{JSON}content-length: 2\r\n\r\n[]", 400, "not a JSON object"),
        (f"POST /page HTTP/1.1\r\n{NO_BODY}", 405, "GET only"),
        ("GET /act HTTP/1.1\r\n\r\n", 405, "POST only"),
    ],
)
async def test_action_is_run_only_for_json_document_of_no_browser(text: str, status: int, answer: str) -> None:
    async def act(document: Mapping[str, Any]) -> tuple[HTTPStatus, object]:
        return HTTPStatus.ACCEPTED, {"got": document}

    listener = HttpListener({"/page": lambda: ("text/plain", "here")}, actions={"/act": act})
    sock = socket.create_server(("127.0.0.1", 0))
    address = sock.getsockname()
    await listener.listen(sock)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(text.encode())
    received = (await reader.read()).decode()
    writer.close()
    assert received.startswith(f"HTTP/1.1 {status} ")
    assert answer in received
    await listener.close()
