"""Connections of a copier to one cluster, with pauses between attempts to reach the same broker."""

from __future__ import annotations

import time
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


class _Failure(NamedTuple):
    """Failed attempts in a row to reach one broker."""

    failures: int
    retry_at: float
    """Monotonic time of the next attempt, in seconds."""
    reason: str
    """Error of the latest attempt."""


class CopyCluster(Cluster):
    """Connections to a cluster that do not let one unreachable broker delay the partitions of all others.

    Opening a connection blocks the copier's only thread: for 5 s if the broker's host drops packets, and for 10 s if
    the broker accepts the connection but does not answer. So after a failed attempt, calls for this address fail at
    once for as long as the attempt took. Each further failure doubles that pause, up to eight times the duration of the
    attempt and 30 s. A broker that rejects connections at once, such as one that restarts, is hardly paused at all.
    """

    def __init__(
        self, settings: ConnectionSettings, pool: BufferPool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(settings, pool)
        self._clock = clock
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
        if failure is not None and began < failure.retry_at:
            raise ConnectionLostError(failure.reason)
        try:
            opened = super().connection(node_id, lane)
        except ConnectionLostError as error:
            failures, now = 0 if failure is None else failure.failures, self._clock()
            pause_s = backoff_s(min(failures, _MAX_DOUBLINGS), now - began, _MAX_PAUSE_S)
            self._failures[address] = _Failure(failures + 1, now + pause_s, str(error))
            raise
        self._failures.pop(address, None)
        return opened
