"""The HTTP side of a mirror: ``/metrics`` for Prometheus, ``/`` for people, ``/status.json`` for programs."""

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
    """Serves pages from a thread of its own while it is entered.

    Args:
        host: Where to listen.
        port: 0 means: any free one; ``address`` tells which.
        pages: By path, what makes the page (content type, text); called from the server's thread.

    Raises:
        OSError: The address can not be had.
    """

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], tuple[str, str]]]) -> None:
        self._listener = HttpListener(pages)
        self._socket = socket.create_server((host, port), family=_family(host))
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        """Host and port."""
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror-watch", daemon=True)

    def __enter__(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        self._listening.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop answering."""
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
    """Wait for the end of all connections: browsers open some before they need them."""
    if waiting := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(waiting, timeout=_END_S)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
