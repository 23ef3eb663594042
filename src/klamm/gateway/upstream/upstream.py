"""Connections of the gateway to the brokers of the upstream cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from klamm.admin import AdminClient
from klamm.gateway.relay.sessions import UpstreamSession
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.login import open_connection
from klamm.kafka_client.connection.transport import connect
from klamm.kafka_client.errors import CLUSTER_ERRORS, ConnectionLostError
from klamm.properties import split_address
from klamm.protocol.errors import ProtocolError
from klamm.server.listeners import Address

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from klamm.gateway.upstream.topology import Topology
    from klamm.kafka_client.connection.transport import ConnectionSettings, Transport

logger = logging.getLogger(__name__)

CLIENT_ID: Final = "klamm-gateway"
_RANDOM: Final = random.Random()  # noqa: S311 - no secret; of our own, because programs may seed the global one
LEARN_TIMEOUT_MS: Final = 10_000
_WAIT_S: Final = 10.0
"""Time in seconds that a client's connection waits for its connection to a broker
(``socket.connection.setup.timeout.ms``).
"""
_NO_BUFFERS: Final = BufferPool(max_free_bytes=0)
_CONNECTS_AT_ONCE: Final = 4
"""Maximum number of connections to one broker that are opened at the same time. A broker that does not respond
therefore does not delay connections to the others.
"""


class Upstream:
    """The upstream cluster: its topology, and new connections to its brokers. Used on the event loop only.

    Args:
        settings: Addresses and settings of connections.
        properties: The same as properties of a client, for the admin client.
        topology: Topology to keep up to date.
        logs_in: Whether connections for clients log in with the gateway's own credentials.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        properties: Mapping[str, str],
        topology: Topology,
        *,
        logs_in: bool = False,
    ) -> None:
        self._settings = settings
        self._logs_in = logs_in
        self._topology = topology
        self._connectors: dict[tuple[str, int], ThreadPoolExecutor] = {}
        self._learning: asyncio.Task[None] | None = None
        """Latest request of the topology for a client of an unknown broker; None before the first one."""
        self.admin = AdminClient.from_properties(
            settings.bootstrap_servers, {"client.id": CLIENT_ID, **properties}, timeout_ms=LEARN_TIMEOUT_MS
        )
        """Admin client with the gateway's own credentials."""
        self.attempts: Final[Counter[tuple[str, bool]]] = Counter()
        """Number of connections for clients by address of the broker, and by whether they were established.
        Addresses that no broker has any more are left out.
        """
        self.is_reachable = False
        """Whether the latest request of the gateway itself was answered."""
        self.failure: str | None = None
        """Reason why that request failed; None if it was answered, or is the first one."""
        self.live: frozenset[int] = frozenset()
        """Node ids of the brokers that the cluster listed last."""

    async def learn(self, *, timeout_ms: int = LEARN_TIMEOUT_MS) -> None:
        """Request the topology.

        Args:
            timeout_ms: Limit in milliseconds, including retries.

        Raises:
            KafkaApiError: The upstream rejects the login or the request.
            ConnectionError: The upstream cannot be reached.
            TimeoutError: The upstream does not respond.
        """
        try:
            cluster = await self.admin.describe_cluster(timeout_ms=timeout_ms)
        except CLUSTER_ERRORS as error:
            self.is_reachable, self.failure = False, str(error)
            raise
        self.is_reachable, self.failure = True, None
        self.live = frozenset(node.id for node in cluster.nodes)
        self._topology.set_cluster_id(cluster.cluster_id)
        for node in cluster.nodes:
            try:
                self._topology.learn(node.id, node.host, node.port)
            except ProtocolError as error:  # the others are served all the same
                logger.warning("%s", error)
        self._forget_left_addresses()

    def _forget_left_addresses(self) -> None:
        """Drop threads and counters of addresses that no broker has any more. Connections in progress go on."""
        kept = {(at.host, at.port) for at in self._topology.nodes.values()}
        kept |= {at for server in self._settings.bootstrap_servers if (at := split_address(server))}
        for left in self._connectors.keys() - kept:
            self._connectors.pop(left).shutdown(wait=False)
        names = {str(Address(host=host, port=port)) for host, port in kept}
        for key in [each for each in self.attempts if each[0] not in names]:
            del self.attempts[key]

    async def keep_learning(self, interval_s: float) -> None:
        """Request the topology at regular intervals, until cancelled. Errors are logged."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.learn()
            except CLUSTER_ERRORS as error:
                logger.warning("The upstream cannot be reached: %s", error)
            except Exception:
                logger.exception("The brokers of the upstream cannot be read, trying again in %g s", interval_s)

    async def connect(self, node_id: int, *, any_other: bool = False) -> tuple[Transport, UpstreamSession | None, bool]:
        """Open a connection to a broker. Return it with its session if the gateway logged in and the session expires.

        The last value is whether another broker stands in. That of an unknown broker does so, too: the broker may have
        joined the cluster, and only another gateway or process knows it yet.

        Args:
            node_id: Node id of the broker. If it is unknown, and the upstream does not list it either, any broker is
                used.
            any_other: Whether another broker is used if this one cannot be reached.

        Raises:
            OSError: No connection was established.
        """
        nodes = self._topology.nodes
        if node_id not in nodes and not any_other:
            await self._learn_together()
        ids = [node_id] if node_id in nodes else []
        uses_any = any_other or not ids
        if uses_any:
            ids += _RANDOM.sample(list(nodes), len(nodes))
            ids.sort(key=lambda each: each not in self.live)  # the host of a broker that is gone may drop packets
        candidates = [(nodes[each].host, nodes[each].port) for each in ids]
        if uses_any:
            candidates += [at for server in self._settings.bootstrap_servers if (at := split_address(server))]
        last: OSError = ConnectionLostError("no broker is known")
        for host, port in dict.fromkeys(candidates):
            address = str(Address(host=host, port=port))
            try:
                opened = await self._connect(host, port)
            except OSError as error:
                self.attempts[address, False] += 1
                last = ConnectionLostError(f"broker {node_id} at {host}:{port}: {error.strerror or error}")
            else:
                self.attempts[address, True] += 1
                return *opened, node_id not in nodes or (host, port) != (nodes[node_id].host, nodes[node_id].port)
        raise last

    async def _learn_together(self) -> None:
        """Request the topology, or wait for the request of another client. Errors leave the topology as it is."""
        if self._learning is None or self._learning.done():
            self._learning = asyncio.create_task(self.learn())
        with contextlib.suppress(*CLUSTER_ERRORS):
            await asyncio.shield(self._learning)

    async def is_back(self, node_id: int) -> bool:
        """Return whether a broker is registered with the upstream and accepts a connection."""
        node = self._topology.nodes.get(node_id)
        if node is None or node_id not in self.live:
            return False
        try:
            transport, _ = await self._connect(node.host, node.port)
        except OSError:
            return False
        transport.close()
        return True

    async def _connect(self, host: str, port: int) -> tuple[Transport, UpstreamSession | None]:
        connector = self._connectors.get((host, port))
        if connector is None:
            connector = ThreadPoolExecutor(_CONNECTS_AT_ONCE, thread_name_prefix=f"klamm-connect-{host}:{port}")
            self._connectors[host, port] = connector
        connecting = connector.submit(self._open, host, port)
        try:
            async with asyncio.timeout(_WAIT_S):
                return await asyncio.wrap_future(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(_close_late)  # a connection that is being opened cannot be cancelled
            raise
        except TimeoutError as error:
            connecting.add_done_callback(_close_late)
            raise ConnectionLostError(f"no connection within {_WAIT_S:g} s") from error

    def _open(self, host: str, port: int) -> tuple[Transport, UpstreamSession | None]:
        """Open a connection. Runs in a thread."""
        security = self._settings.security
        if not (self._logs_in and security.uses_sasl):
            return connect(host, port, self._settings), None
        connection = open_connection(host, port, self._settings, _NO_BUFFERS)
        session = UpstreamSession(security, host, connection.login_due_at, connection.versions)
        return connection.hand_over(), session if session.expires else None

    async def close(self) -> None:
        """Close the admin client. Connections are closed by their owners."""
        if self._learning is not None:
            self._learning.cancel()
        for connector in self._connectors.values():
            connector.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self.admin.close)


def _close_late(connecting: Future[tuple[Transport, UpstreamSession | None]]) -> None:
    """Close a connection for which no client waits any more."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result()[0].close()
