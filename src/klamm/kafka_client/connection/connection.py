"""Connection to one broker: requests are sent as lists of buffers, responses arrive as frames in order.

``klamm.kafka_client.connection.login`` opens connections: TCP connection, TLS handshake, ApiVersions, SASL login.
"""

from __future__ import annotations

import itertools
import math
import select
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from klamm import __version__
from klamm.kafka_client.errors import CLOSED, ConnectionLostError, UnreadableResponseError
from klamm.lazy_dataclass import dataclass
from klamm.protocol.codec import decode, encode
from klamm.protocol.errors import ErrorCode, ProtocolError, UnsupportedVersionError, error_name
from klamm.protocol.frames import has_tagged_header
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.primitives import skip_tagged_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from klamm.kafka_client.connection.buffers import BufferPool, FrameBuffer
    from klamm.kafka_client.connection.transport import Transport
    from klamm.protocol.schema import Message

Response = TypeVar("Response", bound="Message")

_SIZE: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">hhi")
_MAX_FRAME_BYTES: Final = 512 * 1024 * 1024
_OTHER_PROTOCOLS: Final = {
    b"\x15\x03": "TLS: set security.protocol=SSL or SASL_SSL",
    b"HTTP": "HTTP: is this the port of a Kafka listener?",
}
"""First bytes of servers that do not speak Kafka's protocol, such as a TLS alert. Read as the size of a response they
would be far above that of a broker's first one.
"""
_READS_PER_TURN: Final = 16
_API_VERSIONS_VERSION: Final = 3


@dataclass(slots=True)
class _Waiting:
    correlation_id: int
    response_class: type[Any]
    version: int
    on_response: Callable[[Any, FrameBuffer], None]
    sent_at: float
    is_whole: bool
    on_unreadable: Callable[[UnreadableResponseError, FrameBuffer], None] | None


