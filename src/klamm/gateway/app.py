"""The gateway: its parts, its start and its stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from klamm.configs.definitions import UPSTREAM
from klamm.gateway.apis.table import APIS, CLIENT_CONFIG_FILTERS, POLICIES, RECORDED, UNFILTERED
from klamm.gateway.client_configs.feature import ClientConfigFeature
from klamm.gateway.history.feature import HistoryFeature
from klamm.gateway.listener.accepted_connections import AcceptedConnections
from klamm.gateway.listener.handshake import ClientHandshake
from klamm.gateway.listener.ports import BrokerPorts
from klamm.gateway.policies.feature import PolicyFeature
from klamm.gateway.relay.api import serve
from klamm.gateway.relay.shared import ClientLogins, RelayMemory, Shared
from klamm.gateway.relay.stalls import watch_stalls
from klamm.gateway.upstream.bypass import BypassCheck
from klamm.gateway.upstream.topology import Topology
from klamm.gateway.upstream.upstream import LEARN_TIMEOUT_MS, Upstream
from klamm.kafka_client.errors import CLUSTER_ERRORS
from klamm.properties import SettingsError
from klamm.retries import Backoff

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.gateway.processes.passed_connections import PassedConnections
    from klamm.gateway.processes.worker_pool import WorkerPool
    from klamm.gateway.relay.features import Feature
    from klamm.gateway.settings import GatewaySettings
    from klamm.server.listeners import Address


logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.5
_FIRST_ATTEMPT_S: Final = 2.0
"""Time limit in seconds of the first attempt to reach the upstream at a start. A gateway that has read the brokers from
its file makes no other; else the limit doubles with each attempt.
"""


class GatewayApp:
    """A running gateway. Used on the event loop only.

    Args:
        settings: Settings of the gateway.
        features: Features that the settings enable.
        pool: Worker processes that serve the accepted connections; None to serve them in this process.
        passed: Connections from the parent process of a worker; None to listen on ports.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        features: Sequence[Feature] = (),
        *,
        pool: WorkerPool | None = None,
        passed: PassedConnections | None = None,
    ) -> None:
        self._settings = settings
        self.pool = pool
        self._is_worker = passed is not None
        self._features = features
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False
        handshake = ClientHandshake.open(settings)
        self.topology = Topology(settings.data_dir, settings.broker_hosts)
        self.upstream = Upstream(
            settings.upstream, settings.upstream_properties, self.topology, logs_in=settings.terminates
        )
        self.bypass = BypassCheck(self.upstream.admin, self.topology, settings.known_hosts)
        self.shared = Shared(
            apis=serve(APIS, features, admin_only=settings.admin_only, terminates=settings.terminates),
            features=features,
            book=self.topology,
            admin=self.upstream.admin,
            listener=settings.listener.name,
            logins=ClientLogins(
                is_needed=settings.upstream.security.uses_sasl and not settings.terminates,
                endpoint=handshake.endpoint if settings.terminates else None,
                principal_claim=settings.principal_claim,
            ),
            memory=RelayMemory(max_frame_bytes=settings.max_frame_bytes),
        )
        self._accepted_connections = AcceptedConnections(self.shared, self.upstream, handshake)
        self._ports: BrokerPorts | PassedConnections
        if passed is not None:
            passed.attach(self.topology, self._accepted_connections.add)
            self._ports = passed
        else:
            on_accepted = self._accepted_connections.add if pool is None else pool.deal
            self._ports = BrokerPorts(settings, self.topology, on_accepted)

    @property
    def base_address(self) -> Address:
        """Address to which clients connect first (``bootstrap.servers``)."""
        return self.topology.base

    @property
    def connections(self) -> int:
        """Number of connections, including those that are being opened."""
        return len(self.shared.connections) + self._accepted_connections.count

    def why_not_ready(self) -> str | None:
        """Return the reason why clients should not connect at present; None if they may."""
        if self._is_stopping or not self._ports.is_open:
            return "the gateway starts or stops"
        if not self.upstream.is_reachable:
            return "the upstream cannot be reached"
        if self.pool is not None:
            return self.pool.why_not_ready()
        return next((reason for each in self._features if (reason := each.why_not_ready()) is not None), None)

    def remark(self) -> str | None:
        """Return a warning about a gateway that serves clients; None if there is none."""
        if self.pool is not None:
            return self.pool.remark()
        failures = (each.policies.reload_failure for each in self._features if each.policies is not None)
        failure = next(filter(None, failures), None)
        return None if failure is None else f"the policies were not reloaded: {failure}"

    async def start(self) -> None:
        """Request the topology, then listen on the base port and on a port for each broker.

        Raises:
            SettingsError: The upstream cannot be reached and its brokers are not known, or the node id of a broker that
                it lists is too large.
            OSError: The base port, or the port of a broker that the upstream lists, cannot be bound.
        """
        self.topology.load()
        await self._learn_first()
        for feature in self._features:
            await feature.start(self.upstream.admin)
        if self.pool is not None:
            self.pool.on_node = self.topology.learn
            await self.pool.start()
        self._ports.open(self.upstream.live)
        if self.pool is not None:
            self.pool.announce(self.topology.base, self.topology.listen_port)
        self.topology.subscribe(self._ports.add)
        self._tasks = [
            asyncio.create_task(self.upstream.keep_learning(self._settings.topology_interval_s)),
            asyncio.create_task(watch_stalls(self.shared)),
        ]
        if self._settings.bypass_interval_s and not self._is_worker:
            self._tasks.append(asyncio.create_task(self.bypass.keep_checking(self._settings.bypass_interval_s)))

    async def stop(self) -> None:
        """Stop accepting, serve the requests in flight for the grace period, then close everything."""
        self._is_stopping = True
        loop = asyncio.get_running_loop()
        self._ports.close()
        self._accepted_connections.close()
        for task in self._tasks:
            task.cancel()
        for relay in self.shared.connections:
            relay.drain()
        deadline = loop.time() + self._settings.shutdown_grace_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self.shared.connections.all_closed()
        for relay in self.shared.connections:
            relay.close("the gateway stops")
        if self.pool is not None:
            await self.pool.stop()
        for feature in self._features:
            await feature.close()
        await self.upstream.close()

    async def _learn_first(self) -> None:
        """Request the topology. If the brokers are known from the file, one attempt is enough."""
        deadline = asyncio.get_running_loop().time() + self._settings.start_timeout_s
        limits = Backoff(_FIRST_ATTEMPT_S, LEARN_TIMEOUT_MS / 1000)
        while True:
            try:
                await self.upstream.learn(timeout_ms=round(limits.next_s() * 1000))
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


async def load_features(settings: GatewaySettings) -> tuple[Feature, ...]:
    """Create the policies, the client configs and the history that the settings name.

    Raises:
        PolicyLoadError: A policy cannot be created.
    """
    properties = {**settings.configs, UPSTREAM: ",".join(settings.upstream.bootstrap_servers)}
    features: list[Feature] = [await PolicyFeature.load(properties, POLICIES, UNFILTERED)]
    if settings.client_configs is not None:
        features.append(ClientConfigFeature(settings.upstream, settings.client_configs, CLIENT_CONFIG_FILTERS))
    if settings.records_history:
        features.append(HistoryFeature(settings.upstream, RECORDED))
    return tuple(features)


def reload(features: tuple[Feature, ...]) -> None:
    """Load the changed files of all features again, as on SIGHUP."""
    for feature in features:
        feature.reload()
