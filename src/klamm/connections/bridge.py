"""Dress a klamm message as the kind of request that kafka-python's ``KafkaConnection`` sends.

What ``KafkaProtocol`` asks of a request: ``API_KEY``, ``API_VERSION``, ``with_header``, ``encode``,
``expect_response`` and a ``header`` that knows the response class. The response class is ours as well, so that
keys 50 and 51 can be SCRAM for kafka-python and KIP-649 for klamm in one process.
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
    """A response that may turn out to be unreadable; kafka-python must not see that as its own failure."""

    __slots__ = ("_content",)

    def __init__(self, content: AnyResponse | ProtocolError) -> None:
        self._content = content

    @property
    def throttle_time_ms(self) -> int:
        """What ``KafkaConnection`` looks at to honour quotas (KIP-219); 0 when there is none."""
        return max(0, getattr(self._content, "throttle_time_ms", 0))

    def unwrap(self) -> AnyResponse:
        """Return the message.

        Raises:
            ProtocolError: The bytes were not such a message.
        """
        if isinstance(self._content, ProtocolError):
            raise self._content
        return self._content

    def __repr__(self) -> str:
        """Name the message without its values: they may be secrets, and kafka-python logs this."""
        return f"{type(self).__name__}({type(self._content).__name__})"


class _Correlation:
    """The part of a response header that ``KafkaProtocol`` compares."""

    __slots__ = ("correlation_id",)

    def __init__(self, correlation_id: int) -> None:
        self.correlation_id = correlation_id


class _ResponseReader(Generic[AnyResponse]):
    """Stands where kafka-python expects a response class."""

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
            return BridgedResponse(ProtocolError(f"Unreadable {self._response_class.__name__}: {error}"))


class _Header:
    """The request header as ``KafkaProtocol`` keeps it until the response arrives."""

    __slots__ = ("_reader", "api_key", "api_version", "correlation_id")

    def __init__(self, correlation_id: int, api_key: int, api_version: int, reader: _ResponseReader[Any]) -> None:
        self.correlation_id = correlation_id
        self.api_key = api_key
        self.api_version = api_version
        self._reader = reader

    def get_response_class(self) -> _ResponseReader[Any]:
        return self._reader


class BridgedRequest(Generic[AnyResponse]):
    """One request in one version; good for one sending.

    Args:
        message: The request.
        response_class: What the answer is read as.
        version: A version that the broker offers.
        is_whole: Refuse an answer with bytes behind its end: for keys that two APIs share.
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
        """Tell that an answer comes: everything but Produce with ``acks`` 0, which is never sent this way."""
        return True

    def with_header(self, correlation_id: int = 0, client_id: str | None = None) -> None:
        """Take the header fields that ``KafkaProtocol`` gives."""
        self.header = _Header(correlation_id, self.API_KEY, self.API_VERSION, self._reader)
        self._client_id = client_id

    def encode(self, version: int | None = None, *, header: bool = False, framed: bool = False) -> bytes:
        """Return the bytes of the request, with header and length as asked."""
        del version  # chosen when the request was made
        parts = bytearray()
        if header:
            if self.header is None:
                raise ValueError("with_header comes first")
            parts += _HEADER.pack(self.API_KEY, self.API_VERSION, self.header.correlation_id)
            parts += _nullable_string(self._client_id)
            if self._message.is_flexible(self.API_VERSION):
                parts.append(0)
        parts += encode(self._message, self.API_VERSION)
        return (_INT32.pack(len(parts)) if framed else b"") + bytes(parts)

    def __repr__(self) -> str:
        """Name the request without its values: they may be secrets, and kafka-python logs this."""
        return f"{self.name}(version={self.API_VERSION})"


def _nullable_string(text: str | None) -> bytes:
    if text is None:
        return _INT16.pack(-1)
    data = text.encode()
    return _INT16.pack(len(data)) + data