class Connection:
    """A connection and its requests in flight. Thread-confined: the owner selects and calls ``read`` and ``write``.

    ``on_response`` is called with the decoded message and the memory of its frame. Records in the message are views of
    that memory, so a callback that keeps them must call ``retain``. The connection releases its own reference after the
    call.
    """

    def __init__(self, transport: Transport, *, client_id: str, pool: BufferPool, software_name: str = "klamm") -> None:
        self._transport = transport
        self._software_name = software_name
        self._client_id = client_id.encode()
        self._pool = pool
        self._correlation_ids = itertools.count()
        self._out: deque[memoryview] = deque()
        self._waiting: deque[_Waiting] = deque()
        self._head = bytearray(_SIZE.size)
        self._frame: FrameBuffer | None = None
        self._frame_bytes = 0
        self._filled = 0
        self.versions: Mapping[int, tuple[int, int]] = {}
        """First and last version per API key that the broker offers."""
        self.features: Mapping[str, tuple[int, int]] = {}
        """Lowest and highest version per feature that the broker supports (KIP-584)."""
        self.finalized_features: Mapping[str, int] = {}
        """Level per feature that the cluster has finalized."""
        self.round_trip_s = float("inf")
        """Time in seconds of the broker's first response. Infinite before it."""
        self._moved_at = float("-inf")
        """Monotonic time at which the socket last accepted or delivered a byte, in seconds."""
        self.closed = False
        self.login_due_at = float("inf")
        """Time of the next re-authentication, on the monotonic clock."""

    def fileno(self) -> int:
        """Return the file descriptor to select on."""
        return self._transport.fileno()

    @property
    def in_flight(self) -> int:
        """Number of requests without a response so far."""
        return len(self._waiting)

    @property
    def wants_write(self) -> bool:
        """Return whether bytes are waiting to be sent."""
        return bool(self._out)

    def oldest_wait_s(self, now: float) -> float:
        """Return how long the oldest request in flight has been waiting, in seconds."""
        return now - self._waiting[0].sent_at if self._waiting else 0.0

    def silent_s(self, now: float) -> float:
        """Return for how long a request has been in flight and no byte was sent or received, in seconds.

        A large request or response on a slow link takes long, but is not silent.
        """
        return now - max(self._waiting[0].sent_at, self._moved_at) if self._waiting else 0.0

    def handshake(self, timeout_s: float) -> None:
        """Request the API versions of the broker (ApiVersions).

        Raises:
            ConnectionLostError: The broker does not respond, or not with its versions.
        """
        request = ApiVersionsRequest(client_software_name=self._software_name, client_software_version=__version__)
        asked_at = time.monotonic()
        response = self.call(request, ApiVersionsResponse, version=_API_VERSIONS_VERSION, timeout_s=timeout_s)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            response = self.call(ApiVersionsRequest(), ApiVersionsResponse, version=0, timeout_s=timeout_s)
        if response.error_code != ErrorCode.NONE:
            raise ConnectionLostError(f"ApiVersions: {error_name(response.error_code)}")
        self.round_trip_s = time.monotonic() - asked_at
        self.versions = offered_versions(response)
        self.features = {
            feature.name: (feature.min_version, feature.max_version) for feature in response.supported_features
        }
        self.finalized_features = {feature.name: feature.max_version_level for feature in response.finalized_features}

    def version_of(self, request_class: type[Message], *, at_most: int = 32767, at_least: int = 0) -> int:
        """Return the highest version that both sides support.

        Raises:
            UnsupportedVersionError: There is no common version.
        """
        return negotiate(request_class, self.versions, min_version=at_least, max_version=at_most)

    def submit(
        self,
        request_class: type[Message],
        version: int,
        body: Sequence[bytes | bytearray | memoryview],
        response_class: type[Response],
        on_response: Callable[[Response, FrameBuffer], None],
        *,
        is_whole: bool = False,
        on_unreadable: Callable[[UnreadableResponseError, FrameBuffer], None] | None = None,
    ) -> None:
        """Queue a request. Nothing is copied, so the buffers must not change until the response arrives.

        Args:
            request_class: Class of the request.
            version: Version of the request and the response.
            body: Encoded body of the request.
            response_class: Class that decodes the response.
            on_response: Callback for the response.
            is_whole: Whether to reject a response with extra bytes after its end. Needed for API keys that two APIs
                share.
            on_unreadable: Callback for a response that cannot be decoded. The connection stays usable: the end of the
                frame is known. None: the connection is closed, and ``read`` raises the error.
        """
        correlation_id = next(self._correlation_ids) & 0x7FFFFFFF
        flexible = request_class.is_flexible(version)
        header = bytearray(_SIZE.size)
        header += _HEADER.pack(request_class.API_KEY, version, correlation_id)
        header += struct.pack(">h", len(self._client_id)) + self._client_id + (b"\0" if flexible else b"")
        _SIZE.pack_into(header, 0, len(header) - _SIZE.size + sum(map(len, body)))
        self._out.append(memoryview(header))
        self._out.extend(memoryview(part) for part in body)
        self._waiting.append(
            _Waiting(correlation_id, response_class, version, on_response, time.monotonic(), is_whole, on_unreadable)
        )

    def call(
        self, request: Message, response_class: type[Response], *, version: int | None = None, timeout_s: float
    ) -> Response:
        """Send a small request and wait for its response. Responses to earlier requests are handled meanwhile.

        Raises:
            ConnectionLostError: No response arrived within ``timeout_s``.
            UnsupportedVersionError: The broker does not offer the API.
        """
        answers: list[Response] = []
        chosen = self.version_of(type(request)) if version is None else version
        self.submit(
            type(request), chosen, [encode(request, chosen)], response_class, lambda answer, _: answers.append(answer)
        )
        self.wait_for(lambda: bool(answers), timeout_s=timeout_s, what=type(request).__name__)
        return answers[0]

    def hand_over(self) -> Transport:
        """Return the byte stream for another use. No request is in flight, and this object must not be used again."""
        if self._waiting or self._out or self._filled:
            raise RuntimeError("A connection with requests in flight cannot be handed over")
        return self._transport

    def wait_for(self, answered: Callable[[], bool], *, timeout_s: float, what: str) -> None:
        """Drive only this connection until ``answered`` returns true.

        Raises:
            ConnectionLostError: The connection broke, or ``timeout_s`` has passed. The connection is closed in both
                cases.
        """
        deadline = time.monotonic() + timeout_s
        while not answered():
            if self.closed:  # by the end that came with an earlier response
                raise ConnectionLostError(CLOSED)
            left = deadline - time.monotonic()
            if left <= 0:
                self.close()
                raise ConnectionLostError(f"No response to {what} within {timeout_s:g} s")
            try:
                for _, events in wait_for_events([self], left):
                    self.drive(events)
            except ConnectionLostError:
                # A broker that rejects a login sends the reason and closes the connection immediately.
                if not answered():
                    raise

    def drive(self, events: int) -> None:
        """Write and read according to the events of a poll.

        Raises:
            ConnectionLostError: The connection broke.
        """
        if events & select.POLLOUT:
            self.write()
        if events & ~select.POLLOUT:
            self.read()

    def write(self) -> None:
        """Send as many bytes as the socket accepts now.

        Raises:
            ConnectionLostError: The connection broke.
        """
        try:
            while self._out:
                sent = self._transport.send_views(list(itertools.islice(self._out, 512)))
                if sent == 0:
                    return
                self._moved_at = time.monotonic()
                self._drop_sent(sent)
        except OSError as error:
            self._lose(error)

    def _drop_sent(self, sent: int) -> None:
        out = self._out
        while out and sent >= len(out[0]):
            sent -= len(out.popleft())
        if sent:
            out[0] = out[0][sent:]

    def read(self) -> None:
        """Read the available bytes and dispatch complete responses.

        Raises:
            ConnectionLostError: The connection broke, or the bytes are not a valid response.
        """
        try:
            reads = 0
            while self._read_once():
                reads += 1
                if reads >= _READS_PER_TURN and not self._transport.pending():
                    return
        except UnreadableResponseError:
            raise
        except (OSError, ProtocolError) as error:
            self._lose(error)

    def _read_once(self) -> bool:
        """Read once. Returns False if no more bytes are available now."""
        into, wanted = (self._head, _SIZE.size) if self._frame is None else (self._frame.data, self._frame_bytes)
        count = self._transport.receive_into(memoryview(into)[self._filled : wanted])
        if count is None:
            return False
        if count == 0:
            raise ConnectionResetError(CLOSED)
        self._moved_at = time.monotonic()
        self._filled += count
        if self._filled < wanted:
            return True
        self._filled = 0
        if self._frame is None:
            (size,) = _SIZE.unpack(self._head)
            for start, protocol in _OTHER_PROTOCOLS.items():
                if self._head.startswith(start) and self.round_trip_s == float("inf"):
                    raise ProtocolError(f"The answer looks like {protocol}")
            if not _SIZE.size <= size <= _MAX_FRAME_BYTES:
                raise ProtocolError(f"Frame of {size} bytes is outside {_SIZE.size}..{_MAX_FRAME_BYTES}")
            self._frame, self._frame_bytes = self._pool.take(size), size
        else:
            frame, self._frame = self._frame, None
            self._answer(frame)
        return True

    def _answer(self, frame: FrameBuffer) -> None:
        if not self._waiting:
            raise ProtocolError("Response without a request in flight")
        waiting = self._waiting.popleft()
        view = memoryview(frame.data)[: self._frame_bytes]
        (correlation_id,) = _SIZE.unpack_from(view)
        if correlation_id != waiting.correlation_id:
            raise ProtocolError(f"Response with correlation id {correlation_id}, expected {waiting.correlation_id}")
        response_class: type[Message] = waiting.response_class
        flexible = has_tagged_header(response_class, waiting.version)
        try:
            offset = skip_tagged_fields(view, _SIZE.size, len(view)) if flexible else _SIZE.size
        except IndexError as error:
            raise ProtocolError("A response ends within its header") from error
        version = response_version(response_class, waiting.version, view, offset)
        try:
            response = decode(response_class, version, view, offset, is_whole=waiting.is_whole)
        except ProtocolError as error:
            unreadable = UnreadableResponseError(f"Cannot decode {response_class.__name__}: {error}")
            unreadable.__cause__ = error
            if waiting.on_unreadable is None:
                self.close()
                raise unreadable from error
            waiting.on_unreadable(unreadable, frame)
        else:
            waiting.on_response(response, frame)
        frame.release()

    def _lose(self, error: Exception) -> None:
        self.close()
        raise ConnectionLostError(str(error)) from error

    def close(self) -> None:
        """Close the connection. Requests in flight get no response."""
        if not self.closed:
            self.closed = True
            self._transport.close()
            self._out.clear()
            self._waiting.clear()


