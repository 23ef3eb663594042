"""Prometheus metrics of a broker and the page that exports them. Imported only when ``metrics.listen`` is set."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

from klamm.client_config_runtime.enforcement import report_client_configs
from klamm.monitoring.exposition import CONTENT_TYPE, Page
from klamm.monitoring.http import HttpListener
from klamm.page.activity import ActivitySampler
from klamm.policy_runtime.metrics import report_decisions
from klamm.server.metrics import RequestMetrics

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from klamm.broker.client_metrics import ClientMetricsService
    from klamm.broker.configs.service import ConfigsChanged
    from klamm.broker.context import Services
    from klamm.monitoring.http import View
    from klamm.server.connection import Traffic
    from klamm.server.route import Route


class Metrics:
    """Metrics of a broker. Used on the event loop only.

    Requests and config changes are counted. All other figures are read when the page is requested.

    Args:
        routes: Handlers to measure, by API key.
    """

    def __init__(self, routes: Mapping[int, Route]) -> None:
        self._requests = RequestMetrics(routes)
        self.routes = self._requests.routes
        """Measured handlers, by API key."""
        self._config_changes: Counter[str] = Counter()
        self._started_at = time.time()
        self._services: Services | None = None
        self.activity = ActivitySampler(
            lambda: self._requests.request_count, lambda: () if self._services is None else (self._services.policies,)
        )
        """Requests, denials and waiting time, sampled while the pages are served."""
        self._sampling: asyncio.Task[None] | None = None
        self._traffic: Traffic | None = None
        self._connections: Callable[[], int] = lambda: 0
        self._views: dict[str, View] = {}
        self._http = HttpListener({"/metrics": lambda: (CONTENT_TYPE, self.page())}, self._views)

    def watch(self, services: Services, *, traffic: Traffic, connections: Callable[[], int]) -> None:
        """Set the sources of the figures that are read when the page is requested."""
        self._services, self._traffic, self._connections = services, traffic, connections
        services.configs.subscribe(self._count_change)

    def add_views(self, views: Mapping[str, View]) -> None:
        """Serve pages that depend on the query, by path."""
        self._views.update(views)

    async def listen(self, sock: socket.socket) -> None:
        """Serve the pages on a bound socket."""
        await self._http.listen(sock)
        self._sampling = asyncio.create_task(self.activity.keep_sampling())

    async def close(self) -> None:
        """Stop serving the pages."""
        if self._sampling is not None:
            self._sampling.cancel()
        await self._http.close()

    def page(self) -> str:
        """Return all metrics in Prometheus' text format."""
        page = Page()
        if self._traffic is not None:
            self._requests.write(page, connections=self._connections(), traffic=self._traffic)
        page.family(
            "klamm_config_changes_total",
            "counter",
            "Configs that were set or removed.",
            [({"resource_type": kind}, count) for kind, count in sorted(self._config_changes.items())],
        )
        if self._services is not None:
            _state(page, self._services)
        page.family("process_start_time_seconds", "gauge", "Start of the process.", [({}, self._started_at)])
        page.family("process_cpu_seconds_total", "counter", "CPU time used.", [({}, time.process_time())])
        return page.text()

    def _count_change(self, changed: ConfigsChanged) -> None:
        self._config_changes[changed.resource_type.name] += len(changed.names)


def _state(page: Page, services: Services) -> None:
    topics = services.topics.all()
    page.family("klamm_topics", "gauge", "Topics.", [({}, len(topics))])
    page.family("klamm_partitions", "gauge", "Partitions.", [({}, sum(len(topic.partitions) for topic in topics))])
    offline, failures = services.logs.offline_count, services.logs.flush_failures
    page.family("klamm_offline_partitions", "gauge", "Partitions offline because of a disk error.", [({}, offline)])
    page.family("klamm_log_flush_failures_total", "counter", "Failed fsyncs of partitions.", [({}, failures)])
    states = Counter(group.state.value for group in services.groups.list_groups())
    page.family("klamm_groups", "gauge", "Groups.", [({"state": s}, n) for s, n in sorted(states.items())])
    report_client_configs(page, services.client_configs, services.enforcement)
    _client_metrics(page, services.client_metrics)
    report_decisions(page, services.policies)


def _client_metrics(page: Page, service: ClientMetricsService) -> None:
    outcomes = sorted(service.counts.items())
    page.family(
        "klamm_client_metrics_pushes_total",
        "counter",
        "Pushes of client metrics.",
        [({"outcome": outcome}, count) for outcome, count in outcomes],
    )
    page.family(
        "klamm_client_metrics_instances", "gauge", "Clients that fetch subscriptions.", [({}, service.instance_count)]
    )
    page.family(
        "klamm_client_metrics_export_dropped_total",
        "counter",
        "Pushes that could not be exported in time.",
        [({}, service.dropped_exports)],
    )
    if service.series is not None:
        page.family(
            "klamm_client_metrics_dropped_total",
            "counter",
            "Data points of clients dropped because of a limit.",
            [({}, service.series.dropped)],
        )
        service.series.write(page)
