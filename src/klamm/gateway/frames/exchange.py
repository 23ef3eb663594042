"""Requests in flight of one connection, each with the treatment of its response, and runs of requests that begin alike.

Most requests of a connection begin like the one before: same API, version and client id, and for Produce the same acks.
They differ in their size and correlation id only, so comparing a few bytes replaces parsing the header.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    from klamm.gateway.frames.cutter import Piece
    from klamm.gateway.frames.wire import RequestHead


OnResponse: TypeAlias = "Callable[[memoryview], Sequence[Piece]]"
"""Takes a whole response frame, size included; returns the pieces to send to the client, none to send nothing."""


class RelayedExchange:
    """One request that was forwarded, or answered by the gateway, and waits for its turn in the order of responses.

    Args:
        correlation_id: Correlation id that the response must have.
        on_response: Function that treats the upstream's response. None relays it unread.
        answer: Response of the gateway itself. None means that the upstream responds.
        kept_bytes: Bytes that the gateway keeps for it, estimated.
        is_call: Whether the response is for a filter, so that the client gets no byte of it.
    """

    __slots__ = ("answer", "correlation_id", "is_call", "kept_bytes", "on_response")

    def __init__(
        self,
        correlation_id: int,
        on_response: OnResponse | None = None,
        *,
        answer: bytes | None = None,
        kept_bytes: int = 0,
        is_call: bool = False,
    ) -> None:
        self.is_call = is_call
        self.kept_bytes = kept_bytes
        self.correlation_id = correlation_id
        self.on_response = on_response
        self.answer = answer


InFlight: TypeAlias = int | RelayedExchange
"""A request in flight. A correlation id alone means that the response is relayed unread."""
BEGINNING_AT: Final = 12
"""Position after the correlation id, from which on the beginnings of requests are compared."""


class ForwardedRequest:
    """A request that was forwarded unread.

    Args:
        head: Header of the request.
        beginning: Bytes after the correlation id: the client id, and of a Produce request all up to ``acks``.
        count_key: Key of its counter.
        max_bytes: Maximum size of a request in bytes.
        acks: Acks of a Produce request, None for other APIs. With 0 there is no response.
        on_response: Function that treats the response; None to relay it unread.
    """

    __slots__ = (
        "_beginning",
        "_has_response",
        "_kind",
        "_layout",
        "_max_bytes",
        "_min_bytes",
        "_on_response",
        "acks",
        "api_key",
        "client_id",
        "count_key",
    )

    def __init__(
        self,
        head: RequestHead,
        beginning: bytes,
        count_key: tuple[int, str | None],
        max_bytes: int,
        *,
        acks: int | None,
        on_response: OnResponse | None,
    ) -> None:
        self._layout = Struct(f">ihhi{len(beginning)}s")
        self._kind = head.api_key, head.api_version
        self._beginning = beginning
        self._min_bytes = self._layout.size
        self._max_bytes = max_bytes
        self._has_response = acks != 0
        self._on_response = on_response
        self.api_key = head.api_key
        self.client_id = head.client_id
        self.count_key = count_key
        self.acks = acks

    def is_at(self, chunk: memoryview, position: int, end: int) -> bool:
        """Return whether the request at a position is forwarded in the same way."""
        return self.run(chunk, position, end, None, 1)[1] == 1

    def run(
        self, chunk: memoryview, position: int, end: int, exchanges: deque[InFlight] | None, most: int
    ) -> tuple[int, int]:
        """Find the requests from a position on that are forwarded in the same way.

        Args:
            chunk: Bytes of the stream.
            position: Position of a request in the chunk.
            end: Position after the available bytes.
            exchanges: Queue to which requests with a response are added; None to leave them out.
            most: Maximum number of requests.

        Returns:
            The position after the last of them, beyond ``end`` if it is incomplete, and their number.
        """
        unpack, beginning, on_response = self._layout.unpack_from, self._beginning, self._on_response
        api_key, api_version = self._kind
        min_bytes, max_bytes = self._min_bytes, self._max_bytes
        is_queued = self._has_response and exchanges is not None
        last = end - min_bytes
        count = 0
        while position <= last and count < most:
            size, key, version, correlation_id, start = unpack(chunk, position)
            if start != beginning or key != api_key or version != api_version or not min_bytes <= size <= max_bytes:
                break
            if is_queued and exchanges is not None:
                exchanges.append(
                    correlation_id if on_response is None else RelayedExchange(correlation_id, on_response)
                )
            position += size + 4
            count += 1
        return position, count
