"""Connections to the metrics port."""

from __future__ import annotations

import asyncio
import socket

import pytest

from klamm.monitoring.http import MAX_CONNECTIONS, HttpListener
from tests.support.streams import is_closed


def test_connection_above_the_limit_closes_the_oldest() -> None:
    async def test() -> None:
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

    asyncio.run(asyncio.wait_for(test(), 20))


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
def test_status_pages_are_served_to_local_host_names_only(host: str, is_served: bool) -> None:
    async def view(_: object) -> tuple[str, str]:
        return "text/plain", "secret"

    async def test() -> None:
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

    asyncio.run(asyncio.wait_for(test(), 20))
