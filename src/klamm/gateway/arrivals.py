"""Accepted connections until their relays start: admission of the client, and connection to the upstream broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from klamm.gateway.relay import Relay
from klamm.protocol.errors import ProtocolError

if TYPE_CHECKING:
    import socket

    from klamm.gateway.entrance import Entrance
    from klamm.gateway.peer import Peer
    from klamm.gateway.shared import Shared
    from klamm.gateway.upstream import Upstream

logger = logging.getLogger(__name__)

_OPENING_AT_MOST: Final = 512
"""Connections that are being opened to one broker from which no further one is accepted. A broker that does not respond
keeps its own connections waiting only.
"""


class Arrivals:
    """Connections that are being opened. Used on the event loop only.

    Args:
        shared: Objects that all relays share.
        upstream: The upstream cluster.
        entrance: Settings of the clients' side.
    """

    def __init__(self, shared: Shared, upstream: Upstream, entrance: Entrance) -> None:
        self._shared = shared
        self._upstream = upstream
        self._entrance = entrance
        self._opening: set[asyncio.Task[None]] = set()
        self._opening_by_port: Counter[int] = Counter()
        self._is_closed = False

    @property
    def count(self) -> int:
        """Number of connections that are being opened."""
        return len(self._opening)

    def add(self, accepted: socket.socket, peer: Peer) -> None:
        """Serve an accepted connection."""
        port = peer.node_id
        if self._is_closed or self._opening_by_port[port] >= _OPENING_AT_MOST:
            accepted.close()
            return
        accepted.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._open(accepted, peer))
        self._opening.add(task)
        self._opening_by_port[port] += 1
        task.add_done_callback(partial(self._on_opened, port))

    def close(self) -> None:
        """Close the connections that are being opened, and all that are added later."""
        self._is_closed = True
        for task in self._opening:
            task.cancel()

    def _on_opened(self, port: int, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        self._opening_by_port[port] -= 1

    async def _open(self, accepted: socket.socket, peer: Peer) -> None:
        """Open the upstream connection for an accepted one, and start the relay between them."""
        with contextlib.ExitStack() as stack:
            stack.callback(accepted.close)
            try:
                client = await self._entrance.admit(accepted, peer)
            except ProtocolError as error:
                self._refuse(peer, "admission", str(error))
                return
            except (OSError, TimeoutError) as error:
                self._refuse(peer, "handshake", f"no handshake: {error}")
                return
            stack.callback(client.close)
            try:
                upstream, session = await self._upstream.connect(peer.node_id, any_other=peer.is_bootstrap)
            except OSError as error:
                self._refuse(peer, "upstream", str(error))
                return
            stack.pop_all()
        if self._is_closed:
            client.close()
            upstream.close()
            return
        Relay(self._shared, peer, client, upstream, session).start()

    def _refuse(self, peer: Peer, reason: str, message: str) -> None:
        logger.warning("Connection of %s closed: %s", peer.name, message)
        self._shared.refused[reason] += 1
