"""GetTelemetrySubscriptions (key 71), v0, KIP-714: the metrics that a client pushes, and how often.

A client without an instance id gets a new one. The subscriptions are the config resources CLIENT_METRICS whose
``match`` applies to the client. Requires no right, as in Kafka. Announced only if pushed metrics go anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import KafkaApiError
from klamm.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from klamm.protocol.records import Codec
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, min_version=0, max_version=0)
_CODECS: Final = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
"""Compression types in the order of Kafka's preference. Uncompressed metrics are accepted too."""


async def handle(
    request: GetTelemetrySubscriptionsRequest, context: RequestContext
) -> GetTelemetrySubscriptionsResponse:
    """Return the subscriptions of a client."""
    service = context.services.client_metrics
    try:
        instance = service.subscribe(request.client_instance_id, context.session, context.client_id)
    except KafkaApiError as error:
        return GetTelemetrySubscriptionsResponse(error_code=error.error_code)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance.client_instance_id,
        subscription_id=instance.subscription_id,
        accepted_compression_types=[int(codec) for codec in _CODECS],
        push_interval_ms=instance.subscribed.interval_ms,
        telemetry_max_bytes=service.max_bytes,
        delta_temporality=True,
        requested_metrics=list(instance.subscribed.metrics),
    )


ROUTE: Final = Route(api=API, request=GetTelemetrySubscriptionsRequest, handle=handle)
