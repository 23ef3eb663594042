"""Interface of the relay of one client connection for what handles its requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Coroutine, Mapping

    from klamm.gateway.frames.cutter import Piece
    from klamm.gateway.frames.exchange import InFlight, RelayedExchange
    from klamm.gateway.frames.peer import Peer
    from klamm.gateway.relay.sessions import UpstreamSession
    from klamm.protocol.errors import ProtocolError


class OpenRelay(Protocol):
    """Relay of one client connection, as its requests and their filters need it."""

    peer: Peer
    exchanges: deque[InFlight]
    """Requests in flight, oldest first."""
    upstream_versions: Mapping[int, tuple[int, int]] | None
    """Versions by API key that the upstream offers on this connection; None before ApiVersions was answered."""
    session: UpstreamSession | None
    """Session of the gateway's own login on this connection; None if it does not expire, or there is none."""
    held_bytes: int
    """Bytes that the gateway keeps for requests in flight, estimated: above all its own responses."""

    def expect(self, exchange: RelayedExchange) -> None:
        """Add a request in flight for which the gateway keeps bytes."""
        ...

    @property
    def has_responses_due(self) -> bool:
        """Return whether a request is in flight, or its response has arrived in part."""
        ...

    @property
    def is_busy(self) -> bool:
        """Return whether the gateway works at a request."""
        ...

    def is_turn_over(self) -> bool:
        """Return whether other connections have their turn next. If so, this one continues after them."""
        ...

    def run(self, work: Coroutine[None, None, None]) -> None:
        """Run the work at a request; no further request is read until it is done."""
        ...

    def keep_versions(self, versions: Mapping[int, tuple[int, int]]) -> None:
        """Set ``upstream_versions``."""
        ...

    def end_requests(self, error: ProtocolError) -> None:
        """End the stream of requests at a malformed one. Those before it are still answered."""
        ...

    def send_upstream(self, frame: Piece, exchange: RelayedExchange | None) -> None:
        """Send a request of the gateway itself; ``exchange`` is None if there is no response.

        Raises:
            ConnectionLostError: The connection is closed.
        """
        ...

    @property
    def kept_bytes(self) -> int:
        """Number of bytes that the two sides have not taken so far."""
        ...

    def expire(self, now: float, stuck_s: float, ended_s: float) -> None:
        """Close the connection if it has waited too long for one of its sides."""
        ...

    def drain(self) -> None:
        """Serve the requests received so far, then close."""
        ...

    def give_up(self) -> None:
        """Close the connection, because others need the memory of its requests and responses."""
        ...

    def close(self, reason: str | None) -> None:
        """Close the connection at once."""
        ...
