"""HTTP server of a mirror: ``/metrics`` for Prometheus, ``/`` for browsers, ``/status.json`` for programs."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING, Final, Self

from klamm.monitoring.http import HttpListener

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

_STOP_S: Final = 5.0
_END_S: Final = 1.0


class WatchServer:
    """HTTP server that runs in a separate thread while its context is entered.

    Args:
        host: Address to listen on.
        port: Port to listen on. 0 means any free port; see ``address``.
        pages: Function that returns content type and text, by path. Called in the server's thread.

    Raises:
        OSError: This process cannot listen on the address.
    """

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], tuple[str, str]]]) -> None:
        self._listener = HttpListener(pages)
        self._socket = socket.create_server((host, port), family=_family(host))
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        """Host and port the server is bound to."""
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror-watch", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread and wait until the server listens."""
        self._thread.start()
        self._listening.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the server."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._listener.listen(self._socket))
            self._loop.call_soon(self._listening.set)
            self._loop.run_forever()
            self._loop.run_until_complete(self._listener.close())
            self._loop.run_until_complete(_end_all())
        finally:
            self._loop.close()


async def _end_all() -> None:
    """Wait up to one second for open connections to end. Browsers open connections in advance."""
    if waiting := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(waiting, timeout=_END_S)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
