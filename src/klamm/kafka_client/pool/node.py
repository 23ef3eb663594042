"""Broker of a connection pool: its address, the connection to it, and the backoff after failures.

The event loop drives the connection: any number of calls at a time, answered in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, TypeVar

from klamm.kafka_client.errors import ConnectionLostError, UnreadableResponseError
from klamm.protocol.codec import encode
from klamm.retries import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.kafka_client.connection.buffers import FrameBuffer
    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.kafka_client.pool.calls import Deadline
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
        self.finalized_features = connection.finalized_features
        loop.add_reader(connection.fileno(), self._on_readable)

    @property
    def in_flight(self) -> int:
        """Number of requests without a response so far."""
        return self._connection.in_flight

    @property
    def is_usable(self) -> bool:
        """Return whether requests may be sent: the connection is open and its SASL session does not expire soon."""
        return not self._connection.closed and time.monotonic() < self._connection.login_due_at

    @property
    def is_throttled(self) -> bool:
        """Return whether the broker has asked for a pause that is not over (KIP-219)."""
        return time.monotonic() < self._throttled_until

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
            NotReadyError: The connection broke before the request was sent.
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
            raise NotReadyError("The connection was closed before the request was sent")
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


class NotReadyError(ConnectionLostError):
    """No node can take the request at present."""


class PoolNode:
    """A broker's address, the connection to it, and the backoff after failures."""

    def __init__(
        self,
        address: tuple[str, int],
        open_link: Callable[[str, int], asyncio.Future[PooledConnection]],
        settings: ConnectionSettings,
    ) -> None:
        self.address = address
        self._open_link = open_link
        self._link: PooledConnection | None = None
        self._opening: asyncio.Future[PooledConnection] | None = None
        self._backoff = Backoff(settings.reconnect_backoff_s, settings.reconnect_backoff_max_s)
        self._retry_at = 0.0
        self._is_discarded = False

    @property
    def is_open(self) -> bool:
        """Return whether the node has a connection that can be used."""
        return self._link is not None and self._link.is_usable

    @property
    def in_flight(self) -> int:
        """Number of requests without a response so far."""
        return self._link.in_flight if self._link is not None else 0

    @property
    def is_throttled(self) -> bool:
        """Return whether the next call would have to wait, because the broker throttles the connection."""
        return self._link is not None and self._link.is_usable and self._link.is_throttled

    @property
    def is_ready(self) -> bool:
        """Return whether the node is connected or its last connection attempt has not failed."""
        return self.is_open or not self._backoff.failures

    async def link(self, deadline: Deadline) -> PooledConnection:
        """Return the connection, and open it if necessary, after the backoff.

        Raises:
            ConnectionLostError: It could not be opened, or not before the deadline, or the node is discarded.
        """
        while not (self._link is not None and self._link.is_usable):
            if self._is_discarded:
                raise NotReadyError(f"{self.address[0]}:{self.address[1]}: the broker is no longer at this address")
            if self._opening is None and (backoff_s := self._retry_at - time.monotonic()) > 0:
                await asyncio.sleep(min(backoff_s, deadline.left_s()))
            elif self._opening is None:
                self._opening = self._open_link(*self.address)
                self._opening.add_done_callback(self._on_opened)
            if self._opening is not None:
                return await self._opened(self._opening, deadline)
            if deadline.passed():
                raise NotReadyError(f"{self.address[0]}:{self.address[1]}: cannot be reached")
        return self._link

    async def _opened(self, opening: asyncio.Future[PooledConnection], deadline: Deadline) -> PooledConnection:
        try:
            async with asyncio.timeout(deadline.left_s()):
                return await asyncio.shield(opening)
        except TimeoutError:
            raise NotReadyError(f"{self.address[0]}:{self.address[1]}: no connection in time") from None

    def _on_opened(self, opening: asyncio.Future[PooledConnection]) -> None:
        self._opening = None
        if opening.cancelled():
            return
        if opening.exception() is None:
            if self._link is not None:
                self._link.retire()
            self._link = opening.result()
            self._backoff.reset()
            return
        self._retry_at = time.monotonic() + self._backoff.next_s()

    def take_over(self, other: PoolNode) -> None:
        """Use the open connection of another node, unless this one is open already."""
        if not self.is_open and other._link is not None:
            if self._link is not None:  # its login expires, but its socket is open
                self._link.retire()
            self._link, other._link = other._link, None
            self._backoff.reset()

    def discard(self) -> None:
        """Close the connection for good. Calls that wait for one fail."""
        self._is_discarded = True
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connection. Its requests in flight fail. A later call opens another one."""
        if self._link is not None:
            self._link.lose(ConnectionLostError("The connection was closed"))
        if self._opening is not None:
            self._opening.add_done_callback(_close_opened)


def _close_opened(opening: asyncio.Future[PooledConnection]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().lose(ConnectionLostError("The connection was closed"))
