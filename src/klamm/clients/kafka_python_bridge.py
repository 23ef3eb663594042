"""Adapter that presents a klamm message as a request to kafka-python's ``KafkaConnection``.

``KafkaProtocol`` requires of a request: ``API_KEY``, ``API_VERSION``, ``with_header``, ``encode``,
``expect_response``, and a ``header`` that knows the response class. The response class is klamm's too, so that API keys
50 and 51 can be SCRAM for kafka-python and KIP-649 for klamm in one process.
"""

from __future__ import annotations

from struct import Struct as Packer
from typing import Any, Generic, TypeVar

from klamm.protocol.codec import decode, encode
from klamm.protocol.errors import ProtocolError
from klamm.protocol.primitives import skip_tagged_fields
from klamm.protocol.schema import Message

AnyResponse = TypeVar("AnyResponse", bound=Message)

API_VERSIONS_KEY = 18
_HEADER = Packer(">hhi")
_INT32 = Packer(">i")
_INT16 = Packer(">h")


class BridgedResponse(Generic[AnyResponse]):
    """A response, or the error that decoding raised, which kafka-python must not mistake for its own failure."""

    __slots__ = ("_content",)

    def __init__(self, content: AnyResponse | ProtocolError) -> None:
        self._content = content

    @property
    def throttle_time_ms(self) -> int:
        """Throttle time that ``KafkaConnection`` reads to honour quotas (KIP-219); 0 if the message has none."""
        return max(0, getattr(self._content, "throttle_time_ms", 0))

    def unwrap(self) -> AnyResponse:
        """Return the message.

        Raises:
            ProtocolError: The bytes could not be decoded.
        """
        if isinstance(self._content, ProtocolError):
            raise self._content
        return self._content

    def __repr__(self) -> str:
        """Return the message type without its values, which may be secrets: kafka-python logs this text."""
        return f"{type(self).__name__}({type(self._content).__name__})"


class _Correlation:
    """Correlation id of a response header, which ``KafkaProtocol`` compares with the request's."""

    __slots__ = ("correlation_id",)

    def __init__(self, correlation_id: int) -> None:
        self.correlation_id = correlation_id


class _ResponseReader(Generic[AnyResponse]):
    """Response decoder in the place of a kafka-python response class."""

    def __init__(self, response_class: type[AnyResponse], version: int, *, is_whole: bool) -> None:
        self._response_class = response_class
        self._version = version
        self._is_whole = is_whole

    def parse_header(self, buffer: Any) -> _Correlation:
        return _Correlation(_INT32.unpack(buffer.read(4))[0])

    def decode(self, buffer: Any) -> BridgedResponse[AnyResponse]:
        body = memoryview(buffer.read())
        try:
            offset = 0
            if self._response_class.is_flexible(self._version) and self._response_class.API_KEY != API_VERSIONS_KEY:
                offset = skip_tagged_fields(body, 0, len(body))
            return BridgedResponse(decode(self._response_class, self._version, body, offset, is_whole=self._is_whole))
        except (ProtocolError, IndexError) as error:
            return BridgedResponse(ProtocolError(f"Cannot decode {self._response_class.__name__}: {error}"))


class _Header:
    """Request header, kept by ``KafkaProtocol`` until the response arrives."""

    __slots__ = ("_reader", "api_key", "api_version", "correlation_id")

    def __init__(self, correlation_id: int, api_key: int, api_version: int, reader: _ResponseReader[Any]) -> None:
        self.correlation_id = correlation_id
        self.api_key = api_key
        self.api_version = api_version
        self._reader = reader

    def get_response_class(self) -> _ResponseReader[Any]:
        return self._reader


class BridgedRequest(Generic[AnyResponse]):
    """A request in one version. It can be sent only once.

    Args:
        message: The request.
        response_class: Class that decodes the response.
        version: A version that the broker offers.
        is_whole: Whether to reject a response with extra bytes after its end. Needed for API keys that two APIs share.
    """

    name: str
    API_KEY: int
    API_VERSION: int

    def __init__(
        self, message: Message, response_class: type[AnyResponse], version: int, *, is_whole: bool = False
    ) -> None:
        self.name = type(message).__name__
        self.API_KEY = message.API_KEY
        self.API_VERSION = version
        self.header: _Header | None = None
        self._message = message
        self._reader = _ResponseReader(response_class, version, is_whole=is_whole)
        self._client_id: str | None = None

    def expect_response(self) -> bool:
        """Return True: every request has a response, because Produce with ``acks`` 0 is never sent this way."""
        return True

    def with_header(self, correlation_id: int = 0, client_id: str | None = None) -> None:
        """Set the header fields that ``KafkaProtocol`` provides."""
        self.header = _Header(correlation_id, self.API_KEY, self.API_VERSION, self._reader)
        self._client_id = client_id

    def encode(self, version: int | None = None, *, header: bool = False, framed: bool = False) -> bytes:
        """Return the bytes of the request, optionally with header and length."""
        del version  # the version was chosen when the request was created
        parts = bytearray()
        if header:
            if self.header is None:
                raise ValueError("Call with_header before encode")
            parts += _HEADER.pack(self.API_KEY, self.API_VERSION, self.header.correlation_id)
            parts += _nullable_string(self._client_id)
            if self._message.is_flexible(self.API_VERSION):
                parts.append(0)
        parts += encode(self._message, self.API_VERSION)
        return (_INT32.pack(len(parts)) if framed else b"") + bytes(parts)

    def __repr__(self) -> str:
        """Return the message type without its values, which may be secrets: kafka-python logs this text."""
        return f"{self.name}(version={self.API_VERSION})"


def _nullable_string(text: str | None) -> bytes:
    if text is None:
        return _INT16.pack(-1)
    data = text.encode()
    return _INT16.pack(len(data)) + data
