"""Client metrics (KIP-714): client instances, their pushes (Kafka's ``ClientMetricsManager``)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.client_configs.registrations import short_name
from klamm.configs.definitions import CLIENT_METRICS_MAX_SERIES, CLIENT_METRICS_OTLP_ENDPOINT, CLIENT_METRICS_OTLP_FILE
from klamm.patterns import PatternError
from klamm.protocol.errors import (
    CorruptBatchError,
    DecompressedTooLargeError,
    InvalidRecordError,
    KafkaApiError,
    TelemetryTooLargeError,
)
from klamm.protocol.primitives import random_uuid, uuid_text
from klamm.protocol.records.codecs import decompress_view
from klamm.protocol.types import ResourceType
from klamm.telemetry import instances as names
from klamm.telemetry.instances import ClientInstance, check_instance_id, parse_subscription, subscribed, subscription_id
from klamm.telemetry.series import MetricSeries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from klamm.broker.configs.service import ConfigService
    from klamm.broker.otlp_export import OtlpExport
    from klamm.broker.settings import BrokerSettings
    from klamm.server.session import Session
    from klamm.telemetry.instances import Attributes, MetricsSubscription, Push
    from klamm.telemetry.otlp import MetricPoint

logger = logging.getLogger(__name__)

MAX_INSTANCES: Final = 16_384
"""Maximum number of client instances, as in Kafka. Beyond it, the instance that was silent for longest is removed."""
DECOMPRESSED_FACTOR: Final = 4
"""Maximum size of decompressed metrics, as a multiple of ``telemetry.max.bytes``."""
_SWEEP_MS: Final = 60_000
SHORT_BYTES: Final = 64 * 1024
"""Size of decompressed metrics up to which they are decoded at once. Longer ones are decoded in a thread."""


class ClientMetricsService:
    """Owner of the client instances and their metrics. Used on the event loop only.

    Args:
        configs: Configs of the broker and of the subscriptions (CLIENT_METRICS).
        now_ms: Wall clock, in milliseconds since the epoch.
        has_page: Whether the metrics are served on the broker's page of metrics. Otherwise no values are kept.
        exports: Targets to which all pushes are sent.
        max_series: Function that returns ``client.metrics.max.series``.
    """

    def __init__(
        self,
        configs: ConfigService,
        *,
        now_ms: Callable[[], int],
        has_page: bool,
        exports: Sequence[OtlpExport],
        max_series: Callable[[], int],
    ) -> None:
        self._configs = configs
        self._now_ms = now_ms
        self._exports = tuple(exports)
        self._instances: OrderedDict[UUID, ClientInstance] = OrderedDict()
        self._subscriptions: tuple[MetricsSubscription, ...] | None = None
        self._version = 0
        self._swept_ms = 0
        self.series = MetricSeries(max_series, now_ms=now_ms) if has_page else None
        """Values for the page of metrics; None without such a page."""
        self.counts: Counter[str] = Counter()
        """Number of pushes by outcome: ``accepted``, or the name of the error."""
        configs.subscribe(lambda _: self._on_change(), ResourceType.CLIENT_METRICS)

    @property
    def has_receiver(self) -> bool:
        """Return whether a page or an export uses pushed metrics. Otherwise the APIs are not announced, as in Kafka."""
        return self.series is not None or bool(self._exports)

    @property
    def instance_count(self) -> int:
        """Number of known client instances."""
        return len(self._instances)

    @property
    def dropped_exports(self) -> int:
        """Number of pushes that could not be exported in time."""
        return sum(export.dropped for export in self._exports)

    @property
    def max_bytes(self) -> int:
        """Maximum size of one push in bytes, compressed."""
        return self._configs.int_value("telemetry.max.bytes")

    def subscribe(self, client_instance_id: UUID, session: Session, client_id: str | None) -> ClientInstance:
        """Return a client's instance with its subscriptions (GetTelemetrySubscriptions).

        Args:
            client_instance_id: Id in the request. A client without an id sends zero and gets a new one.
            session: Connection of the request.
            client_id: Client id of the request.

        Raises:
            ThrottlingQuotaExceededError: The push interval has not passed yet.
        """
        wanted = client_instance_id if client_instance_id.int else self._new_id()
        instance = self._instance(wanted, session, client_id)
        instance.take_get(self._now_ms())
        return instance

    async def push(
        self, push: Push, compression_type: int, metrics: bytes, session: Session, client_id: str | None
    ) -> None:
        """Store and export the metrics of a client (PushTelemetry).

        Raises:
            KafkaApiError: The push is rejected, by the rules in ``telemetry.instances``. Damaged metrics
                are rejected with INVALID_RECORD.
        """
        try:
            check_instance_id(push.client_instance_id)
            instance = self._instance(push.client_instance_id, session, client_id)
            instance.take_push(push, self._now_ms(), max_bytes=self.max_bytes)
            await self._take(compression_type, metrics, instance, session)
        except KafkaApiError as error:
            self.counts[error.error_code.name] += 1
            raise
        self.counts["accepted"] += 1

    def forget_session(self, session: Session) -> None:
        """Remove the instance of a connection that has ended, unless the client continues on another connection."""
        if session.client_instance_id is None:
            return
        instance = self._instances.get(session.client_instance_id)
        if instance is not None and instance.connection_id == session.connection_id:
            self._forget(session.client_instance_id)

    async def close(self) -> None:
        """Send the queued metrics and stop the exports."""
        for export in self._exports:
            await export.close()

    # -- instances

    def _new_id(self) -> UUID:
        while (drawn := random_uuid()) in self._instances:
            pass
        return drawn

    def _instance(self, client_instance_id: UUID, session: Session, client_id: str | None) -> ClientInstance:
        """Return the instance of an id. Its subscriptions are merged again if one of them has changed."""
        now_ms = self._now_ms()
        self._sweep(now_ms)
        instance = self._instances.get(client_instance_id)
        if instance is None:
            if len(self._instances) >= MAX_INSTANCES:
                self._forget(next(iter(self._instances)))
            attributes = _attributes(client_instance_id, session, client_id)
            instance = self._instances[client_instance_id] = self._merged(client_instance_id, attributes)
        elif instance.version != self._version:
            was_terminating = instance.is_terminating
            instance = self._instances[client_instance_id] = self._merged(client_instance_id, instance.attributes)
            instance.is_terminating = was_terminating
        self._instances.move_to_end(client_instance_id)
        instance.last_seen_ms = now_ms
        instance.connection_id = session.connection_id
        session.client_instance_id = client_instance_id
        return instance

    def _merged(self, client_instance_id: UUID, attributes: Attributes) -> ClientInstance:
        merged = subscribed(self._current(), attributes)
        return ClientInstance(
            client_instance_id=client_instance_id,
            attributes=attributes,
            subscribed=merged,
            subscription_id=subscription_id(merged, client_instance_id),
            version=self._version,
        )

    def _current(self) -> tuple[MetricsSubscription, ...]:
        if self._subscriptions is None:
            self._subscriptions = tuple(self._parsed())
        return self._subscriptions

    def _parsed(self) -> list[MetricsSubscription]:
        subscriptions = []
        for name in self._configs.resource_names(ResourceType.CLIENT_METRICS):
            try:
                subscriptions.append(parse_subscription(name, self._configs.set_on_client_metrics(name)))
            except PatternError as error:
                logger.warning("Client metrics subscription %s matches no client: %s", name, error)
        return subscriptions

    def _on_change(self) -> None:
        self._subscriptions = None
        self._version += 1

    def _sweep(self, now_ms: int) -> None:
        """Remove silent instances, once a minute."""
        if now_ms - self._swept_ms < _SWEEP_MS:
            return
        self._swept_ms = now_ms
        for expired in [key for key, instance in self._instances.items() if instance.is_expired(now_ms)]:
            self._forget(expired)

    def _forget(self, client_instance_id: UUID) -> None:
        self._instances.pop(client_instance_id, None)
        if self.series is not None:
            self.series.forget(client_instance_id)

    # -- metrics

    async def _take(self, compression_type: int, metrics: bytes, instance: ClientInstance, session: Session) -> None:
        limit = DECOMPRESSED_FACTOR * self.max_bytes
        attributes = instance.attributes
        added = {**attributes, "principal": session.principal} if self._exports else None
        try:
            exported, points = _decoded(compression_type, metrics, min(limit, SHORT_BYTES), added)
        except TelemetryTooLargeError:
            exported, points = await asyncio.to_thread(_decoded, compression_type, metrics, limit, added)
        labels = {  # short, because each series repeats them
            names.CLIENT_ID: short_name(attributes[names.CLIENT_ID]),
            names.CLIENT_INSTANCE_ID: attributes[names.CLIENT_INSTANCE_ID],
            "principal": short_name(session.principal),
        }
        if self.series is not None and instance.client_instance_id in self._instances:
            self.series.take(instance.client_instance_id, labels, points)
        if exported:
            for export in self._exports:
                export.put(exported)


def _attributes(client_instance_id: UUID, session: Session, client_id: str | None) -> Attributes:
    return {
        names.CLIENT_INSTANCE_ID: uuid_text(client_instance_id),
        names.CLIENT_ID: client_id or "",
        names.CLIENT_SOFTWARE_NAME: session.software_name,
        names.CLIENT_SOFTWARE_VERSION: session.software_version,
        names.CLIENT_SOURCE_ADDRESS: session.client_host,
        names.CLIENT_SOURCE_PORT: str(session.client_port),
    }


def _decoded(
    compression_type: int, metrics: bytes, limit: int, added: Attributes | None
) -> tuple[bytes, list[MetricPoint]]:
    """Return the decompressed metrics, with the added attributes if there are any, and their data points."""
    from klamm.telemetry.otlp import OtlpError, decode_metrics, with_attributes  # noqa: PLC0415  # at the first push

    try:
        # A client with nothing to report may send no bytes at all, whatever the compression type.
        data = bytes(decompress_view(compression_type, metrics, limit=limit)) if metrics else b""
        if len(data) > limit:  # The metrics were not compressed.
            raise TelemetryTooLargeError(f"{len(data)} bytes of metrics exceed the limit of {limit}")
        points = decode_metrics(data)
        return data if added is None else with_attributes(data, added), points
    except DecompressedTooLargeError as error:
        raise TelemetryTooLargeError(f"Decompressed metrics exceed the limit of {limit} bytes") from error
    except (CorruptBatchError, OtlpError) as error:
        raise InvalidRecordError(str(error)) from error


def open_client_metrics(
    settings: BrokerSettings, configs: ConfigService, *, now_ms: Callable[[], int]
) -> ClientMetricsService:
    """Return the service with the exports that the properties name.

    Args:
        settings: Settings of the broker.
        configs: Configs of the broker and of the subscriptions.
        now_ms: Wall clock, in milliseconds since the epoch.

    Raises:
        SettingsError: The endpoint is not a URL.
    """
    exports: list[OtlpExport] = []
    static = settings.static_configs
    file, endpoint = static.get(CLIENT_METRICS_OTLP_FILE), static.get(CLIENT_METRICS_OTLP_ENDPOINT)
    if file or endpoint:
        from klamm.broker.otlp_export import file_export, http_export  # noqa: PLC0415  # start-up time

        if file:
            exports.append(file_export(Path(file)))
        if endpoint:
            exports.append(http_export(endpoint))
    return ClientMetricsService(
        configs,
        now_ms=now_ms,
        has_page=settings.metrics is not None,
        exports=exports,
        max_series=lambda: configs.int_value(CLIENT_METRICS_MAX_SERIES),
    )
