"""Listening sockets of a gateway: a port for each broker, or one port for all of them."""

from __future__ import annotations

import asyncio
import logging
import random
from functools import partial
from typing import TYPE_CHECKING, Final

from klamm.gateway.frames.peer import Peer
from klamm.properties import SettingsError
from klamm.server.listeners import ANY_HOSTS, MAX_PORT, Address, own_host_name
from klamm.server.sockets import Acceptor, bind

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection

    from klamm.gateway.settings import GatewaySettings
    from klamm.gateway.upstream.topology import Topology

logger = logging.getLogger(__name__)

_BACKLOG: Final = 4096
_FREE_BASES: Final = range(20_000, 31_000)
"""Range of base ports that are tried for port 0. It is below the range of outgoing connections."""
_ATTEMPTS: Final = 20
_RETRY_S: Final = 5.0
"""Time in seconds after which a port that could not be opened is tried again."""
_BASE: Final = 0
"""Node id of the base port: clients that connect to it reach node 0, or any broker if node 0 is unknown or down."""


class BrokerPorts:
    """Listening sockets of a gateway. Used on the event loop only.

    Args:
        settings: Settings of the gateway.
        topology: Brokers of the upstream. Its base is set when the ports are opened.
        on_accepted: Function that serves an accepted connection.
    """

    def __init__(
        self, settings: GatewaySettings, topology: Topology, on_accepted: Callable[[socket.socket, Peer], None]
    ) -> None:
        self._settings = settings
        self._topology = topology
        self._on_accepted = on_accepted
        self._acceptors: dict[int, Acceptor] = {}
        self._retries: dict[int, asyncio.TimerHandle] = {}
        """Next attempts to listen for brokers, by node id."""

    @property
    def is_open(self) -> bool:
        """Return whether the gateway listens."""
        return bool(self._acceptors)

    def open(self, live: Collection[int]) -> None:
        """Bind the base port and the ports of all known brokers.

        The ports of brokers that the cluster does not list are optional, as in ``add``. These brokers may have left the
        cluster permanently, and a gateway that restarts while the upstream is down cannot know.

        Args:
            live: Node ids of the brokers that the cluster lists; empty while the upstream cannot be reached.

        Raises:
            SettingsError: The node id of a broker that the cluster lists is too large.
            OSError: The base port, or the port of such a broker, cannot be bound.
        """
        wanted = self._settings.listener.listen[0]
        bases = [wanted.port] if wanted.port else random.SystemRandom().sample(_FREE_BASES, _ATTEMPTS)
        for attempt, base in enumerate(bases, start=1):
            self._topology.base = self._advertised(Address(host=wanted.host, port=base))
            self._topology.listen_port = base
            try:
                for node_id in (_BASE, *(self._topology.nodes.keys() & live)):
                    self._open(node_id)
            except OSError:
                self.close()
                if attempt == len(bases):
                    raise
            else:
                break
        for node_id in self._topology.nodes:
            self.add(node_id)

    def close(self) -> None:
        """Stop accepting."""
        for retry in self._retries.values():
            retry.cancel()
        self._retries.clear()
        for acceptor in self._acceptors.values():
            acceptor.close()
        self._acceptors.clear()

    def add(self, node_id: int) -> None:
        """Listen for a broker that joined the cluster. Does nothing if the gateway listens for it.

        The port may be in use, or no file descriptor left, for a while only. So it is tried again and again.
        """
        retry = self._retries.pop(node_id, None)
        if retry is not None:
            retry.cancel()
        try:
            self._open(node_id)
        except SettingsError as error:
            logger.warning("Broker %d cannot be served: %s", node_id, error)
        except OSError as error:
            if retry is None:
                logger.warning("Broker %d cannot be served yet: %s", node_id, error)
            self._retries[node_id] = asyncio.get_running_loop().call_later(_RETRY_S, self.add, node_id)
        else:
            if retry is not None:
                logger.info("Broker %d is served", node_id)

    def _advertised(self, base: Address) -> Address:
        advertised = self._settings.advertised
        if advertised is not None:
            return Address(host=advertised.host, port=advertised.port or base.port)
        if base.host and base.host not in ANY_HOSTS:
            return base
        return Address(host=own_host_name(), port=base.port)

    def _open(self, node_id: int) -> None:
        """Listen on the port of a broker. Does nothing if the gateway listens on it."""
        if node_id in self._acceptors or (node_id != _BASE and self._settings.broker_hosts is not None):
            return
        if not self._topology.has_port(node_id):
            raise SettingsError(
                f"Broker {node_id} has no port: base port + node id is above {MAX_PORT}; lower the base port (--listen)"
            )
        host = self._settings.listener.listen[0].host
        sock = bind(Address(host=host, port=self._topology.listen_port + node_id), shared=self._settings.reuses_ports)
        acceptor = Acceptor(sock, partial(self._accept, node_id))
        try:
            acceptor.start(backlog=_BACKLOG)
        except OSError:
            sock.close()
            raise
        self._acceptors[node_id] = acceptor

    def _accept(self, node_id: int, accepted: socket.socket, address: tuple[str, int]) -> None:
        peer = Peer(host=address[0], port=address[1], node_id=node_id, is_bootstrap=node_id == _BASE)
        self._on_accepted(accepted, peer)
