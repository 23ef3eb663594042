"""Metrics of requests, connections and bytes. This module is imported only if metrics are served."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from klamm.monitoring.exposition import Histogram
from klamm.protocol.error_response import ERROR_FIELDS
from klamm.protocol.errors import ErrorCode
from klamm.protocol.schema import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from klamm.monitoring.exposition import Page
    from klamm.server.connection import Traffic
    from klamm.server.context import HandlerContext
    from klamm.server.route import Response, Route

MAX_STRUCTS: Final = 1000
"""Maximum number of structs of a response that are searched for error codes."""


class RequestMetrics:
    """Metrics of the requests of a server. Used on the event loop only.

    Requests are counted by wrapping their handlers.

    Args:
        routes: Handlers to measure, by API key.
    """

    def __init__(self, routes: Mapping[int, Route]) -> None:
        self.routes = {key: self._measured(route) for key, route in routes.items()}
        """Measured handlers, by API key."""
        self._requests: dict[str, Histogram] = {route.api.key.name: Histogram() for route in routes.values()}
        self._errors: Counter[tuple[str, str]] = Counter()

    @property
    def request_count(self) -> int:
        """Number of completed requests."""
        return sum(histogram.count for histogram in self._requests.values())

    def write(self, page: Page, *, connections: int, traffic: Traffic) -> None:
        """Add the metrics to a page."""
        histograms = {name: histogram for name, histogram in self._requests.items() if histogram.count}
        page.family(
            "klamm_requests_total",
            "counter",
            "Completed requests.",
            [({"api": a}, h.count) for a, h in histograms.items()],
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
            [({"api": api}, histogram) for api, histogram in histograms.items()],
        )
        page.family("klamm_connections", "gauge", "Open client connections.", [({}, connections)])
        page.family("klamm_received_bytes_total", "counter", "Bytes from clients.", [({}, traffic.received_bytes)])
        page.family("klamm_sent_bytes_total", "counter", "Bytes to clients.", [({}, traffic.sent_bytes)])

    def _measured(self, route: Route) -> Route:
        name, handle, errors = route.api.key.name, route.handle, self._count_errors

        async def measured(request: Any, context: HandlerContext) -> Response:
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


def _error_codes(message: Struct) -> Iterator[int]:
    """Yield the non-zero error codes of a response and its nested structs, outer structs first."""
    waiting: list[Any] = [message]
    for _ in range(MAX_STRUCTS):
        if not waiting:
            return
        part = waiting.pop(0)
        for name in type(part).__slots__:
            value = getattr(part, name, None)
            if name in ERROR_FIELDS:
                if value:
                    yield value
            elif isinstance(value, list) and value and isinstance(value[0], Struct):
                waiting += value[: MAX_STRUCTS - len(waiting)]


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
