"""Forwarded requests of one connection: their place in the queue, their responses, and values enforced in passing."""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING

from klamm.client_configs.enforcement import ALL_REPLICAS
from klamm.gateway.frames.addresses import replace_address
from klamm.gateway.frames.exchange import RelayedExchange
from klamm.gateway.frames.wire import REQUEST_HEAD, RESPONSE_HEAD, end_of_client_id, response_body, response_frame
from klamm.protocol.codec import decode
from klamm.protocol.errors import ProtocolError
from klamm.server.codec import LARGE_FRAME_BYTES, coded
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klamm.gateway.frames.addresses import AddressBook, AddressCarrier
    from klamm.gateway.frames.cutter import Piece
    from klamm.gateway.frames.exchange import OnResponse
    from klamm.gateway.frames.peer import ConnectionWatch
    from klamm.gateway.frames.wire import RequestHead
    from klamm.gateway.relay.api import RelayedApi
    from klamm.gateway.relay.open_relay import OpenRelay
    from klamm.protocol.schema import Message


class AddressRewriter:
    """Treatment of the responses of one API in one version: their broker addresses are replaced.

    Args:
        addresses: The addresses in a response.
        version: Version of the responses.
        book: Addresses of the gateway.
    """

    __slots__ = ("_addresses", "_book", "_version")

    def __init__(self, addresses: AddressCarrier, version: int, book: AddressBook) -> None:
        self._addresses = addresses
        self._version = version
        self._book = book

    def __call__(self, frame: memoryview) -> Sequence[Piece]:
        """Return a response frame with replaced addresses, in pieces.

        Raises:
            ProtocolError: The frame is malformed.
        """
        return self._addresses.rewrite_frame(frame, self._version, self._book)

    def is_slow(self, frame: memoryview) -> bool:
        """Return whether this takes milliseconds. Clients choose the number of coordinators in a response."""
        return len(frame) >= LARGE_FRAME_BYTES and self._addresses.decodes_all(frame)

    async def rewrite_slowly(self, frame: memoryview) -> Sequence[Piece]:
        """Return the same while other connections are served. The frame must not be in the read buffer.

        Raises:
            ProtocolError: The frame is malformed.
        """
        kind, version = self._addresses.response, self._version
        body = response_body(kind, version, frame)
        response = await coded(partial(decode, kind, version, frame, body), len(frame))
        addressed = TimeSlice().over(self._addresses.addressed(response))
        left = {node_id async for node_id, at in addressed if not replace_address(node_id, at, self._book)}
        if left:
            await coded(partial(self._addresses.leave_out, response, left), len(frame))
        _, correlation_id = RESPONSE_HEAD.unpack_from(frame)
        return [await coded(partial(response_frame, response, version, correlation_id), len(frame))]


class DroppedResponse:
    """Treatment of the response to a request whose acks were raised from 0: it is dropped, as the client expects none.

    An error in the response closes the connection, as Kafka does with ``acks=0``. Without it, a producer would send to
    a former leader until its metadata expires.

    Args:
        check: Function that raises ProtocolError at an error; see ``AcksField.check_response``.
        version: Version of the response.
    """

    __slots__ = ("_check", "_version")

    def __init__(self, check: Callable[[memoryview, int], None], version: int) -> None:
        self._check = check
        self._version = version

    def __call__(self, frame: memoryview) -> Sequence[Piece]:
        """Drop a response frame.

        Raises:
            ProtocolError: The response reports an error, or is malformed.
        """
        self._check(frame, self._version)
        return ()

    def is_slow(self, frame: memoryview) -> bool:
        """Return whether this takes milliseconds."""
        return len(frame) >= LARGE_FRAME_BYTES

    async def rewrite_slowly(self, frame: memoryview) -> Sequence[Piece]:
        """Do the same while other connections are served. The frame must not be in the read buffer.

        Raises:
            ProtocolError: As in ``__call__``.
        """
        return await coded(partial(self, frame), len(frame))


