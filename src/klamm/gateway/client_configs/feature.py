"""Client configs as a feature of the gateway, made from its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from klamm.client_config_runtime.enforcement import EnforcementService, report_client_configs
from klamm.client_config_runtime.view import client_documents
from klamm.client_configs.kinds import GroupProtocol
from klamm.clock import wall_clock_ms
from klamm.gateway.client_configs.limits import UpstreamLimits
from klamm.gateway.client_configs.service import UpstreamClientConfigs
from klamm.gateway.client_configs.watch import ClientWatch
from klamm.gateway.relay.features import Feature
from klamm.protocol.types import CLIENT_CONFIGS_FEATURE
from klamm.server.client_registry import ClientRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from klamm.admin import AdminClient
    from klamm.client_config_runtime.source import ClientConfigSource
    from klamm.gateway.frames.peer import ConnectionWatch, Peer
    from klamm.gateway.relay.filter import Filter
    from klamm.gateway.settings import ClientConfigSettings
    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.monitoring.exposition import Page


ClientConfigFilters: TypeAlias = "Mapping[int, Callable[[ClientConfigSource], Filter]]"


class ClientConfigFeature(Feature):
    """Client configs for every client of the cluster behind the gateway.

    Args:
        upstream: Settings of connections to the upstream.
        settings: Settings of client configs.
        filters: Function by API key that returns the filter of the API for the configs.
    """

    opens_watch = True
    lists_clients = True
    supported_features = {CLIENT_CONFIGS_FEATURE: (1, 1)}  # noqa: RUF012 - read-only, as in the base class

    def __init__(
        self, upstream: ConnectionSettings, settings: ClientConfigSettings, filters: ClientConfigFilters
    ) -> None:
        self._limits = limits = UpstreamLimits(settings)
        self._service = UpstreamClientConfigs(upstream, limits=lambda: limits.values, now_ms=wall_clock_ms)
        self._configs: ClientConfigSource = self._service.store
        self._enforcement = EnforcementService(
            self._configs,
            is_on=lambda: settings.is_enforced,
            limits=lambda: limits.values,
            session_protocols=frozenset({GroupProtocol.CLASSIC}),
        )
        limits.on_change = self._enforcement.refresh
        self._registry = ClientRegistry(now_ms=wall_clock_ms)
        self._watch = ClientWatch(self._registry, self._enforcement, timings=lambda: limits.timings)
        self.filters = {key: filter_of(self._configs) for key, filter_of in filters.items()}

    def watch(self, peer: Peer) -> ConnectionWatch:
        """Return the observer of a new connection."""
        return self._watch.open(peer)

    async def clients(self) -> list[dict[str, Any]]:
        """Return the known clients as JSON objects."""
        return await client_documents(self._registry, self._configs, self._enforcement)

    async def start(self, admin: AdminClient) -> None:
        """Load the configs and the limits of the brokers."""
        await self._service.start(admin)
        await self._limits.start(admin)

    def why_not_ready(self) -> str | None:
        """Return the reason why configs cannot be served; None when they can."""
        return self._service.why_not_ready()

    def report(self, page: Page) -> None:
        """Add the metrics."""
        report_client_configs(page, self._configs, self._enforcement)
        page.family(
            "klamm_gateway_client_config_entities",
            "gauge",
            "Users and client ids with client configs.",
            [({}, len(self._configs.configs))],
        )

    def warnings(self) -> Sequence[str]:
        """Return the reason of each stored config and registration that cannot be used."""
        return self._configs.skipped

    async def close(self) -> None:
        """Close all connections."""
        await self._limits.close()
        await self._service.close()
