"""What all groups of admin calls share: connections, and results that are settled in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from klamm.protocol.errors import KafkaApiError

if TYPE_CHECKING:
    import functools
    from collections.abc import Collection, Coroutine
    from concurrent.futures import Future

    from klamm.admin.results import PerKeyResult
    from klamm.connections.pool import ConnectionPool, Deadline

Key = TypeVar("Key")


class AdminCalls:
    """Connections to a cluster, and the way from a coroutine on their thread to futures per key."""

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
        """Run work that settles ``keys`` of the result; what it leaves open fails with its error."""

        def finish(done: Future[None]) -> None:
            error = done.exception() or KafkaApiError("The response of the broker has no entry for this resource")
            result.fail_open(error, keys)

        async def run(deadline: Deadline) -> None:
            await work(self._pool, deadline)

        self._pool.submit(run, timeout_ms=timeout_ms).add_done_callback(finish)