class Forwarder:
    """Forwarded requests of one connection.

    Args:
        relay: Relay of the connection.
        book: Addresses of the gateway.
        watch: Observer of the connection, which enforces values; None without one.
    """

    def __init__(self, relay: OpenRelay, book: AddressBook, watch: ConnectionWatch | None) -> None:
        self._relay = relay
        self._book = book
        self._watch = watch

    def expect(self, api: RelayedApi, head: RequestHead) -> OnResponse | None:
        """Add a forwarded request to the queue of those in flight, and return the treatment of its response."""
        on_response: OnResponse | None = None
        if api.addresses is not None and head.api_version >= api.addresses.first_version:
            on_response = AddressRewriter(api.addresses, head.api_version, self._book)
        elif self._watch is not None and api.patch_response is not None:
            on_response = partial(self.patch_response, api, head.client_id)
        in_flight = head.correlation_id if on_response is None else RelayedExchange(head.correlation_id, on_response)
        self._relay.exchanges.append(in_flight)
        return on_response

    def expect_unread(self, head: RequestHead) -> None:
        """Add a forwarded request whose response is relayed as it is."""
        self._relay.exchanges.append(head.correlation_id)

    def replace_addresses(self, api: RelayedApi, response: Message) -> None:
        """Replace the broker addresses in a decoded response."""
        if api.addresses is not None:
            api.addresses.replace_in(response, self._book)

    # -- values that are enforced for the watch

    def enforce_acks(self, api: RelayedApi, head: RequestHead, frame: memoryview) -> tuple[int, int, int]:
        """Write the enforced ``acks`` into a frame if they differ from the requested ones.

        Args:
            api: The API.
            head: Header of the request.
            frame: First bytes of the request.

        Returns:
            The requested and the enforced acks, and the position after them. They are all replicas in other APIs.

        Raises:
            IndexError: The frame ends before ``acks``.
            struct.error: The frame ends before ``acks``.
            ProtocolError: The request is malformed.
        """
        if api.acks is None:
            return ALL_REPLICAS, ALL_REPLICAS, 0
        # The length in the frame differs from that of the client id if that is not valid UTF-8.
        id_length: int = REQUEST_HEAD.unpack_from(frame)[-1]
        acks, end = api.acks.read(frame, head.api_version, end_of_client_id(id_length))
        enforced = acks if self._watch is None else self._watch.acks(acks, head.client_id)
        if enforced != acks:
            api.acks.put(frame, end, enforced)
        return acks, enforced, end

    def drop_if_raised(self, api: RelayedApi, head: RequestHead, acks: int, enforced: int) -> None:
        """Drop the response to a request whose acks were raised from 0."""
        if acks == 0 and (dropped := dropped_response(api, head, enforced)) is not None:
            self._relay.exchanges.append(dropped)

    def patch_request(self, api: RelayedApi, head: RequestHead, frame: memoryview, body: int) -> None:
        """Write enforced values into a request.

        A malformed one is not left to the upstream: Kafka accepts lengths of more than 32 bits, for example.

        Raises:
            ProtocolError: The request is malformed, or the frame ends before the values.
        """
        if self._watch is not None and api.patch_request is not None:
            try:
                api.patch_request(self._watch, head, frame, body)
            except (IndexError, struct.error) as error:
                raise ProtocolError(f"A request with key {api.key} ends before its enforced value") from error

    def patch_response(self, api: RelayedApi, client_id: str | None, frame: memoryview) -> Sequence[Piece]:
        """Write enforced values into a response frame.

        Raises:
            ProtocolError: The response is malformed.
        """
        if self._watch is not None and api.patch_response is not None:
            try:
                api.patch_response(self._watch, client_id, frame)
            except (IndexError, struct.error) as error:
                raise ProtocolError(f"A response with key {api.key} ends before its enforced value") from error
        return [frame]

    def with_enforced_acks(self, api: RelayedApi, head: RequestHead, encoded: bytes) -> tuple[bytearray, int]:
        """Return the frame of a request that a filter made, with enforced acks, and these acks."""
        frame = bytearray(encoded)
        _, enforced, _ = self.enforce_acks(api, head, memoryview(frame))
        return frame, enforced


def has_response(api: RelayedApi, head: RequestHead, frame: memoryview, body: int) -> bool:
    """Return whether the client expects a response to a complete request.

    Raises:
        ProtocolError: The request is malformed.
    """
    try:
        return api.acks is None or api.acks.read(frame, head.api_version, body)[0] != 0
    except (IndexError, struct.error) as error:
        raise ProtocolError(f"A request with key {api.key} ends before its acks") from error


def dropped_response(api: RelayedApi, head: RequestHead, acks: int) -> RelayedExchange | None:
    """Return the exchange of a request to which the client expects no response; None if there is none by its acks."""
    if api.acks is None or acks == 0:
        return None
    return RelayedExchange(head.correlation_id, DroppedResponse(api.acks.check_response, head.api_version))
