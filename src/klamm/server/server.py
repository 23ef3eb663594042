"""Server of the broker: accepts connections on its listeners, and holds the objects that all connections share."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Final

from klamm.protocol.frames import DEFAULT_MAX_FRAME_BYTES
from klamm.server.connection import ClientConnection, SharedByConnections
from klamm.server.outbox import UnreadBudget
from klamm.server.session import Session
from klamm.server.traffic import Traffic
from klamm.server.turns import Turns

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Mapping

    from klamm.server.client_registry import ClientRegistry
    from klamm.server.connection_limits import ConnectionLimits
    from klamm.server.context import HandlerContext
    from klamm.server.quotas.throttles import Throttles
    from klamm.server.route import Route
    from klamm.server.security.endpoints import Endpoint


TLS_HANDSHAKE_TIMEOUT_S: Final = 10.0
_SWEEPS_PER_IDLE_TIME: Final = 4
_LONGEST_SWEEP_S: Final = 30.0
_SHORTEST_SWEEP_S: Final = 0.05


class Server:
    """Server for all listeners of one process, which may present several broker ids. Used on the event loop only.

    Args:
        new_context: Function that creates the context of a request from ``session``, ``api_version`` and ``client_id``.
        routes: Handler of each API key.
        limits: Connection limits.
        throttles: Quotas of clients and connections.
        client_registry: Registry of clients, which this server updates.
        max_idle_ms: Function that returns ``connections.max.idle.ms``. It is called before each sweep, so dynamic
            changes apply; 0 or a negative time means no limit.
        max_frame_bytes: ``socket.request.max.bytes``.
        traffic: Byte counters; None creates new ones.
    """

    def __init__(
        self,
        *,
        new_context: Callable[..., HandlerContext],
        routes: Mapping[int, Route],
        limits: ConnectionLimits,
        throttles: Throttles,
        client_registry: ClientRegistry,
        max_idle_ms: Callable[[], int],
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        traffic: Traffic | None = None,
    ) -> None:
        self._shared = SharedByConnections(
            new_context=new_context,
            routes=routes,
            limits=limits,
            client_registry=client_registry,
            throttles=throttles,
            traffic=Traffic() if traffic is None else traffic,
            budget=UnreadBudget(),
            turns=Turns(),
            max_frame_bytes=max_frame_bytes,
        )
        self._max_idle_ms = max_idle_ms
        self._sweeper: asyncio.Task[None] | None = None
        self._servers: list[asyncio.Server] = []
        self._ids = itertools.count(1)

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._shared.connections)

    async def listen(
        self, endpoint: Endpoint, sockets: Mapping[int, socket.socket], tls: ssl.SSLContext | None = None
    ) -> None:
        """Serve a listener.

        Args:
            endpoint: Settings of the listener.
            sockets: Bound socket of each broker id.
            tls: Context that encrypts the connections; None for plaintext.
        """
        loop = asyncio.get_running_loop()
        if self._sweeper is None:
            self._sweeper = loop.create_task(self._sweep())
        for node_id, sock in sockets.items():

            def connection(node_id: int = node_id) -> ClientConnection:
                session = Session(
                    connection_id=next(self._ids), node_id=node_id, listener=endpoint.name, login=endpoint.new_login()
                )
                return ClientConnection(session, endpoint, self._shared)

            server = await loop.create_server(
                connection,
                sock=sock,
                backlog=1024,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else TLS_HANDSHAKE_TIMEOUT_S,
            )
            self._servers.append(server)

    async def _sweep(self) -> None:
        """Close idle connections. One periodic pass over all connections replaces a timer for each."""
        loop = asyncio.get_running_loop()
        while True:
            idle_s = self._max_idle_ms() / 1000
            pause_s = idle_s / _SWEEPS_PER_IDLE_TIME if idle_s > 0 else _LONGEST_SWEEP_S
            await asyncio.sleep(min(max(pause_s, _SHORTEST_SWEEP_S), _LONGEST_SWEEP_S))
            if idle_s > 0:
                now = loop.time()
                for connection in list(self._shared.connections):
                    connection.close_if_idle(now, idle_s)

    async def close(self, *, grace_s: float) -> None:
        """Stop accepting connections, wait up to ``grace_s`` seconds for requests in progress, then abort the rest."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for server in self._servers:
            server.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        while self._shared.connections:
            for connection in list(self._shared.connections):
                if connection.is_idle:
                    connection.close()
                if connection.is_stalled(loop.time()):
                    connection.abort()
            if loop.time() >= deadline:
                break
            await asyncio.sleep(0.005)
        for connection in list(self._shared.connections):
            connection.abort()
