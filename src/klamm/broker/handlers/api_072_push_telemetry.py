"""PushTelemetry (key 72), v0, KIP-714: metrics of a client in OpenTelemetry's format, compressed or not.

The errors are those of ``telemetry.instances``; metrics that cannot be read are INVALID_RECORD. Requires no right,
as in Kafka. Announced only if pushed metrics go anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import KafkaApiError
from klamm.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from klamm.protocol.records import Codec
from klamm.server.route import Route
from klamm.telemetry.instances import Push

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.PUSH_TELEMETRY, min_version=0, max_version=0)


async def handle(request: PushTelemetryRequest, context: RequestContext) -> PushTelemetryResponse:
    """Take the metrics of a client."""
    metrics = bytes(request.metrics)
    push = Push(
        client_instance_id=request.client_instance_id,
        subscription_id=request.subscription_id,
        is_terminating=request.terminating,
        is_codec_known=request.compression_type in set(Codec),
        size=len(metrics),
    )
    try:
        await context.services.client_metrics.push(
            push, request.compression_type, metrics, context.session, context.client_id
        )
    except KafkaApiError as error:
        return PushTelemetryResponse(error_code=error.error_code)
    return PushTelemetryResponse()


ROUTE: Final = Route(api=API, request=PushTelemetryRequest, handle=handle, is_mostly_data=True)
