"""Broker addresses in responses, replaced by addresses of the gateway. Node ids stay the same.

The gateway may have no port for a broker. Responses then leave this broker out, but not its partitions: clients treat
them as partitions without a leader, retry, and use all other partitions.

``gateway.apis`` has the APIs whose responses carry addresses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from klamm.gateway.frames.wire import SIZE_BYTES, response_body
from klamm.lazy_dataclass import dataclass
from klamm.protocol.codec import decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from klamm.gateway.frames.cutter import Piece
    from klamm.protocol.schema import Message


class AddressBook(Protocol):
    """Addresses of the gateway by node id."""

    def advertised(self, node_id: int, host: str, port: int) -> tuple[str, int] | None:
        """Return host and port of the gateway for a broker; None if the gateway has no port for it.

        Args:
            node_id: Node id of the broker.
            host: Host of the broker itself. The book stores it, so that the gateway can connect to the broker.
            port: Port of the broker itself.
        """
        ...


Body: TypeAlias = "Sequence[bytes | bytearray | memoryview]"
Rewriter: TypeAlias = "Callable[[memoryview, int, AddressBook], Body | None]"
"""Takes the body of a response, its version and the address book; returns the body with replaced addresses in pieces,
or None if it has none. It raises ProtocolError when the body is malformed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressCarrier:
    """API whose responses carry broker addresses."""

    response: type[Message]
    addressed: Callable[[Any], Iterable[tuple[int, Any]]]
    """Takes a response; returns the node ids in it, each with the struct that holds its host and port."""
    leave_out: Callable[[Any, Collection[int]], None]
    """Takes a response and node ids for which the gateway has no port; removes these brokers from the response."""
    first_version: int = 0
    """First version with addresses."""
    rewrite_body: Rewriter | None = None
    """Faster way to rewrite the body of a response than to decode all of it."""
    decodes_all: Callable[[memoryview], bool] = lambda _: True
    """Takes a response frame; returns whether all of it must be decoded."""

    def replace_in(self, response: Message, book: AddressBook) -> None:
        """Replace the addresses in a response in place, and leave out brokers for which the gateway has no port."""
        left = {node_id for node_id, at in self.addressed(response) if not replace_address(node_id, at, book)}
        if left:
            self.leave_out(response, left)

    def rewrite(self, body: memoryview, version: int, book: AddressBook) -> Body:
        """Return the body of a response with replaced addresses, in pieces.

        Raises:
            ProtocolError: The body is malformed.
        """
        if self.rewrite_body is not None:
            pieces = self.rewrite_body(body, version, book)
            return [body] if pieces is None else pieces
        return self.rewrite_all(body, version, book)

    def rewrite_all(self, body: memoryview, version: int, book: AddressBook) -> Body:
        """Return the same by decoding the whole body."""
        message = decode(self.response, version, body)
        self.replace_in(message, book)
        return [encode(message, version)]

    def rewrite_frame(self, frame: memoryview, version: int, book: AddressBook) -> Sequence[Piece]:
        """Return a response frame with replaced addresses, in pieces.

        Raises:
            ProtocolError: The frame is malformed.
        """
        body = response_body(self.response, version, frame)
        received = frame[body:]
        pieces = self.rewrite(received, version, book)
        if len(pieces) == 1 and pieces[0] is received:
            return [frame]
        size = sum(map(len, pieces)) + body - SIZE_BYTES
        return [size.to_bytes(SIZE_BYTES), frame[SIZE_BYTES:body], *pieces]


def replace_address(node_id: int, at: Any, book: AddressBook) -> bool:
    """Replace the address in a struct that holds host and port, if it is that of a broker.

    Returns:
        False if the gateway has no port for the broker.
    """
    if node_id >= 0 and at.host:
        advertised = book.advertised(node_id, at.host, at.port)
        if advertised is None:
            return False
        at.host, at.port = advertised
    return True
