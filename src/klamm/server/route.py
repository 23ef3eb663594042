"""Route of a request: API, decoding and handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from klamm.lazy_dataclass import dataclass
from klamm.protocol.codec import ELEMENTS_GRANTED_AT_MOST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from klamm.protocol.api import Api
    from klamm.protocol.schema import Message


class Range(Protocol):
    """Bytes of a response that are read from a log file when they are sent."""

    def __len__(self) -> int:
        """Return the size in bytes."""
        ...

    def read(self, start: int, size: int) -> bytes:
        """Return ``size`` bytes from ``start`` on, or fewer at the end.

        Raises:
            StorageError: The file cannot be read.
        """
        ...

    def send_to(self, socket: int, start: int, size: int) -> int:
        """Copy up to ``size`` bytes from ``start`` on to a socket inside the kernel, and return how many it took.

        Raises:
            BlockingIOError: The socket takes none at present.
            ConnectionError: The peer has closed the connection.
            StorageError: The file cannot be read.
        """
        ...


Piece: TypeAlias = "bytes | bytearray | memoryview | Range"


MAX_CONFIG_ELEMENTS: Final = 1_000_000
"""Maximum number of elements in requests that alter configs. Mirrors alter the configs of all topics in one request:
thirty configs of 20,000 topics or more.
"""


class RawResponse(Protocol):
    """Response that supplies its encoded bytes, so that they are not copied."""

    def is_flexible(self, version: int) -> bool:
        """Return whether the response header has tagged fields."""
        ...

    def buffers(self, version: int) -> Sequence[Piece]:
        """Return the encoded body in pieces."""
        ...

    def error_codes(self) -> Iterable[int]:
        """Return the error code of each part, including 0. Metrics count the others."""
        ...


Response: TypeAlias = "Message | RawResponse | None"
"""None means that no response is sent (Produce with acks=0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Served API: its versions, the decoding of its requests and its handler."""

    api: Api
    request: type[Message]
    handle: Callable[[Any, Any], Awaitable[Response]]
    """Handler: takes the request and the context that the server's ``new_context`` creates."""
    may_wait: bool = False
    """Whether the handler may wait until other clients act. Such a request is canceled when its connection ends."""
    is_mostly_data: bool = False
    """Whether a large request consists of few elements and record data that is not decoded."""
    most_elements: int = ELEMENTS_GRANTED_AT_MOST
    """Maximum number of strings and structs in a request, whatever the size of its frame."""
    rejected_below: int = 0
    """First served version. Lower ones are announced for clients that require them; using one closes the connection."""
    decode_raw: Callable[[int, memoryview, int], Any] | None = None
    """Decoder used instead of the codec, None for the codec. It gets ``(api_version, frame, position)``, where
    ``position`` is after ``client_id`` and before the header's tagged fields, and raises ProtocolError.
    """
