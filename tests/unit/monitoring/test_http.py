"""Connections to the metrics port."""

from __future__ import annotations

import asyncio
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest

from klamm.monitoring.http import MAX_CONNECTIONS, HttpListener
from tests.support.streams import is_closed

if TYPE_CHECKING:
    from collections.abc import Mapping


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
