"""Server of the broker: accepts connections on its listeners, and holds the objects that all connections share."""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
from functools import partial
from typing import TYPE_CHECKING, Final

from klamm.protocol.frames import DEFAULT_MAX_FRAME_BYTES
from klamm.server.connection import ClientConnection, SharedByConnections, Traffic
from klamm.server.outbox import UnreadBudget
from klamm.server.session import Session
from klamm.server.sockets import Acceptor
from klamm.server.time_slice import Turns

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from klamm.server.client_registry import ClientRegistry
    from klamm.server.connection_limits import ConnectionLimits, ConnectionSlot
    from klamm.server.context import HandlerContext
    from klamm.server.quotas.throttles import Throttles
    from klamm.server.route import Route
    from klamm.server.security.endpoints import Endpoint

logger = logging.getLogger(__name__)

TLS_HANDSHAKE_TIMEOUT_S: Final = 10.0
_BACKLOG: Final = 1024
_SWEEPS_PER_IDLE_TIME: Final = 4
_MAX_SWEEP_S: Final = 30.0
_MIN_SWEEP_S: Final = 0.05


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
        on_rejected: Called with a client that could not log in, or whose certificate has no principal, and the reason.
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
        on_rejected: Callable[[Session, str], None] = lambda _, __: None,
    ) -> None:
        self._shared = SharedByConnections(
            new_context=new_context,
            routes=routes,
            client_registry=client_registry,
            throttles=throttles,
            traffic=Traffic() if traffic is None else traffic,
            budget=UnreadBudget(),
            turns=Turns(),
            max_frame_bytes=max_frame_bytes,
            on_rejected=on_rejected,
        )
        self._limits = limits
        self._max_idle_ms = max_idle_ms
        self._sweeper: asyncio.Task[None] | None = None
        self._acceptors: list[Acceptor] = []
        self._opening: set[asyncio.Task[None]] = set()
        """Tasks of accepted connections, until they have begun or are rejected."""
        self._ids = itertools.count(1)

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._shared.connections)

    def listen(
        self, endpoint: Endpoint, sockets: Mapping[int, socket.socket], tls: ssl.SSLContext | None = None
    ) -> None:
        """Start to serve a listener.

        Args:
            endpoint: Settings of the listener.
            sockets: Bound socket of each broker id.
            tls: Context that encrypts the connections; None for plaintext.
        """
        loop = asyncio.get_running_loop()
        if self._sweeper is None:
            self._sweeper = loop.create_task(self._sweep())
        for node_id, sock in sockets.items():
            acceptor = Acceptor(sock, partial(self._accept, endpoint, node_id, tls))
            acceptor.start(backlog=_BACKLOG)
            self._acceptors.append(acceptor)

    def _accept(
        self,
        endpoint: Endpoint,
        node_id: int,
        tls: ssl.SSLContext | None,
        sock: socket.socket,
        address: tuple[str, int],
    ) -> None:
        """Serve an accepted connection, unless a limit is reached or its address exceeds its rate.

        Both are decided before the TLS handshake, as in Kafka, because handshakes are what costs the most.
        """
        host, port = address
        slot = self._limits.admit(host, endpoint.name)
        if slot is None:
            sock.close()
            logger.warning(
                "Connection of %s:%d closed: too many connections (max.connections, max.connections.per.ip)", host, port
            )
            return
        session = Session(
            connection_id=next(self._ids),
            node_id=node_id,
            listener=endpoint.name,
            client_host=host,
            client_port=port,
            login=endpoint.new_login(),
        )
        admission = self._shared.throttles.admit(session)
        connection = ClientConnection(session, endpoint, self._shared, slot, delay_s=admission.delay_s)
        opening = _turn_away(session, admission.delay_s) if admission.is_rejected else _open(connection, sock, tls)
        task = asyncio.get_running_loop().create_task(opening)
        self._opening.add(task)
        task.add_done_callback(partial(self._on_opened, connection, sock, slot))

    def _on_opened(
        self, connection: ClientConnection, sock: socket.socket, slot: ConnectionSlot, task: asyncio.Task[None]
    ) -> None:
        self._opening.discard(task)
        if not connection.has_begun:
            sock.close()
            slot.release()
        elif task.cancelled():
            connection.connection_lost(None)  # uvloop closes the transport, but does not report it

    async def _sweep(self) -> None:
        """Close connections that are idle or without a login.

        One periodic pass over all connections replaces a timer for each.
        """
        loop = asyncio.get_running_loop()
        while True:
            idle_s = self._max_idle_ms() / 1000
            pause_s = idle_s / _SWEEPS_PER_IDLE_TIME if idle_s > 0 else _MAX_SWEEP_S
            await asyncio.sleep(min(max(pause_s, _MIN_SWEEP_S), _MAX_SWEEP_S))
            now = loop.time()
            for connection in list(self._shared.connections):
                connection.close_if_not_logged_in(now)
                if idle_s > 0:
                    connection.close_if_idle(now, idle_s)

    async def close(self, *, grace_s: float) -> None:
        """Stop accepting connections, wait up to ``grace_s`` seconds for requests in progress, then abort the rest."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        while self._acceptors:
            self._acceptors.pop().close()
        for task in self._opening:
            task.cancel()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        while self._shared.connections:
            for connection in list(self._shared.connections):
                connection.finish()
                if connection.is_stalled(loop.time()):
                    connection.abort()
            if loop.time() >= deadline:
                break
            await asyncio.sleep(0.005)
        for connection in list(self._shared.connections):
            connection.abort()


async def _open(connection: ClientConnection, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
    """Complete the TLS handshake, if there is one, and let the event loop serve the connection."""
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: connection,
            sock,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else TLS_HANDSHAKE_TIMEOUT_S,
        )
    except ssl.SSLError:
        pass  # reported by AlertingTls
    except OSError as error:
        session = connection.session
        logger.info("Connection of %s:%d closed: %s", session.client_host, session.client_port, error)


async def _turn_away(session: Session, delay_s: float) -> None:
    """Wait before a rejected connection is closed, which slows down reconnects."""
    await asyncio.sleep(delay_s)
    logger.info(
        "Connection of %s:%d closed: its address exceeds its quota connection_creation_rate",
        session.client_host,
        session.client_port,
    )
