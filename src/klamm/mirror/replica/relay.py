"""Requests of clients that a real broker of the target answers, over connections of their own for each client.

A client of the target may send any request to this broker, because Metadata lists it. All requests that do not concern
the mirrored partitions are passed on unread, and so are their responses. The real broker authenticates the client's
connection, which is possible on listeners without TLS and SASL only. On the others, klamm authenticates the client, and
asks a broker by its own login for the one answer that reading needs: the offsets of a replica.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.gateway.frames.wire import request_frame
from klamm.kafka_client.errors import ConnectionLostError
from klamm.kafka_client.pool.pool import ConnectionPool
from klamm.protocol.codec import decode
from klamm.protocol.errors import ProtocolError
from klamm.protocol.frames import has_tagged_header
from klamm.protocol.primitives import skip_tagged_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.kraft.image import BrokerEndpoint
    from klamm.protocol.schema import Message
    from klamm.server.context import HandlerContext
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
        endpoint_of: Returns the endpoint of a broker at a listener, by listener name and node id. Node id -1: any live
            broker. None: there is none.
    """

    def __init__(self, endpoint_of: Callable[[str, int], BrokerEndpoint | None]) -> None:
        self._endpoint_of = endpoint_of
        self._open: dict[int, dict[int, _Streams]] = {}
        """Streams by connection id of the client and node id."""

    def can_forward(self, session: Session) -> bool:
        """Return whether a real broker can be reached as the client reaches this one."""
        return self._endpoint_of(session.listener, -1) is not None

    async def forward(self, session: Session, frame: bytes | memoryview, node_id: int = -1) -> memoryview:
        """Send a request and return its response, from behind the correlation id.

        Args:
            session: Connection of the client.
            frame: Request without its size.
            node_id: Broker that has to answer. -1: any one, always the same for one connection.

        Raises:
            ProtocolError: No broker answers. The client's connection is closed, and the client looks for another one.
        """
        try:
            reader, writer = await self._streams(session, node_id)
            writer.write(len(frame).to_bytes(4))
            writer.write(frame)
            size = int.from_bytes(await reader.readexactly(4))
            response = memoryview(await reader.readexactly(size))
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise ProtocolError(f"no broker of the target answers: {error}") from error
        return response[_CORRELATION_BYTES:]

    async def ask(self, context: HandlerContext, request: Message, response: type[R], node_id: int) -> R:
        """Send a request in place of the one of a client, and return the response. Errors as of ``forward``."""
        version = context.api_version
        frame = request_frame(request, version, 0, context.client_id)
        body = await self.forward(context.session, memoryview(frame)[4:], node_id)
        start = skip_tagged_fields(body, 0, len(body)) if has_tagged_header(response, version) else 0
        return decode(response, version, body, start)

    async def _streams(self, session: Session, node_id: int) -> _Streams:
        streams = self._open.setdefault(session.connection_id, {})
        if node_id not in streams:
            endpoint = self._endpoint_of(session.listener, node_id)
            if endpoint is None:
                raise ProtocolError(f"no broker of the target has a listener {session.listener} without TLS and SASL")
            async with asyncio.timeout(_CONNECT_S):
                streams[node_id] = await asyncio.open_connection(endpoint.host, endpoint.port)
        return streams[node_id]

    def on_left(self, session: Session) -> None:
        """Close the connections of a client that has left."""
        for _, writer in self._open.pop(session.connection_id, {}).values():
            writer.close()


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
