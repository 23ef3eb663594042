"""Recently received requests, for tests that check what a client sent."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from klamm.broker.faults.exchanges import api_name
from klamm.lazy_dataclass import dataclass
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest
from klamm.protocol.messages.produce import ProduceRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from klamm.broker.context import RequestContext
    from klamm.protocol.error_response import Exchange
    from klamm.protocol.schema import Message

MAX_REQUESTS: Final = 10_000
"""Number of requests that are kept."""


@dataclass(slots=True)
class LoggedRequest:
    """A request that was received."""

    exchange: Exchange
    client_id: str | None
    node_id: int
    received_ms: int
    fault: str | None = None
    """Description of the fault that the request met, if any."""

    @property
    def api(self) -> str:
        """Kafka's name of the API."""
        return api_name(type(self.exchange.request))

    def summary(self) -> dict[str, Any]:
        """Return the request as plain values."""
        request = self.exchange.request
        parts = {(part.topic, part.partition) for part in self.exchange.parts() if part.topic is not None}
        return {
            "api": self.api,
            "version": self.exchange.version,
            "client_id": self.client_id,
            "node_id": self.node_id,
            "received_ms": self.received_ms,
            "partitions": sorted(parts, key=lambda part: (part[0], -1 if part[1] is None else part[1])),
            "group_id": _group_id(request),
            "transactional_id": getattr(request, "transactional_id", None) or None,
            "fault": self.fault,
        }


class RequestLog:
    """The last requests in the order of their arrival. Used on the event loop only."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._logged: deque[LoggedRequest] = deque(maxlen=MAX_REQUESTS)

    def add(self, exchange: Exchange, context: RequestContext) -> LoggedRequest:
        """Record a request, without its record batches, and return its entry."""
        if isinstance(exchange.request, ProduceRequest):
            exchange = exchange.with_request(_without_records(exchange.request))
        logged = LoggedRequest(exchange, context.client_id, context.node_id, self._now_ms())
        self._logged.append(logged)
        return logged

    def __iter__(self) -> Iterator[LoggedRequest]:
        """Iterate over the requests."""
        return iter(tuple(self._logged))

    def clear(self) -> None:
        """Forget all requests."""
        self._logged.clear()


def _group_id(request: Message) -> str | None:
    """Return the group that a request names. OffsetFetch names it in a list since version 8."""
    if isinstance(request, OffsetFetchRequest) and len(request.groups) == 1:
        return request.groups[0].group_id or None
    return getattr(request, "group_id", None) or None


def _without_records(request: ProduceRequest) -> ProduceRequest:
    """Return a copy without the records, which are views of the whole frame and would keep it in memory."""
    return ProduceRequest(
        transactional_id=request.transactional_id,
        acks=request.acks,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=data.name,
                topic_id=data.topic_id,
                partition_data=[ProduceRequest.PartitionProduceData(index=one.index) for one in data.partition_data],
            )
            for data in request.topic_data
        ],
    )
