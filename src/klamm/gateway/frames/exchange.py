"""Requests in flight of one connection, each with the treatment of its response."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klamm.gateway.frames.cutter import Piece

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
