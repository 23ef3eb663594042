"""The history of changes as a feature of the gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.clock import wall_clock_ms
from klamm.gateway.history.log import TOPIC, TOPIC_CONFIGS
from klamm.gateway.history.recorder import ChangeRecorder
from klamm.gateway.history.writer import HistoryWriter
from klamm.gateway.relay.features import Feature
from klamm.gateway.relay.filter import Filter
from klamm.gateway.upstream.internal_topic import InternalTopic, create_internal_topics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.admin import AdminClient
    from klamm.gateway.history.recorded_api import RecordedApi
    from klamm.gateway.relay.filter import FilterContext
    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.monitoring.exposition import Page
    from klamm.protocol.schema import Message


class HistoryFeature(Feature):
    """History of the changes that clients make.

    It is the last feature: a change that another one serves or forwards is recorded on its way upstream (``observe``),
    and all other changes pass its own filters.

    Args:
        upstream: Settings of connections to the upstream.
        apis: Recorded APIs.
    """

    def __init__(self, upstream: ConnectionSettings, apis: Sequence[RecordedApi]) -> None:
        self._writer = HistoryWriter(InternalTopic(upstream, TOPIC))
        self._recorder = ChangeRecorder({api.request: api for api in apis}, self._writer, wall_clock_ms)
        self.filters = recording_filters(apis)

    def observe(self, context: FilterContext) -> FilterContext:
        """Return a context that records the changes in forwarded requests."""
        return self._recorder.context_of(context)

    async def start(self, admin: AdminClient) -> None:
        """Start to write the history."""
        self._writer.start(lambda: create_internal_topics(admin, {TOPIC: TOPIC_CONFIGS}))

    def report(self, page: Page) -> None:
        """Add the metrics of the writer."""
        self._writer.report(page)

    async def close(self) -> None:
        """Write the latest changes, and stop."""
        await self._recorder.close()
        await self._writer.close()


def recording_filters(apis: Sequence[RecordedApi]) -> dict[int, Filter]:
    """Return a filter for each API that can change something. Its requests are forwarded through ``observe``."""
    return {
        api.request.API_KEY: Filter.serving(api.request, api.response, _forward, api.claims, ignores_rest=True)
        for api in apis
    }


async def _forward(request: Any, context: FilterContext) -> Message:
    response: Message = await context.forward(request)
    return response
