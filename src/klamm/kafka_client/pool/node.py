"""Broker of a connection pool: its address, the connection to it, and the backoff after failures."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from klamm.kafka_client.errors import ConnectionLostError
from klamm.retries import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.kafka_client.pool.deadline import Deadline
    from klamm.kafka_client.pool.pooled_connection import PooledConnection


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
