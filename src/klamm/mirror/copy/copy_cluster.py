"""Connections of a copier to one cluster, with pauses between attempts to reach the same broker."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.errors import ConnectionLostError
from klamm.retries import backoff_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.kafka_client.connection.buffers import BufferPool
    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.connection.transport import ConnectionSettings

_MAX_PAUSE_S: Final = 30.0
_MAX_DOUBLINGS: Final = 3
_MOMENT_S: Final = 0.05


class _Failure(NamedTuple):
    """Failed attempts in a row to reach one broker."""

    failures: int
    retry_at: float
    """Monotonic time of the next attempt, in seconds."""
    reason: str
    """Error of the latest attempt."""


class _Attempt:
    """Attempt to reach an unreachable broker again, in a thread of its own."""

    def __init__(self, open_now: Callable[[], Connection], clock: Callable[[], float]) -> None:
        self._open = open_now
        self._clock = clock
        self.began = self.ended = clock()
        self.connection: Future[Connection] = Future()
        """New connection. Fails with ``ConnectionLostError``."""

    def run(self) -> None:
        """Open the connection. Blocks."""
        try:
            opened = self._open()
        except Exception as error:  # noqa: BLE001 - also those of a token provider
            self.ended = self._clock()
            is_lost = isinstance(error, ConnectionLostError)
            self.connection.set_exception(error if is_lost else ConnectionLostError(f"{type(error).__name__}: {error}"))
        else:
            self.connection.set_result(opened)


def _close_opened(attempt: Future[Connection]) -> None:
    """Close the connection of an attempt that has succeeded."""
    if attempt.exception() is None:
        attempt.result().close()


def _in_thread(work: Callable[[], None]) -> None:
    """Run a function in a thread, and wait a moment: a broker that rejects or accepts connections does so at once."""
    thread = threading.Thread(target=work, name="connect", daemon=True)
    thread.start()
    thread.join(_MOMENT_S)


class CopyCluster(Cluster):
    """Connections to a cluster that do not let one unreachable broker delay the partitions of all others.

    Opening a connection blocks the copier's only thread: for 5 s if the broker's host drops packets, and for 10 s if
    the broker accepts the connection but does not answer. So after a failed attempt, calls for this address fail at
    once for as long as the attempt took. Each further failure doubles that pause, up to eight times the duration of the
    attempt and 30 s. A broker that rejects connections at once, such as one that restarts, is hardly paused at all.
    Only the first attempt blocks: while a broker counts as unreachable, further ones run in a thread of their own.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        pool: BufferPool,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], None] = _in_thread,
    ) -> None:
        super().__init__(settings, pool)
        self._clock = clock
        self._start = start
        self._attempts: dict[tuple[str, int], _Attempt] = {}
        """Attempts to reach unreachable brokers again, by address."""
        self._failures: dict[tuple[str, int], _Failure] = {}
        """Brokers that could not be reached, by address."""

    def connection(self, node_id: int, lane: int = 0) -> Connection:
        """Return the connection to a node, and open it if necessary and not paused.

        Args:
            node_id: Node id of the broker.
            lane: Index of the connection to the broker.

        Raises:
            ConnectionLostError: The node is unreachable, unknown, or was unreachable a short time ago.
        """
        opened, address = self._connections.get((node_id, lane)), self._addresses.get(node_id)
        if address is None or (opened is not None and not opened.closed):
            return super().connection(node_id, lane)
        failure, began = self._failures.get(address), self._clock()
        if failure is not None:
            return self._again(node_id, lane, address, failure)
        try:
            return super().connection(node_id, lane)
        except ConnectionLostError as error:
            self._failed(address, began, self._clock(), error)
            raise

    def _is_reachable(self, address: tuple[str, int], /) -> bool:
        return address not in self._failures

    def _again(self, node_id: int, lane: int, address: tuple[str, int], failure: _Failure) -> Connection:
        """Return the connection to a broker that was unreachable, if another attempt has reached it."""
        if address not in self._attempts:
            if self._clock() < failure.retry_at:
                raise ConnectionLostError(failure.reason)
            self._begin_attempt(address, failure)
        attempt = self._attempts[address]
        if not attempt.connection.done():
            raise ConnectionLostError(failure.reason)
        del self._attempts[address]
        try:
            opened = attempt.connection.result()
        except ConnectionLostError as error:
            self._failed(address, attempt.began, attempt.ended, error)
            raise
        del self._failures[address]
        self._connections[node_id, lane] = opened
        return opened

    def _begin_attempt(self, address: tuple[str, int], failure: _Failure) -> None:
        # The responses of a login are too small to be taken from the pool, which is confined to this thread.
        attempt = _Attempt(partial(self._open, *address), self._clock)
        try:
            self._start(attempt.run)
        except RuntimeError as error:  # no thread can be started
            raise ConnectionLostError(f"{failure.reason}; {error}") from error
        self._attempts[address] = attempt

    def _failed(self, address: tuple[str, int], began: float, ended: float, error: ConnectionLostError) -> None:
        """Pause the attempts to reach a broker."""
        before = self._failures.get(address)
        failures = 0 if before is None else before.failures
        pause_s = backoff_s(min(failures, _MAX_DOUBLINGS), ended - began, _MAX_PAUSE_S)
        self._failures[address] = _Failure(failures + 1, ended + pause_s, str(error))

    def close(self) -> None:
        """Close all connections, also those that are being opened."""
        super().close()
        for attempt in self._attempts.values():
            attempt.connection.add_done_callback(_close_opened)
        self._attempts.clear()
