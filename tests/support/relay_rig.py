"""A relay between two sockets of this process: a client and an upstream that are scripted by a test."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, Any, Final, Self

from klamm.gateway.apis.table import APIS
from klamm.gateway.frames.peer import Peer
from klamm.gateway.frames.wire import REQUEST_HEAD
from klamm.gateway.relay.api import serve
from klamm.gateway.relay.features import Feature
from klamm.gateway.relay.filter import FORWARD, Filter, Forward, Reply
from klamm.gateway.relay.relay import Relay
from klamm.gateway.relay.shared import ClientLogins, RelayMemory, Shared
from klamm.kafka_client.connection.transport import PlainTransport
from klamm.server.attempt import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from klamm.protocol.schema import Message

_WAIT_S: Final = 120.0
_SMALL: Final = 16 * 1024
SERVED: Final = {api.key: api.versions for api in APIS}
"""First and last version of each API that a gateway can serve."""
CARRIERS: Final = {api.key: api.addresses for api in APIS if api.addresses is not None}
"""Carriers of broker addresses."""


class NamesGateway:
    """Address book that gives every broker the same host."""

    def advertised(self, node_id: int, host: str, port: int) -> tuple[str, int]:
        return f"gateway-for-{host}", port + node_id


def feature(*, watch: Any = None, **attributes: Any) -> Feature:
    """Return a feature with these attributes. ``watch`` makes the observer of a connection."""
    made: Any = Feature()
    if watch is not None:
        made.watch, made.opens_watch = watch, True
    for name, value in attributes.items():
        setattr(made, name, value)
    result: Feature = made
    return result


def filter_of(request: type[Message], response: type[Message], decide: Callable[[Any, Any], Any]) -> Filter:
    """Return a filter by a function that returns a request to forward, a response, an error, or None to forward."""

    def result_of(original: Any, context: Any) -> Any:
        decision = decide(original, context)
        if decision is None:
            return FORWARD
        if isinstance(decision, request):
            return Forward(request=decision)
        return Reply(response=decision) if isinstance(decision, response | ApiError) else decision

    return Filter(request=request, response=response, decide=result_of)


def shared_objects(*features: Feature, **more: Any) -> Shared:
    """Return what relays share in a gateway without an upstream of its own."""
    memory = {name: more.pop(name) for name in ("max_frame_bytes", "request_budget", "response_budget") if name in more}
    logins = {
        field: more.pop(name)
        for name, field in (("needs_login", "is_needed"), ("endpoint", "endpoint"), ("principal_claim",) * 2)
        if name in more
    }
    return Shared(
        apis=serve(APIS, features),
        features=features,
        book=NamesGateway(),
        admin=more.pop("admin", None),
        memory=RelayMemory(**memory),
        logins=ClientLogins(**logins),
        **more,
    )


def request(api_key: int, version: int, body: bytes = b"", *, correlation_id: int = 1) -> bytes:
    """Return a request without a client id."""
    size = REQUEST_HEAD.size - 4 + len(body)
    return REQUEST_HEAD.pack(size, api_key, version, correlation_id, -1) + body


def response(correlation_id: int, body: bytes = b"") -> bytes:
    """Return a response frame."""
    return (4 + len(body)).to_bytes(4) + correlation_id.to_bytes(4) + body


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, which others in this event loop bring about."""
    async with asyncio.timeout(_WAIT_S):
        while not condition():  # noqa: ASYNC110 - nothing notifies of it
            await asyncio.sleep(0)


class Side:
    """The far end of one side of a relay."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(_WAIT_S):
            await self._loop.sock_sendall(self._socket, data)

    async def send_until_blocked(self, data: bytes) -> int:
        """Send until the relay, in this loop, takes nothing for 100 turns; return the number of bytes."""
        sent = refused = 0
        while refused < 100:
            try:
                sent += self._socket.send(data[sent % len(data) :])
                refused = 0
            except BlockingIOError:
                refused += 1
            await asyncio.sleep(0)
        return sent

    async def read(self, count: int) -> bytes:
        """Return so many bytes, fewer at the end of the stream."""
        data = bytearray()
        async with asyncio.timeout(_WAIT_S):
            while len(data) < count and (chunk := await self._loop.sock_recv(self._socket, count - len(data))):
                data += chunk
        return bytes(data)

    async def read_frame(self) -> bytes:
        """Return the next frame without its size."""
        return await self.read(int.from_bytes(await self.read(4)))

    async def is_closed(self) -> bool:
        """Wait for the end of the stream."""
        try:
            async with asyncio.timeout(_WAIT_S):
                while await self._loop.sock_recv(self._socket, 65536):
                    pass
        except ConnectionError:
            pass
        return True

    def end(self) -> None:
        """Send no more."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()

    def reset(self) -> None:
        """Close the connection with a reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


class RelayRig:
    """A relay, its client and its upstream broker. A context manager, to be used in a running event loop."""

    def __init__(
        self,
        shared: Shared,
        transport: Callable[[socket.socket], PlainTransport] = PlainTransport,
        *,
        upstream_transport: Callable[[socket.socket], PlainTransport] = PlainTransport,
        broker: tuple[str, int] | None = None,
    ) -> None:
        """Connect the relay.

        Args:
            shared: Objects of the gateway.
            transport: Makes the relay's side of the client's connection.
            upstream_transport: Makes the relay's side of the upstream connection.
            broker: Address of a real broker as the upstream. The rig's ``upstream`` is then connected to nothing.
        """
        self.shared = shared
        client, near_client = _connected()
        upstream, near_upstream = _connected()
        if broker is not None:
            near_upstream.close()
            near_upstream = socket.create_connection(broker)
            near_upstream.setblocking(False)
        self.client, self.upstream = Side(client), Side(upstream)
        peer = Peer(host="127.0.0.1", port=1, node_id=1)
        self.relay = Relay(shared, peer, transport(near_client), upstream_transport(near_upstream))

    def __enter__(self) -> Self:
        self.relay.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.relay.close(None)
        self.client.close()
        self.upstream.close()

    async def is_served(self) -> bool:
        """Return whether a request is forwarded and its response returned."""
        heartbeat = request(12, 0, b"body", correlation_id=77)
        await self.client.send(heartbeat)
        forwarded = await self.upstream.read(len(heartbeat))
        await self.upstream.send(response(77, b"answer"))
        return forwarded == heartbeat and await self.client.read_frame() == response(77, b"answer")[4:]


def _connected() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets with small buffers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
        far = socket.socket()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
        far.connect(listener.getsockname())
        near, _ = listener.accept()
    for each in (far, near):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SMALL)
        each.setblocking(False)
    return far, near
