"""Metrics of a broker and the page that exports them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from klamm.monitoring.exposition import CONTENT_TYPE, Histogram, Page
from klamm.monitoring.http import HttpListener
from klamm.protocol.errors import ErrorCode
from klamm.protocol.schema import Struct

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping

    from klamm.broker.configs.service import ConfigsChanged
    from klamm.broker.context import RequestContext
    from klamm.broker.services import Services
    from klamm.server.route import Response, Route
    from klamm.server.traffic import Traffic

MAX_STRUCTS: Final = 1000
"""Maximum number of structs of a response that are searched for error codes."""


class Metrics:
    """Metrics of a broker. Used on the event loop only.

    Requests are counted by wrapping their handlers. All other figures are read when the page is requested.

    Args:
        routes: Handlers to measure, by API key.
    """

    def __init__(self, routes: Mapping[int, Route]) -> None:
        self.routes = {key: self._measured(route) for key, route in routes.items()}
        """Measured handlers, by API key."""
        self._requests: dict[str, Histogram] = {route.api.key.name: Histogram() for route in routes.values()}
        self._errors: Counter[tuple[str, str]] = Counter()
        self._config_changes: Counter[str] = Counter()
        self._started_at = time.time()
        self._services: Services | None = None
        self._traffic: Traffic | None = None
        self._connections: Callable[[], int] = lambda: 0
        self._pages: dict[str, Callable[[], tuple[str, str]]] = {"/metrics": lambda: (CONTENT_TYPE, self.page())}
        self._http = HttpListener(self._pages)

    def watch(self, services: Services, *, traffic: Traffic, connections: Callable[[], int]) -> None:
        """Set the sources of the figures that are read when the page is requested."""
        self._services, self._traffic, self._connections = services, traffic, connections
        services.configs.subscribe(self._count_change)

    def add_page(self, path: str, page: Callable[[], tuple[str, str]]) -> None:
        """Serve a further page. ``page`` returns its content type and text."""
        self._pages[path] = page

    async def listen(self, sock: socket.socket) -> None:
        """Serve the pages on a bound socket."""
        await self._http.listen(sock)

    async def close(self) -> None:
        """Stop serving the pages."""
        await self._http.close()

    def page(self) -> str:
        """Return all metrics in Prometheus' text format."""
        page = Page()
        asked = {name: histogram for name, histogram in self._requests.items() if histogram.count}
        page.family(
            "klamm_requests_total", "counter", "Completed requests.", [({"api": a}, h.count) for a, h in asked.items()]
        )
        page.family(
            "klamm_request_errors_total",
            "counter",
            "Responses with an error code; each code counts once per response.",
            [({"api": api, "error": error}, count) for (api, error), count in sorted(self._errors.items())],
        )
        page.histogram(
            "klamm_request_duration_seconds",
            "Time from the decoded request to its response, including waits for data and for the disk.",
            [({"api": api}, histogram) for api, histogram in asked.items()],
        )
        page.family(
            "klamm_config_changes_total",
            "counter",
            "Configs that were set or removed.",
            [({"resource_type": kind}, count) for kind, count in sorted(self._config_changes.items())],
        )
        page.family("klamm_connections", "gauge", "Open client connections.", [({}, self._connections())])
        if self._traffic is not None:
            sizes = self._traffic
            page.family("klamm_received_bytes_total", "counter", "Bytes from clients.", [({}, sizes.received_bytes)])
            page.family("klamm_sent_bytes_total", "counter", "Bytes to clients.", [({}, sizes.sent_bytes)])
        if self._services is not None:
            _state(page, self._services)
        page.family("process_start_time_seconds", "gauge", "Start of the process.", [({}, self._started_at)])
        page.family("process_cpu_seconds_total", "counter", "CPU time used.", [({}, time.process_time())])
        return page.text()

    def _measured(self, route: Route) -> Route:
        name, handle, errors = route.api.key.name, route.handle, self._count_errors

        async def measured(request: Any, context: RequestContext) -> Response:
            started = time.perf_counter()
            try:
                response = await handle(request, context)
            finally:
                self._requests[name].observe(time.perf_counter() - started)
            errors(name, response)
            return response

        return replace(route, handle=measured)

    def _count_errors(self, api: str, response: Response) -> None:
        if response is None:
            return
        codes = _error_codes(response) if isinstance(response, Struct) else response.error_codes()
        for code in set(codes):
            if code:
                self._errors[api, _error_name(code)] += 1

    def _count_change(self, changed: ConfigsChanged) -> None:
        self._config_changes[changed.resource_type.name] += len(changed.names)


def _state(page: Page, services: Services) -> None:
    topics = services.topics.all()
    page.family("klamm_topics", "gauge", "Topics.", [({}, len(topics))])
    page.family("klamm_partitions", "gauge", "Partitions.", [({}, sum(len(topic.partitions) for topic in topics))])
    offline, failures = services.logs.offline_count, services.logs.flush_failures
    page.family("klamm_offline_partitions", "gauge", "Partitions whose fsync has failed.", [({}, offline)])
    page.family("klamm_log_flush_failures_total", "counter", "Failed fsyncs of partitions.", [({}, failures)])
    states = Counter(group.state for group in services.groups.list_groups())
    page.family("klamm_groups", "gauge", "Groups.", [({"state": str(s)}, n) for s, n in sorted(states.items())])
    page.family(
        "klamm_policy_decisions_total",
        "counter",
        "Policy decisions.",
        [(decided._asdict(), count) for decided, count in sorted(services.policies.decisions.items())],
    )


def _error_codes(message: Struct) -> Iterator[int]:
    """Yield the non-zero error codes of a response and its nested structs, outer structs first."""
    waiting: list[Any] = [message]
    for _ in range(MAX_STRUCTS):
        if not waiting:
            return
        part = waiting.pop(0)
        for name in type(part).__slots__:
            value = getattr(part, name, None)
            if name == "error_code":
                if value:
                    yield value
            elif isinstance(value, list) and value and isinstance(value[0], Struct):
                waiting += value[: MAX_STRUCTS - len(waiting)]


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
