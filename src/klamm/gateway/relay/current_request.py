"""The request of a connection that the gateway works at: decoded, waiting for a filter, or being served."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.gateway.frames.cutter import STOP, TAKE
from klamm.gateway.frames.exchange import RelayedExchange
from klamm.gateway.frames.wire import SIZE_BYTES, RequestHead, decode_request, replaced_frame, response_frame
from klamm.gateway.relay.calls import RelayedCall
from klamm.gateway.relay.filter import Serve
from klamm.gateway.relay.forwarding import dropped_response, has_response
from klamm.protocol.api import api_name
from klamm.protocol.errors import ProtocolError, TooManyElementsError
from klamm.server.codec import ELEMENTS_AT_ONCE, LARGE_FRAME_BYTES, coded

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.gateway.frames.cutter import Cut
    from klamm.gateway.relay.api import RelayedApi
    from klamm.gateway.relay.filter import Close, Filter, FilterContext, Wait
    from klamm.gateway.relay.forwarding import Forwarder
    from klamm.gateway.relay.logins import ConnectionLogin
    from klamm.gateway.relay.open_relay import OpenRelay
    from klamm.gateway.relay.sessions import UpstreamSession
    from klamm.gateway.relay.shared import Shared
    from klamm.protocol.schema import Message
    from klamm.server.attempt import ApiError

MAX_DECODED_BYTES: Final = 32 * 1024 * 1024
"""Largest frame that is decoded. Frames that are forwarded unread are limited by ``socket.request.max.bytes``."""
_DECODED_WEIGHT: Final = 8
"""Bytes of memory for each byte of a decoded request."""


class ReceivedRequest(NamedTuple):
    """A complete request that is not forwarded unread."""

    api: RelayedApi
    head: RequestHead
    frame: memoryview
    """The whole frame, size included."""
    body: int
    """Position after the client id."""


class CurrentRequest:
    """The request of a connection that the gateway works at. Used on the event loop only.

    Args:
        shared: Objects that all relays share.
        relay: Relay of the connection.
        login: Login of the connection.
        forwarder: Forwarded requests of the connection.
    """

    def __init__(self, shared: Shared, relay: OpenRelay, login: ConnectionLogin, forwarder: Forwarder) -> None:
        self._shared = shared
        self._relay = relay
        self._login = login
        self._forwarder = forwarder
        self._calls: RelayedCall | None = None
        self._wait_result: object = None
        """Result of the work for which a filter waited before its decision on the next request; else None."""
        self._request: Any = None
        """The next request, if it was decoded before its filter is asked, or is asked again; else None.

        It refers to bytes of its own: the frame is in a buffer that all connections share.
        """
        self._occupied = 0
        """Bytes of the budget that the request takes."""

    @property
    def is_repeated(self) -> bool:
        """Return whether the next request was seen before, because it was decoded in a thread or a filter waited."""
        return self._wait_result is not None or self._request is not None

    def is_long(self, frame: memoryview) -> bool:
        """Return whether the next request was decoded in a thread, so that it must be encoded in one, too."""
        return self._request is not None and len(frame) >= LARGE_FRAME_BYTES

    def context(self, head: RequestHead, frame: tuple[memoryview, int] | None = None) -> RelayedCall:
        """Return the context for the filters of a request."""
        result, self._wait_result = self._wait_result, None
        return RelayedCall(self._shared, self._relay, head, self._login, frame=frame, wait_result=result)

    def read(
        self, request_class: type[Message], head: RequestHead, frame: memoryview, body: int, *, is_whole: bool = False
    ) -> Any:
        """Return the decoded request; None while the codec thread decodes one with many elements.

        Raises:
            ProtocolError: The request is malformed.
        """
        if isinstance(self._request, request_class):
            return self._request
        decode = partial(decode_request, request_class, head, is_whole=is_whole)
        if len(frame) < LARGE_FRAME_BYTES:
            self._request = decode(memoryview(bytes(frame)), body)
            return self._request
        with contextlib.suppress(TooManyElementsError):
            return decode(frame, body, max_elements=ELEMENTS_AT_ONCE)
        kept = memoryview(bytes(frame))  # the thread reads it after this callback

        async def read() -> None:
            try:
                self._request = await coded(partial(decode, kept, body), len(kept))
            except ProtocolError as error:
                self._relay.end_requests(error)
            finally:
                self._vacate()

        self._occupy(_DECODED_WEIGHT * len(frame))
        self._relay.run(read())
        return None

    def forget(self) -> None:
        """Drop the decoded request, because its filters have decided."""
        self._request = None

    def wait(self, wait: Wait) -> Cut:
        """Stop the requests until some work is done, and have the filter decide about this one again."""

        async def work() -> None:
            try:
                self._wait_result = await wait.work()
            finally:
                self._vacate()

        self._occupy(wait.kept_bytes)
        self._relay.run(work())
        return STOP, 0, ()

    def reply(self, make: Callable[[], bytes], head: RequestHead, size: int) -> Cut:
        """Respond to a request of ``size`` bytes; in the codec thread if it is long.

        Args:
            make: Function that returns the frame of the response. It may raise ProtocolError to close the connection.
            head: Header of the request.
            size: Size of the request in bytes. The response is about as long.
        """

        async def answer() -> None:
            try:
                self._expect_answer(head, await coded(make, size))
            except ProtocolError as error:
                self._relay.end_requests(error)

        if size >= LARGE_FRAME_BYTES:
            self._relay.run(answer())
        else:
            self._expect_answer(head, make())
        return TAKE, size, ()

    def reject(self, received: ReceivedRequest, request: Message, error: ApiError) -> Cut:
        """Respond to a request with an error.

        Raises:
            ProtocolError: No response to this request can report the error.
        """
        return self.reply(partial(_rejection, received, request, error), received.head, len(received.frame))

    def close(self, close: Close, head: RequestHead, size: int) -> Cut:
        """Send a last response after a delay, then close the connection."""
        answer = response_frame(close.response, head.api_version, head.correlation_id)

        async def end() -> None:
            await asyncio.sleep(close.delay_s)
            self._relay.exchanges.append(RelayedExchange(head.correlation_id, answer=answer))
            self._relay.drain()

        self._relay.run(end())
        return TAKE, size, ()

    def serve(self, serve: Serve, used: Filter, received: ReceivedRequest, request: Message) -> Cut:
        """Respond to a request when an asynchronous function has returned the response.

        Args:
            serve: The function.
            used: Filter of the request.
            received: The request. Its frame is not in the read buffer.
            request: The decoded request.

        Raises:
            ProtocolError: The requests of all connections take too much memory.
        """
        self._occupy(_DECODED_WEIGHT * len(received.frame))
        self._relay.run(self._serve(serve, used, received, request))
        return TAKE, len(received.frame), ()

    def forward_long(
        self, request: Message, merge: Callable[[Any], Message] | None, used: Filter, received: ReceivedRequest
    ) -> Cut:
        """Forward the message with which a filter replaced a long request, while other connections are served.

        No further request of the connection is read until the response is complete.

        Args:
            request: The message.
            merge: Function that changes the response; None to relay it.
            used: Filter of the request.
            received: The request.

        Raises:
            ProtocolError: The requests of all connections take too much memory.
        """
        self._occupy(_DECODED_WEIGHT * len(received.frame))
        is_answered = has_response(*received)
        self._relay.run(self._forward_long(request, merge, used, received, is_answered=is_answered))
        return TAKE, len(received.frame), ()

    async def _forward_long(
        self,
        request: Message,
        merge: Callable[[Any], Message] | None,
        used: Filter,
        received: ReceivedRequest,
        *,
        is_answered: bool,
    ) -> None:
        api, head, size = received.api, received.head, len(received.frame)
        try:
            encoded = await coded(partial(replaced_frame, head, request), size)
            frame, enforced = self._forwarder.with_enforced_acks(api, head, encoded)
            if not is_answered:
                self._relay.send_upstream(frame, dropped_response(api, head, enforced))
                return
        finally:
            self._vacate()

        async def handle(request: Message, context: FilterContext) -> Message:
            response: Message = await context.forward(request)
            return response if merge is None else await coded(partial(merge, response), size)

        self._occupy(_DECODED_WEIGHT * size)
        await self._serve(Serve(handle=handle), used, received._replace(frame=memoryview(frame)), request)

    async def _serve(self, serve: Serve, used: Filter, received: ReceivedRequest, request: Message) -> None:
        head = received.head
        calls = RelayedCall(
            self._shared, self._relay, head, self._login, response=used.response, received=(request, received.frame)
        )
        self._calls = calls
        try:
            context: FilterContext = calls
            for feature in self._shared.features:
                context = feature.observe(context)
            response = await serve.handle(request, context)
            self._forwarder.replace_addresses(received.api, response)
            work = partial(response_frame, response, head.api_version, head.correlation_id)
            answer = await coded(work, calls.longest)
        finally:
            self._calls = None
            self._vacate()
        self._expect_answer(head, answer)

    def renew(self, session: UpstreamSession) -> None:
        """Log in again at the upstream before the next request."""
        self._calls = RelayedCall(self._shared, self._relay, RequestHead(0, -1, 0, 0, None), self._login)
        self._relay.run(session.renew(self._calls.call))

    def on_close(self) -> None:
        """Fail the calls in flight, because the connection is closed."""
        if self._calls is not None:
            self._calls.lose()
        self._vacate()

    def _expect_answer(self, head: RequestHead, answer: bytes) -> None:
        self._relay.expect(RelayedExchange(head.correlation_id, answer=answer, kept_bytes=len(answer)))

    def _occupy(self, count: int) -> None:
        """Count the memory of a request until it is answered or forwarded.

        Raises:
            ProtocolError: The requests of all connections take too much. This one is not counted: its connection stays
                open until the earlier ones are answered.
        """
        self._occupied = count
        try:
            self._shared.memory.request_budget.change(0, count, self._relay)
        except ProtocolError:
            self._vacate()
            raise

    def _vacate(self) -> None:
        self._shared.memory.request_budget.change(self._occupied, 0, self._relay)
        self._occupied = 0


def decodable(head: RequestHead) -> int:
    """Return the size of the frame of a request that must be decoded.

    Raises:
        ProtocolError: It is too large.
    """
    total = head.size + SIZE_BYTES
    if total > MAX_DECODED_BYTES:
        raise ProtocolError(f"A request of {total} bytes with key {head.api_key} is too large to be decoded")
    return total


def rejected(head: RequestHead, error: ApiError) -> ProtocolError:
    """Return the error that closes a connection whose request cannot be rejected by a response."""
    name = f"{api_name(head.api_key)} of client id {(head.client_id or '')[:100]!r}"
    return ProtocolError(f"{name} is rejected: {error.error_message}")


def _rejection(received: ReceivedRequest, request: Message, error: ApiError) -> bytes:
    head = received.head
    response = received.api.rejection(request, head.api_version, error)
    if response is None:
        raise rejected(head, error)
    return response_frame(response, head.api_version, head.correlation_id)