class Pollable(Protocol):
    """Connection, as a loop that waits for several of them sees it."""

    @property
    def wants_write(self) -> bool:
        """Return whether bytes wait to be sent."""
        ...

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        ...

    def drive(self, events: int) -> None:
        """Process the events of the descriptor."""
        ...


AnyPollable = TypeVar("AnyPollable", bound=Pollable)


def wait_for_events(connections: Iterable[AnyPollable], timeout_s: float) -> list[tuple[AnyPollable, int]]:
    """Wait until a connection can be read, or written if it wants that. Return these connections with their events.

    Args:
        connections: Open connections.
        timeout_s: Time limit in seconds. Empty: none of them could be read or written within it.
    """
    by_descriptor = {connection.fileno(): connection for connection in connections}
    poll = select.poll()
    for descriptor, connection in by_descriptor.items():
        poll.register(descriptor, select.POLLIN | (select.POLLOUT if connection.wants_write else 0))
    return [(by_descriptor[descriptor], events) for descriptor, events in poll.poll(math.ceil(timeout_s * 1000))]


def response_version(response_class: type[Message], version: int, view: memoryview, body: int) -> int:
    """Return the version of a response: that of the request, but 0 if ApiVersions is rejected (KIP-511).

    Args:
        response_class: Class of the response.
        version: Version of the request.
        view: Bytes of the response.
        body: Position of its body.
    """
    is_rejected = int.from_bytes(view[body : body + 2]) == ErrorCode.UNSUPPORTED_VERSION
    return 0 if response_class is ApiVersionsResponse and is_rejected else version


