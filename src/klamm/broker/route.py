"""How a request reaches its handler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from klamm.protocol.codec import ELEMENTS_GRANTED_AT_MOST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from klamm.broker.context import RequestContext
    from klamm.protocol.api import Api
    from klamm.protocol.schema import Message


class Range(Protocol):
    """Bytes of a response that are still on disk."""

    def __len__(self) -> int:
        """Return the size in bytes."""
        ...

    def read(self, start: int, size: int) -> bytes:
        """Return ``size`` bytes, or as many as there are, from ``start`` on.

        Raises:
            StorageError: They cannot be read.
        """
        ...


Piece: TypeAlias = "bytes | bytearray | memoryview | Range"


MOST_ELEMENTS_OF_CONFIGS: Final = 1_000_000
"""Mirrors alter the configs of all topics by one request: thirty configs of 20,000 topics or more."""


class RawResponse(Protocol):
    """A response that brings its own bytes, so that they are not copied."""

    def is_flexible(self, version: int) -> bool:
        """Tell whether the response header has tagged fields."""
        ...

    def buffers(self, version: int) -> Sequence[Piece]:
        """Return the body in pieces."""
        ...

    def error_codes(self) -> Iterable[int]:
        """Return the error code of each part, 0 among them; metrics count the others."""
        ...


Response: TypeAlias = "Message | RawResponse | None"
"""None: nothing is answered (Produce with acks=0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One API key: its versions, how its body is read, who answers."""

    api: Api
    request: type[Message]
    handle: Callable[[Any, RequestContext], Awaitable[Response]]
    is_mostly_data: bool = False
    """A large request has few parts, and the rest is records that are not looked into."""
    most_elements: int = ELEMENTS_GRANTED_AT_MOST
    """Strings and structs that a request may list, however large its frame is."""
    refused_below: int = 0
    """Versions below are announced, for clients that look for them, and close the connection when they are used."""
    decode_raw: Callable[[int, memoryview, int], Any] | None = None
    """Reads ``(api_version, frame, position)`` from behind ``client_id``, before any tagged fields of the header,
    instead of the codec; raises ProtocolError."""
