"""Connections of strangers to the port of the metrics."""

from __future__ import annotations

import asyncio
import socket

from klamm.monitoring.http import MAX_CONNECTIONS, HttpListener
from tests.support.streams import is_closed


def test_a_connection_above_the_limit_ends_the_oldest_and_is_answered() -> None:
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
