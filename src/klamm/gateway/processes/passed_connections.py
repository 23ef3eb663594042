"""Connections that the parent process passes to a worker of a gateway, which has no ports of its own."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from klamm.gateway.frames.peer import Peer
from klamm.gateway.processes import control
from klamm.server.listeners import Address

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection

    from klamm.gateway.upstream.topology import Topology

PART: Final = 10_000
"""Characters of a long text in one message. JSON makes at most twelve bytes of each, and client ids have any."""


class PassedConnections:
    """Source of connections in a worker, in place of listening sockets. Used on the event loop only.

    Args:
        end: Socket to the parent.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._topology: Topology | None = None
        self._on_accepted: Callable[[socket.socket, Peer], None] | None = None
        self.on_stop: Callable[[], None] = lambda: None
        self.on_reload: Callable[[], None] = lambda: None
        self.on_status: Callable[[int], None] = lambda _: None
        """Called with the number of a question when the parent asks for the status of this process."""
        self._long_turn = asyncio.Lock()
        self.received = 0
        """Number of connections received."""
        self.is_open = False
        """Whether connections are served."""

    def attach(self, topology: Topology, on_accepted: Callable[[socket.socket, Peer], None]) -> None:
        """Set the topology whose base address the parent announces, and the function that serves a connection."""
        self._topology = topology
        self._on_accepted = on_accepted

    def open(self, _live: Collection[int]) -> None:
        """Start serving connections. The parent listens for the brokers."""
        self.is_open = True
        asyncio.get_running_loop().add_reader(self._end.fileno(), self._receive)

    def close(self) -> None:
        """Stop serving connections."""
        self.is_open = False
        asyncio.get_running_loop().remove_reader(self._end.fileno())

    def add(self, node_id: int) -> None:
        """Report a broker that joined the cluster, so that the parent listens for it."""
        if self._topology is not None:
            at = self._topology.nodes[node_id]
            self.send({"node": [node_id, at.host, at.port]})

    def send(self, message: control.Message) -> None:
        """Send a message to the parent. One that the parent cannot take now is dropped."""
        with contextlib.suppress(OSError):
            control.send(self._end, message)

    async def send_long(self, kind: str, text: str) -> None:
        """Send a text of any length to the parent in parts, and wait while the parent cannot take them.

        Args:
            kind: ``page`` or ``status``.
            text: The text.
        """
        async with self._long_turn:
            starts = range(0, len(text), PART)
            for start in starts:
                is_first, is_last = start == 0, start == starts[-1]
                message = {"part": [kind, text[start : start + PART]], "is_first": is_first, "is_last": is_last}
                with contextlib.suppress(OSError):
                    while not control.send(self._end, message):
                        await self._can_send()
                await asyncio.sleep(0)

    async def _can_send(self) -> None:
        """Wait until the parent has read some messages, or has ended."""
        loop = asyncio.get_running_loop()
        is_writable = asyncio.Event()
        loop.add_writer(self._end.fileno(), is_writable.set)
        try:
            await is_writable.wait()
        finally:
            loop.remove_writer(self._end.fileno())

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.is_open:
                self._on_message(*control.receive(self._end))

    def _on_message(self, message: control.Message | None, received: socket.socket | None) -> None:
        match message:
            case {"open": [str(host), int(port), int(node_id), bool(is_bootstrap)]}:
                self.received += 1
                # without a socket, the process has no file descriptor left
                if received is not None and self._on_accepted is not None:
                    self._on_accepted(received, Peer(host=host, port=port, node_id=node_id, is_bootstrap=is_bootstrap))
            case {"base": [str(host), int(port), int(listen_port)]} if self._topology is not None:
                self._topology.base = Address(host=host, port=port)
                self._topology.listen_port = listen_port
            case {"reload": True}:
                self.on_reload()
            case {"status": int(number)}:
                self.on_status(number)
            case _:  # the parent asks the worker to stop, or has ended
                self.close()
                self.on_stop()
