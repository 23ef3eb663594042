"""Shared base of all groups of admin calls: the connection pool, and results settled in the background."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from klamm.protocol.errors import KafkaApiError

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine
    from concurrent.futures import Future

    from klamm.admin.results import PerKeyResult
    from klamm.kafka_client.pool.pool import ConnectionPool

Key = TypeVar("Key")


class AdminCalls:
    """Base class that runs coroutines on the connection pool's thread and settles one future per key."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    def _start(
        self,
        result: PerKeyResult[Key, Any],
        work: functools.partial[Coroutine[Any, Any, None]],
        *,
        keys: Collection[Key] | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Start work that settles ``keys`` of the result.

        If it raises, the keys that are still open fail with its error.
        """

        def finish(done: Future[None]) -> None:
            error = done.exception() or KafkaApiError("The broker's response has no entry for this resource")
            result.fail_open(error, keys)

        self._pool.submit(functools.partial(work, self._pool), timeout_ms=timeout_ms).add_done_callback(finish)
