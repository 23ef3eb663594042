"""Accepted connections until their relays start: admission of the client, and connection to the upstream broker.

The gateway connects to the broker, and logs in there, once the client has sent a byte. Health checks of load balancers
and port scanners send none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final

from klamm.gateway.relay.relay import Relay
from klamm.gateway.relay.stalls import ENDED_S, STUCK_S
from klamm.gateway.relay.streams import until_readable
from klamm.kafka_client.errors import error_words
from klamm.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from klamm.gateway.frames.peer import Peer
    from klamm.gateway.listener.handshake import ClientHandshake
    from klamm.gateway.relay.shared import Shared
    from klamm.gateway.upstream.upstream import Upstream

logger = logging.getLogger(__name__)

_CROWDED_FROM: Final = 512
"""Number of connections of one port that are being opened, from which the oldest one is closed if it is late."""
_LATE_S: Final = 5.0
"""Time in seconds after which a connection is late: it waits for a broker or a client that does not respond. All
clients of a gateway that was restarted come at once, and each is served after some milliseconds.
"""
_AGAIN_S: Final = 5.0
"""Seconds between two attempts to reach a broker for which others stand in."""
_HANDED_BACK_AT_ONCE: Final = 64
"""Connections that end together when their broker is back. Their clients all come again."""
_BETWEEN_S: Final = 0.2
_MAX_OPENING: Final = 4096
"""Maximum number of connections of one port that are being opened. Beyond it, the oldest one is closed at any age."""


class AcceptedConnections:
    """Connections that are being opened. Used on the event loop only.

    Args:
        shared: Objects that all relays share.
        upstream: The upstream cluster.
        handshake: Settings for admission.
    """

    def __init__(self, shared: Shared, upstream: Upstream, handshake: ClientHandshake) -> None:
        self._shared = shared
        self._upstream = upstream
        self._handshake = handshake
        self._opening: defaultdict[int, dict[asyncio.Task[None], float]] = defaultdict(dict)
        """Tasks by node id of the port, oldest first, with the time of their start on the loop's clock."""
        self._stand_ins: dict[int, list[Relay]] = {}
        """Relays to other brokers, by node id of the broker that could not be reached or is not known yet."""
        self._handing_back: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def count(self) -> int:
        """Number of connections that are being opened."""
        return sum(map(len, self._opening.values()))

    def add(self, accepted: socket.socket, peer: Peer) -> None:
        """Serve an accepted connection."""
        if self._is_closed:
            accepted.close()
            return
        opening, loop = self._opening[peer.node_id], asyncio.get_running_loop()
        if len(opening) >= _CROWDED_FROM:
            oldest, began = next(iter(opening.items()))
            if loop.time() - began > _LATE_S or len(opening) >= _MAX_OPENING:
                del opening[oldest]
                oldest.cancel()
                self._shared.figures.closed["crowded"] += 1
        accepted.setblocking(False)
        task = loop.create_task(self._open(accepted, peer))
        opening[task] = loop.time()
        task.add_done_callback(partial(self._on_opened, peer.node_id, accepted))

    def close(self) -> None:
        """Close the connections that are being opened, and all that are added later."""
        self._is_closed = True
        for opening in self._opening.values():
            for task in opening:
                task.cancel()
        for task in self._handing_back:
            task.cancel()

    def _on_opened(self, port: int, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._opening[port].pop(task, None)
        if task.cancelled():
            accepted.close()  # a task that was cancelled before it began has not done it

    async def _open(self, accepted: socket.socket, peer: Peer) -> None:
        """Open the upstream connection for an accepted one, and start the relay between them."""
        with contextlib.ExitStack() as stack:
            stack.callback(accepted.close)
            try:
                client = await self._handshake.admit(accepted, peer)
            except ProtocolError as error:
                self._reject(peer, "admission", str(error))
                return
            except (OSError, TimeoutError) as error:
                self._reject(peer, "handshake", f"no handshake: {error_words(error)}")
                return
            stack.callback(client.close)
            logins = self._shared.logins
            needs_login = logins.is_needed or logins.endpoint is not None
            try:
                async with asyncio.timeout(ENDED_S if needs_login else STUCK_S):
                    await until_readable(client, asyncio.get_running_loop())
            except TimeoutError:
                self._reject(peer, "login" if needs_login else "waiting", "it has sent nothing")
                return
            if _has_ended(accepted):
                return
            try:
                upstream, session, is_stand_in = await self._upstream.connect(peer.node_id, any_other=peer.is_bootstrap)
            except OSError as error:
                self._reject(peer, "upstream", str(error))
                return
            stack.pop_all()
        if self._is_closed:
            client.close()
            upstream.close()
            return
        relay = Relay(self._shared, peer, client, upstream, session)
        relay.start()
        if is_stand_in:
            self._await_broker(relay)

    def _await_broker(self, relay: Relay) -> None:
        """Close a connection to another broker as soon as its own one is back.

        The returned broker may lead the partitions that the client requests. The client keeps its connection, and the
        other broker would answer each of its requests with NOT_LEADER_OR_FOLLOWER.
        """
        node_id = relay.peer.node_id
        if node_id in self._stand_ins:
            self._stand_ins[node_id].append(relay)
            return
        self._stand_ins[node_id] = [relay]
        task = asyncio.get_running_loop().create_task(self._hand_back(node_id))
        self._handing_back.add(task)
        task.add_done_callback(self._handing_back.discard)

    async def _hand_back(self, node_id: int) -> None:
        relays: list[Relay] = []
        try:
            while not relays:
                await asyncio.sleep(_AGAIN_S)
                self._stand_ins[node_id] = [each for each in self._stand_ins[node_id] if not each.is_closed]
                if not self._stand_ins[node_id]:
                    return
                if await self._upstream.is_back(node_id):
                    relays = self._stand_ins[node_id]
        finally:
            del self._stand_ins[node_id]
        for at in range(0, len(relays), _HANDED_BACK_AT_ONCE):
            for relay in relays[at : at + _HANDED_BACK_AT_ONCE]:
                if not relay.is_closed:
                    relay.drain()
            await asyncio.sleep(_BETWEEN_S)

    def _reject(self, peer: Peer, reason: str, message: str) -> None:
        logger.warning("Connection of %s closed: %s", peer.name, message)
        self._shared.figures.closed[reason] += 1


def _has_ended(accepted: socket.socket) -> bool:
    """Return whether a client without TLS has closed its connection before it sent a byte."""
    if accepted.fileno() == -1:  # it belongs to the TLS connection
        return False
    try:
        return not accepted.recv(1, socket.MSG_PEEK)
    except OSError:
        return True