def api_versions_request(software_version: str, *, is_repeated: bool = False) -> tuple[ApiVersionsRequest, int]:
    """Return the request for the versions that a broker offers, and its version.

    Args:
        software_version: Version of the client.
        is_repeated: Whether the broker has rejected the first version, as those before Kafka 2.4 do.
    """
    if is_repeated:
        return ApiVersionsRequest(), 0
    request = ApiVersionsRequest(client_software_name="klamm", client_software_version=software_version)
    return request, _API_VERSIONS_VERSION


def offered_versions(response: ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    """Return the first and last version of each API that a broker offers."""
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


def negotiate(
    request_class: type[Message],
    offered: Mapping[int, tuple[int, int]],
    *,
    min_version: int = 0,
    max_version: int = 0x7FFF,
) -> int:
    """Return the highest version that the broker, the schema and the caller support.

    Args:
        request_class: The message to send.
        offered: First and last version per API key, from the broker's ApiVersions response.
        min_version: Lowest version that can carry the request.
        max_version: Highest version that the caller supports.

    Raises:
        UnsupportedVersionError: The broker does not offer the API, or no usable version of it.
    """
    name = request_class.__name__
    if request_class.API_KEY not in offered:
        raise UnsupportedVersionError(f"The broker does not offer {name} (key {request_class.API_KEY})")
    first, last = offered[request_class.API_KEY]
    lowest = max(first, min_version, request_class.VERSIONS[0])
    highest = min(last, max_version, request_class.VERSIONS[1])
    if lowest > highest:
        raise UnsupportedVersionError(
            f"The broker offers {name} {first}-{last}, but this call requires a version in "
            f"{max(min_version, request_class.VERSIONS[0])}-{min(max_version, request_class.VERSIONS[1])}"
        )
    return highest
