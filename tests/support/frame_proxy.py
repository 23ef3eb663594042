"""TCP proxy between clients and one broker that records every request, so that tests can check the sent bytes.

The proxy replaces addresses in the broker's responses (Metadata, FindCoordinator, DescribeCluster) with its own, so
that clients keep using it. It can replace whole responses to look like an older broker, for example.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeAlias, TypeVar

from klamm.protocol.codec import decode, encode
from klamm.protocol.frames import RequestHeader, body_position, read_request_header, response_header
from klamm.protocol.messages.describe_cluster import DescribeClusterResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorResponse
from klamm.protocol.messages.metadata import MetadataResponse
from klamm.protocol.messages.produce import ProduceRequest
from klamm.protocol.primitives import skip_tagged_fields
from tests.support.wire import read_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from klamm.protocol.schema import Message

AnyMessage = TypeVar("AnyMessage", bound="Message")

Replacement: TypeAlias = "Callable[[RequestHeader, memoryview], bytes | None]"
"""Function from the request's header and the broker's response after the correlation id to the bytes to send instead,
or None to close the connection.
"""

_WITH_ADDRESSES: Final[dict[int, type[Message]]] = {
    3: MetadataResponse,
    10: FindCoordinatorResponse,
    60: DescribeClusterResponse,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """One recorded request."""

    at_s: float
    """Time on the monotonic clock, in seconds."""
    connection: int
    header: RequestHeader
    frame: bytes
    """Header and body."""

    def read(self, message_class: type[AnyMessage]) -> AnyMessage:
        """Return the body as a message."""
        version = self.header.api_version
        frame = memoryview(self.frame)
        position = body_position(frame, self.header, flexible=message_class.is_flexible(version))
        return decode(message_class, version, frame, position)


class FrameProxy:
    """Proxy between clients and one broker; a context manager.

    Args:
        address: ``host:port`` of the broker.
        replacements: Replacements of the broker's responses, by API key.
    """

    def __init__(self, address: str, *, replacements: Mapping[int, Replacement] | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._upstream = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._replacements = dict(replacements or {})
        self._recorded: list[RecordedRequest] = []
        self._changed = threading.Condition()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def bootstrap_servers(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self.port}"

    def requests(self, api_key: int) -> list[RecordedRequest]:
        """Return the requests so far, oldest first."""
        with self._changed:
            return [request for request in self._recorded if request.header.api_key == api_key]

    def produced_acks(self) -> list[int]:
        """Return ``acks`` of each Produce request so far, oldest first."""
        return [request.read(ProduceRequest).acks for request in self.requests(ProduceRequest.API_KEY)]

    def wait_for(self, condition: Callable[[], bool], *, timeout_s: float = 20.0) -> None:
        """Wait until a condition on the recorded requests holds.

        Raises:
            TimeoutError: It did not hold in time.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"Not within {timeout_s} s: {condition}")
            with self._changed:
                self._changed.wait(min(left_s, 0.1))

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for closing in (self._listener, *self._sockets):
            _shut(closing)
        for thread in self._threads:
            thread.join(30)
        for closing in (self._listener, *self._sockets):
            closing.close()

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                try:
                    broker = socket.create_connection(self._upstream)
                except OSError:
                    _shut(client)
                    continue
                self._sockets.append(broker)
                expected: deque[RequestHeader] = deque()
                self._start(self._forward_requests, client, broker, expected)
                self._start(self._forward_responses, broker, client, expected)

    def _forward_requests(self, client: socket.socket, broker: socket.socket, expected: deque[RequestHeader]) -> None:
        with contextlib.suppress(OSError), client.makefile("rb") as stream:
            for frame in read_frames(stream):
                request = RecordedRequest(
                    at_s=time.monotonic(), connection=client.fileno(), header=read_request_header(frame), frame=frame
                )
                with self._changed:
                    self._recorded.append(request)
                    self._changed.notify_all()
                if not self._is_forwarded(request):
                    break
                if not _is_unanswered(request):
                    expected.append(request.header)
                self._send(broker, len(frame).to_bytes(4, "big") + frame)
        _shut(client)
        _shut(broker)

    def _send(self, receiver: socket.socket, data: bytes) -> None:
        receiver.sendall(data)

    def _is_forwarded(self, request: RecordedRequest) -> bool:
        """Return whether to forward a request. If not, the connection is closed."""
        return True

    def _forward_responses(self, broker: socket.socket, client: socket.socket, expected: deque[RequestHeader]) -> None:
        with contextlib.suppress(OSError), broker.makefile("rb") as stream:
            for frame in read_frames(stream):
                answer = self._answer(expected.popleft(), frame)
                if answer is None:
                    break
                self._send(client, answer)
        _shut(client)
        _shut(broker)

    def _answer(self, header: RequestHeader, frame: bytes) -> bytes | None:
        replacement = self._replacements.get(header.api_key)
        if replacement is None:
            return self._with_own_address(header, frame)
        body = replacement(header, memoryview(frame)[4:])
        return None if body is None else (4 + len(body)).to_bytes(4, "big") + frame[:4] + body

    def _with_own_address(self, header: RequestHeader, frame: bytes) -> bytes:
        message_class = _WITH_ADDRESSES.get(header.api_key)
        if message_class is None:
            return len(frame).to_bytes(4, "big") + frame
        version = header.api_version
        flexible = message_class.is_flexible(version)
        body = memoryview(frame)[4:]
        message = decode(message_class, version, body, skip_tagged_fields(body, 0, len(body)) if flexible else 0)
        self._replace_addresses(message)
        data = bytes(encode(message, version))
        return response_header(header.correlation_id, len(data), flexible=flexible) + data

    def _replace_addresses(self, message: Message) -> None:
        if isinstance(message, FindCoordinatorResponse):
            if message.port > 0:
                message.host, message.port = "127.0.0.1", self.port
            for coordinator in message.coordinators:
                if coordinator.port > 0:
                    coordinator.host, coordinator.port = "127.0.0.1", self.port
        elif isinstance(message, (MetadataResponse, DescribeClusterResponse)):
            for node in message.brokers:
                node.host, node.port = "127.0.0.1", self.port


def _is_unanswered(request: RecordedRequest) -> bool:
    return request.header.api_key == ProduceRequest.API_KEY and request.read(ProduceRequest).acks == 0


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
