"""Client configs as hooks of the relay, made from the gateway's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.client_config_runtime.enforcement import EnforcementService, report_client_configs
from klamm.client_config_runtime.view import client_documents
from klamm.client_configs.kinds import GroupProtocol
from klamm.clock import wall_clock_ms
from klamm.gateway.client_configs.limits import UpstreamLimits
from klamm.gateway.client_configs.requests import ClientConfigRequests
from klamm.gateway.client_configs.service import UpstreamClientConfigs
from klamm.gateway.client_configs.settings import read_client_config_settings
from klamm.gateway.client_configs.watch import ClientWatch
from klamm.gateway.relay.interceptors import NO_INTERCEPTION, Interception
from klamm.protocol.types import CLIENT_CONFIGS_FEATURE
from klamm.server.client_registry import ClientRegistry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.admin import AdminClient
    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.monitoring.exposition import Page


def client_configs(upstream: ConnectionSettings, configs: Mapping[str, str]) -> Interception:
    """Return the hooks of client configs; no hooks if client configs are off.

    Args:
        upstream: Settings of connections to the upstream.
        configs: Settings of the gateway.

    Raises:
        SettingsError: A setting has a wrong value.
    """
    settings = read_client_config_settings(configs)
    if settings is None:
        return NO_INTERCEPTION
    limits = UpstreamLimits(settings)
    service = UpstreamClientConfigs(upstream, limits=lambda: limits.values, now_ms=wall_clock_ms)
    enforcement = EnforcementService(
        service,
        is_on=lambda: settings.is_enforced,
        limits=lambda: limits.values,
        session_protocols=frozenset({GroupProtocol.CLASSIC}),
    )
    limits.on_change = enforcement.refresh
    registry = ClientRegistry(now_ms=wall_clock_ms)
    watch = ClientWatch(registry, enforcement, timings=lambda: limits.timings)

    async def start(admin: AdminClient) -> None:
        await service.start(admin)
        await limits.start(admin)

    async def close() -> None:
        await limits.close()
        await service.close()

    def report(page: Page) -> None:
        report_client_configs(page, service, enforcement)
        page.family(
            "klamm_gateway_client_config_entities",
            "gauge",
            "Users and client ids with client configs.",
            [({}, len(service.configs))],
        )

    return Interception(
        interceptors=ClientConfigRequests(service).interceptors,
        watch=watch.open,
        features={CLIENT_CONFIGS_FEATURE: (1, 1)},
        clients=lambda: client_documents(registry, service, enforcement),
        report=report,
        warnings=lambda: service.skipped,
        start=start,
        why_not_ready=service.why_not_ready,
        close=close,
    )
