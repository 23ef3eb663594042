"""Requests of clients that a real broker of the target answers, over connections of their own for each client.

A client of the target may send any request to this broker, because Metadata lists it. All requests that concern
neither the mirrored partitions nor this broker itself are passed on, and so are their responses. The real broker sees
klamm's address and no login. So this is done only on listeners without TLS and SASL of targets without an authorizer:
else klamm would lend its address to clients that the ACLs of another host concern. On all other listeners such requests
are rejected.

What only a replica knows, its offsets and the producers in its log, klamm gets by its own login.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.kafka_client.errors import ConnectionLostError
from klamm.kafka_client.pool.pool import ConnectionPool
from klamm.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.kraft.image import BrokerEndpoint
    from klamm.protocol.schema import Message
    from klamm.server.session import Session

R = TypeVar("R", bound="Message")
_CORRELATION_BYTES: Final = 4
_CONNECT_S: Final = 5.0
_CALL_MS: Final = 10_000
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class RelayedResponse:
    """Response of a real broker: everything behind the correlation id, so also tagged fields of the header."""

    def __init__(self, body: memoryview) -> None:
        self._body = body

    def is_flexible(self, version: int) -> bool:
        """Return False: the header is part of the body."""
        return False

    def buffers(self, version: int) -> Sequence[memoryview]:
        """Return the body."""
        return (self._body,)

    def error_codes(self) -> Iterable[int]:
        """Return no error code: the body is not read."""
        return ()


class ClientRelay:
    """Connections to real brokers. Used on the event loop only.

    Args:
        endpoint_of: Returns the endpoint of a live broker at a listener. None: requests are not passed on there.
    """

    def __init__(self, endpoint_of: Callable[[str], BrokerEndpoint | None]) -> None:
        self._endpoint_of = endpoint_of
        self._open: dict[int, _Streams] = {}
        """Streams by connection id of the client."""

    def can_forward(self, session: Session) -> bool:
        """Return whether requests of a client may be passed on to a real broker."""
        return self._endpoint_of(session.listener) is not None

    async def forward(self, session: Session, frame: bytes) -> memoryview:
        """Send a request and return its response, from behind the correlation id.

        Args:
            session: Connection of the client.
            frame: Request without its size.

        Raises:
            ProtocolError: No broker answers. The client's connection is closed, and the client looks for another one.
        """
        try:
            reader, writer = await self._streams(session)
            writer.write(len(frame).to_bytes(4))
            writer.write(frame)
            size = int.from_bytes(await reader.readexactly(4))
            response = memoryview(await reader.readexactly(size))
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise ProtocolError(f"no broker of the target answers: {error}") from error
        return response[_CORRELATION_BYTES:]

    async def _streams(self, session: Session) -> _Streams:
        endpoint = self._endpoint_of(session.listener)
        if endpoint is None:
            raise ProtocolError(
                f"listener {session.listener} passes no requests on to brokers: that needs a listener PLAINTEXT, "
                "and a target without authorizer.class.name"
            )
        if session.connection_id not in self._open:
            async with asyncio.timeout(_CONNECT_S):
                streams = await asyncio.open_connection(endpoint.host, endpoint.port)
            self._open[session.connection_id] = streams
        return self._open[session.connection_id]

    def on_left(self, session: Session) -> None:
        """Close the connection of a client that has left."""
        if (streams := self._open.pop(session.connection_id, None)) is not None:
            streams[1].close()


class OwnClient:
    """Connections of klamm itself to the target's brokers. Used on the event loop only.

    A broker that does not answer delays only the requests to it.

    Args:
        target: Connection to the target.
    """

    def __init__(self, target: ConnectionSettings) -> None:
        self._target = target
        self._pool: ConnectionPool | None = None

    async def ask(self, node_id: int, request: Message, response: type[R]) -> R:
        """Send a request to a broker and return the response.

        Raises:
            ProtocolError: The broker does not answer.
        """
        pool = self._pool = self._pool or ConnectionPool(self._target, timeout_ms=_CALL_MS)
        try:
            return await pool.submit(
                lambda deadline: pool.send(request, response, deadline=deadline, node_id=node_id, looked_up=True)
            )
        except (ConnectionLostError, TimeoutError) as error:
            raise ProtocolError(f"broker {node_id} of the target does not answer: {error}") from error

    def close(self) -> None:
        """Close all connections. Requests in progress fail."""
        if self._pool is not None:
            self._pool.close()
