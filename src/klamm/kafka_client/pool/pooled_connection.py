"""Open connection that an asyncio event loop drives: any number of calls at a time, answered in order."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, TypeVar

from klamm.kafka_client.errors import ConnectionLostError, UnreadableResponseError
from klamm.protocol.codec import encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.kafka_client.connection.buffers import FrameBuffer
    from klamm.kafka_client.connection.connection import Connection
    from klamm.protocol.schema import Message

AnyResponse = TypeVar("AnyResponse", bound="Message")


class PooledConnection:
    """An open connection, driven by the event loop."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop, request_timeout_s: float) -> None:
        self._connection = connection
        self._loop = loop
        self._request_timeout_s = request_timeout_s
        self._overdue: dict[asyncio.Future[Any], asyncio.TimerHandle] = {}
        """Requests in flight, with the timer that takes the broker for dead."""
        self._throttled_until = 0.0
        self._is_retired = False
        self._is_writing = False
        self.version_of = connection.version_of
        self.versions = connection.versions
        self.features = connection.features
        loop.add_reader(connection.fileno(), self._on_readable)

    @property
    def in_flight(self) -> int:
        """Number of requests without a response so far."""
        return self._connection.in_flight

    @property
    def is_usable(self) -> bool:
        """Return whether requests may be sent: the connection is open and its SASL session does not expire soon."""
        return not self._connection.closed and time.monotonic() < self._connection.login_due_at

    async def call(
        self,
        request: Message,
        response_class: type[AnyResponse],
        version: int,
        *,
        timeout_s: float = float("inf"),
        is_whole: bool = False,
    ) -> AnyResponse:
        """Send a request once and return its response.

        A call that ends at its own limit leaves the connection open: other calls wait for their responses on it. Only
        a broker that does not respond within ``request.timeout.ms`` is taken for dead.

        Args:
            request: The request.
            response_class: Class that decodes the response.
            version: Version of both.
            timeout_s: Limit of this call in seconds.
            is_whole: See ``Connection.submit``.

        Raises:
            UnreadableResponseError: The response could not be decoded.
            ConnectionLostError: The connection broke, or no response arrived within ``request.timeout.ms``; then the
                connection is closed.
            TimeoutError: No response arrived within ``timeout_s``.
        """
        if timeout_s <= 0:
            raise TimeoutError(f"{type(request).__name__}: no time left to send it")
        try:
            async with asyncio.timeout(None if timeout_s == float("inf") else timeout_s):
                return await self._call(request, response_class, version, is_whole=is_whole)
        except TimeoutError:
            raise TimeoutError(f"No response to {type(request).__name__} within {timeout_s:g} s") from None

    async def _call(
        self, request: Message, response_class: type[AnyResponse], version: int, *, is_whole: bool
    ) -> AnyResponse:
        if (throttled_s := self._throttled_until - time.monotonic()) > 0:
            await asyncio.sleep(throttled_s)  # the broker asked for a pause (KIP-219)
        if self._connection.closed:
            raise ConnectionLostError("The connection was closed")
        answer: asyncio.Future[AnyResponse] = self._loop.create_future()

        def on_response(response: AnyResponse | UnreadableResponseError, _: FrameBuffer) -> None:
            self._overdue.pop(answer).cancel()
            self._throttled_until = max(self._throttled_until, _throttled_until(response))
            if answer.done():
                return  # the call has ended at its limit
            if isinstance(response, UnreadableResponseError):
                answer.set_exception(response)
            else:
                answer.set_result(response)

        body = [encode(request, version)]
        lost = ConnectionLostError(f"No response to {type(request).__name__} within {self._request_timeout_s:g} s")
        self._overdue[answer] = self._loop.call_later(self._request_timeout_s, self.lose, lost)
        self._connection.submit(
            type(request), version, body, response_class, on_response, is_whole=is_whole, on_unreadable=on_response
        )
        self._drive(self._connection.write)
        try:
            return await answer
        finally:
            self._end_if_retired()

    def retire(self) -> None:
        """Close the connection after the last response. Another one has taken its place."""
        self._is_retired = True
        self._end_if_retired()

    def _end_if_retired(self) -> None:
        if self._is_retired and all(answer.done() for answer in self._overdue):
            self.lose(ConnectionLostError("The connection was closed"))

    def lose(self, error: ConnectionLostError) -> None:
        """Close the connection and fail its requests in flight."""
        if not self._connection.closed:
            self._unregister()
            self._connection.close()
        overdue, self._overdue = self._overdue, {}
        for answer, timer in overdue.items():
            timer.cancel()
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # for asyncio, which else logs errors that no call waits for

    def _on_readable(self) -> None:
        self._drive(self._connection.read)

    def _on_writable(self) -> None:
        self._drive(self._connection.write)

    def _drive(self, step: Callable[[], None]) -> None:
        """Read or write. If the connection breaks, it has closed itself: the descriptor is unregistered before."""
        descriptor = self._connection.fileno()
        try:
            step()
        except ConnectionLostError as error:
            self._unregister(descriptor)
            self.lose(error)
            return
        if self._connection.wants_write != self._is_writing:
            self._is_writing = self._connection.wants_write
            if self._is_writing:
                self._loop.add_writer(descriptor, self._on_writable)
            else:
                self._loop.remove_writer(descriptor)

    def _unregister(self, descriptor: int | None = None) -> None:
        with contextlib.suppress(OSError, ValueError):
            descriptor = self._connection.fileno() if descriptor is None else descriptor
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)


def _throttled_until(response: object) -> float:
    """Return when the broker accepts the next request, on the monotonic clock."""
    return time.monotonic() + getattr(response, "throttle_time_ms", 0) / 1000
