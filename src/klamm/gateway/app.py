"""The gateway: listening sockets, a port for each broker, and the relays of all connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from klamm.client.errors import CLUSTER_ERRORS
from klamm.client.transport import PlainTransport
from klamm.gateway.apis import served_apis
from klamm.gateway.interceptors import NO_INTERCEPTION
from klamm.gateway.peer import Peer
from klamm.gateway.relay import Relay
from klamm.gateway.shared import Shared
from klamm.gateway.stalls import watch_stalls
from klamm.gateway.streams import AcceptedTls
from klamm.gateway.topology import Topology
from klamm.gateway.upstream import Upstream
from klamm.properties import SettingsError
from klamm.server.listeners import ANY_HOST, MAX_PORT, Address, own_host_name
from klamm.server.sockets import bind, start_listening

if TYPE_CHECKING:
    import socket
    import ssl

    from klamm.client.transport import Transport
    from klamm.gateway.interceptors import Interception
    from klamm.gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

_BACKLOG: Final = 4096
_ACCEPTS_PER_EVENT: Final = 64
_OPENING_AT_MOST: Final = 512
"""Maximum number of connections to one broker that are being opened. Further ones are not accepted, so a broker that
does not respond delays only its own clients.
"""
_HANDSHAKE_TIMEOUT_S: Final = 10.0
_RETRY_S: Final = 0.5
_ATTEMPT_MS: Final = 2000
"""Time limit in milliseconds of one attempt to reach the upstream at a start. A gateway that has read the brokers from
its file makes one attempt only.
"""
_FREE_BASES: Final = range(20_000, 31_000)
"""Range of base ports that are tried for port 0. It is below the range of outgoing connections."""
_ATTEMPTS: Final = 20
_BASE: Final = 0
"""Node id of the base port: clients that connect to it reach node 0, or any broker if node 0 is unknown or down."""


class GatewayApp:
    """A running gateway. Used on the event loop only.

    Args:
        settings: Settings of the gateway.
        interception: Interceptors and filters of requests.
    """

    def __init__(self, settings: GatewaySettings, interception: Interception = NO_INTERCEPTION) -> None:
        self._settings = settings
        self._interception = interception
        self._sockets: dict[int, socket.socket] = {}
        self._base_port = 0
        self._opening: set[asyncio.Task[None]] = set()
        self._opening_by_node: Counter[int] = Counter()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self._tls = _tls_context(settings)
        self.topology = Topology(settings.data_dir)
        self.upstream = Upstream(settings.upstream, settings.upstream_properties, self.topology)
        self.shared = Shared(
            served=served_apis(
                admin_only=settings.admin_only, withheld=interception.withheld, limits=interception.limits
            ),
            book=self.topology,
            admin=self.upstream.admin,
            interception=interception,
            listener=settings.listener.name,
            needs_login=settings.upstream.security.uses_sasl,
            principal_claim=settings.principal_claim,
            max_frame_bytes=settings.max_frame_bytes,
        )

    @property
    def base_address(self) -> Address:
        """Address to which clients connect first (``bootstrap.servers``)."""
        return self.topology.base

    def why_not_ready(self) -> str | None:
        """Return the reason why clients should not connect at present; None if they may."""
        if self._is_stopping or not self._sockets:
            return "the gateway starts or stops"
        if not self.upstream.is_reachable:
            return "the upstream cannot be reached"
        return self._interception.why_not_ready()

    async def start(self) -> None:
        """Request the topology, then listen on the base port and on a port for each broker.

        Raises:
            SettingsError: The upstream cannot be reached and its brokers are not known, or a node id is too
                large.
            OSError: A port cannot be bound.
        """
        self.topology.load()
        await self._learn_first()
        await self._interception.start(self.upstream.admin)
        self._listen()
        self.topology.subscribe(self._on_new_node)
        self._tasks = [
            asyncio.create_task(self.upstream.keep_learning(self._settings.topology_interval_s)),
            asyncio.create_task(watch_stalls(self.shared)),
        ]

    async def stop(self) -> None:
        """Stop accepting, serve the requests in flight for the grace period, then close everything."""
        self._is_stopping = True
        loop = asyncio.get_running_loop()
        self._close_ports()
        for task in (*self._tasks, *self._opening):
            task.cancel()
        for relay in list(self.shared.relays):
            relay.drain()
        deadline = loop.time() + self._settings.shutdown_grace_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self.shared.all_closed()
        for relay in list(self.shared.relays):
            relay.close("the gateway stops")
        await self._interception.close()
        await self.upstream.close()

    async def _learn_first(self) -> None:
        """Request the topology. If the brokers are known from the file, one attempt is enough."""
        deadline = asyncio.get_running_loop().time() + self._settings.start_timeout_s
        while True:
            try:
                await self.upstream.learn(timeout_ms=_ATTEMPT_MS)
            except CLUSTER_ERRORS as error:
                if self.topology.nodes:
                    logger.warning("The upstream cannot be reached, its brokers are known from before: %s", error)
                    return
                if asyncio.get_running_loop().time() >= deadline:
                    servers = ",".join(self._settings.upstream.bootstrap_servers)
                    raise SettingsError(f"The upstream {servers} cannot be reached: {error}") from error
                logger.warning("The upstream cannot be reached, trying again: %s", error)
            else:
                return
            await asyncio.sleep(_RETRY_S)

    # -- listening sockets

    def _listen(self) -> None:
        """Bind the base port and the ports of all known brokers."""
        wanted = self._settings.listener.listen[0]
        bases = [wanted.port] if wanted.port else random.SystemRandom().sample(_FREE_BASES, _ATTEMPTS)
        for attempt, base in enumerate(bases, start=1):
            self.topology.base = self._advertised(Address(host=wanted.host, port=base))
            self._base_port = base
            try:
                for node_id in (_BASE, *self.topology.nodes):
                    self._open_port(node_id)
            except OSError:
                self._close_ports()
                if attempt == len(bases):
                    raise
            else:
                return

    def _advertised(self, base: Address) -> Address:
        advertised = self._settings.advertised
        if advertised is not None:
            return Address(host=advertised.host, port=advertised.port or base.port)
        if base.host and base.host != ANY_HOST:
            return base
        return Address(host=own_host_name(), port=base.port)

    def _open_port(self, node_id: int) -> None:
        """Listen on the port of a broker. Does nothing if the gateway listens on it.

        Raises:
            SettingsError: The sum of base port and node id is not a port.
            OSError: The port cannot be bound.
        """
        if node_id in self._sockets:
            return
        port = self._base_port + node_id
        if max(port, self.topology.base.port + node_id) > MAX_PORT:
            raise SettingsError(
                f"Broker {node_id} has no port: base port + node id is above {MAX_PORT}; lower the base port (--listen)"
            )
        sock = bind(Address(host=self._settings.listener.listen[0].host, port=port))
        try:
            start_listening(sock, backlog=_BACKLOG)
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)
        self._sockets[node_id] = sock
        asyncio.get_running_loop().add_reader(sock.fileno(), self._accept, sock, node_id)

    def _close_ports(self) -> None:
        for sock in self._sockets.values():
            asyncio.get_running_loop().remove_reader(sock.fileno())
            sock.close()
        self._sockets.clear()

    def _on_new_node(self, node_id: int) -> None:
        """Listen for a broker that joined the cluster."""
        try:
            self._open_port(node_id)
        except (OSError, SettingsError) as error:
            logger.warning("Broker %d cannot be served: %s", node_id, error)

    # -- connections

    def _accept(self, sock: socket.socket, node_id: int) -> None:
        for _ in range(_ACCEPTS_PER_EVENT):
            try:
                accepted, address = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                logger.warning("A connection cannot be accepted: %s", error.strerror or error)
                return
            if self._opening_by_node[node_id] >= _OPENING_AT_MOST:
                accepted.close()
                continue
            accepted.setblocking(False)
            peer = Peer(host=address[0], port=address[1], node_id=node_id)
            task = asyncio.get_running_loop().create_task(self._open(accepted, peer))
            self._opening.add(task)
            self._opening_by_node[node_id] += 1
            task.add_done_callback(partial(self._on_opened, node_id))

    def _on_opened(self, node_id: int, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        self._opening_by_node[node_id] -= 1

    async def _open(self, accepted: socket.socket, peer: Peer) -> None:
        """Open the upstream connection for an accepted one, and start the relay between them."""
        with contextlib.ExitStack() as stack:
            stack.callback(accepted.close)
            try:
                client = await self._client_side(accepted)
            except (OSError, TimeoutError) as error:
                self._refuse(peer, "handshake", f"no TLS handshake: {error}")
                return
            stack.callback(client.close)
            try:
                upstream = await self.upstream.connect(peer.node_id, any_other=peer.node_id == _BASE)
            except OSError as error:
                self._refuse(peer, "upstream", str(error))
                return
            stack.pop_all()
        if self._is_stopping:
            client.close()
            upstream.close()
            return
        Relay(self.shared, peer, client, upstream).start()

    def _refuse(self, peer: Peer, reason: str, message: str) -> None:
        logger.warning("Connection of %s closed: %s", peer.name, message)
        self.shared.refused[reason] += 1

    async def _client_side(self, accepted: socket.socket) -> Transport:
        if self._tls is None:
            return PlainTransport(accepted)
        async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
            return await AcceptedTls.shake_hands(accepted, self._tls, asyncio.get_running_loop())


def _tls_context(settings: GatewaySettings) -> ssl.SSLContext | None:
    """Return the TLS context of the listener, None for plaintext.

    Raises:
        SettingsError: A setting is missing or not allowed.
    """
    if not settings.listener.protocol.uses_tls:
        return None
    from klamm.server.security.tls import server_tls  # noqa: PLC0415 - OpenSSL costs start-up time

    return server_tls(settings.listener, settings.configs).context
