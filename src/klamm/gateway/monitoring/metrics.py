"""Prometheus metrics of a gateway, its checks of readiness and liveness, and its page."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from klamm.gateway.monitoring.page import GatewayPage
from klamm.gateway.relay.shared import MAX_CLIENT_IDS, OTHER
from klamm.monitoring.exposition import CONTENT_TYPE, Page, merged
from klamm.monitoring.http import HttpListener
from klamm.page.activity import ActivitySampler
from klamm.policy_runtime.metrics import LAST_RELOAD_SUCCESSFUL
from klamm.protocol.api import api_name

if TYPE_CHECKING:
    import socket

    from klamm.gateway.app import GatewayApp
    from klamm.gateway.settings import GatewaySettings


_SUMMED_GAUGES: Final = (
    "klamm_gateway_connections",
    "klamm_gateway_history_waiting_changes",
    "klamm_gateway_kept_bytes",
    "klamm_gateway_upstream_connections",
)


class GatewayMetrics:
    """The pages ``/metrics``, ``/ready`` and ``/live`` of a gateway, and its page. Used on the event loop only.

    Args:
        app: The gateway.
        settings: Settings of the gateway.
    """

    def __init__(self, app: GatewayApp, settings: GatewaySettings) -> None:
        self._app = app
        self._started_at = time.time()
        shared = app.shared
        self.activity = ActivitySampler(
            shared.figures.requests.counts.total,
            lambda: [each.policies for each in shared.features if each.policies is not None],
        )
        """Requests, denials and waiting time of this process, sampled while the pages are served."""
        self._page = GatewayPage(app, settings, self._started_at, self.activity)
        self._sampling: asyncio.Task[None] | None = None
        self._http = HttpListener(
            {"/metrics": lambda: (CONTENT_TYPE, self.page())},
            self._page.views,
            checks={"/ready": app.why_not_ready, "/live": lambda: None},
            remarks={"/ready": app.remark},
        )

    async def listen(self, sock: socket.socket) -> None:
        """Serve the pages on a bound socket."""
        await self._http.listen(sock)
        self._sampling = asyncio.create_task(self.activity.keep_sampling())

    async def close(self) -> None:
        """Stop serving the pages."""
        if self._sampling is not None:
            self._sampling.cancel()
        await self._http.close()
        await self._page.close()

    def page(self) -> str:
        """Return all metrics in Prometheus' text format. Those of several processes are added."""
        pool = self._app.pool
        own = self._own_page()
        return (
            own
            if pool is None
            else merged([own, *pool.pages], summed_gauges=_SUMMED_GAUGES, lowest_gauges=(LAST_RELOAD_SUCCESSFUL,))
        )

    def _own_page(self) -> str:
        """Return the metrics of this process."""
        app, page = self._app, Page()
        shared, traffic = app.shared, app.shared.figures.traffic
        page.family(
            "klamm_gateway_requests_total",
            "counter",
            f"Requests of clients. Client ids beyond {MAX_CLIENT_IDS} count as {OTHER}.",
            [
                ({"api": api_name(api_key), "client_id": client_id or ""}, count)
                for (api_key, client_id), count in sorted(
                    shared.figures.requests.counts.items(), key=lambda item: (item[0][0], item[0][1] or "")
                )
            ],
        )
        page.family(
            "klamm_gateway_bytes_total",
            "counter",
            "Bytes relayed.",
            [
                ({"direction": "from_clients"}, traffic.from_clients),
                ({"direction": "to_upstream"}, traffic.to_upstream),
                ({"direction": "from_upstream"}, traffic.from_upstream),
                ({"direction": "to_clients"}, traffic.to_clients),
            ],
        )
        page.family(
            "klamm_gateway_rejected_connections_total",
            "counter",
            "Connections closed by the gateway: malformed or unserved requests and responses, failed TLS handshakes,"
            " brokers that cannot be reached, peers that take no bytes.",
            [({"reason": reason}, count) for reason, count in sorted(shared.figures.closed.items())],
        )
        self._report_upstream(page)
        page.family(
            "klamm_gateway_kept_bytes",
            "gauge",
            "Bytes in memory: unfinished frames, and data that peers have not read.",
            [
                (
                    {"kind": "frames"},
                    shared.memory.request_budget.held_bytes + shared.memory.response_budget.held_bytes,
                ),
                ({"kind": "unread"}, shared.memory.backlog.kept_bytes),
            ],
        )
        for feature in shared.features:
            feature.report(page)
        page.family("process_start_time_seconds", "gauge", "Start of the process.", [({}, self._started_at)])
        page.family("process_cpu_seconds_total", "counter", "CPU time used.", [({}, time.process_time())])
        return page.text()

    def _report_upstream(self, page: Page) -> None:
        """Add connections, brokers, and clients that go past the gateway."""
        app, shared = self._app, self._app.shared
        page.family("klamm_gateway_connections", "gauge", "Open client connections.", [({}, len(shared.connections))])
        page.family(
            "klamm_gateway_brokers",
            "gauge",
            "Brokers that the upstream named in its latest answer to the gateway itself; 0 before the first one.",
            [({}, len(app.upstream.live))],
        )
        page.family(
            "klamm_gateway_topology_file_ignored",
            "gauge",
            "Whether topology.json could not be read at the start; the page says why.",
            [({}, int(app.topology.file_fault is not None))],
        )
        page.family(
            "klamm_gateway_upstream_reachable",
            "gauge",
            "Whether the latest request of the gateway itself was answered by the upstream.",
            [({}, int(app.upstream.is_reachable))],
        )
        page.family(
            "klamm_gateway_upstream_connects_total",
            "counter",
            "Connections to brokers for clients, by outcome.",
            [
                ({"broker": address, "outcome": "opened" if is_open else "failed"}, count)
                for (address, is_open), count in sorted(app.upstream.attempts.items())
            ],
        )
        page.family(
            "klamm_gateway_upstream_connections",
            "gauge",
            f"Open connections by node id of the broker. Node ids that no broker has count as {OTHER}.",
            [({"node_id": node_id}, count) for node_id, count in sorted(self._connections_by_broker().items())],
        )
        if app.bypass.members is not None:
            page.family(
                "klamm_gateway_bypassing_members",
                "gauge",
                "Members of groups that are connected to the brokers past the gateway.",
                [({"client_id": client_id}, count) for client_id, count in sorted(app.bypass.members.items())],
            )

    def _connections_by_broker(self) -> Counter[str]:
        """Count open connections by node id. Clients choose the node ids in the names that they connect to."""
        nodes = self._app.topology.nodes
        node_ids = (relay.peer.node_id for relay in self._app.shared.connections)
        return Counter(str(node_id) if node_id in nodes else OTHER for node_id in node_ids)
