"""Subscriptions of client metrics (KIP-714), and the client instances that push them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.lazy_dataclass import dataclass
from klamm.patterns import full_matcher
from klamm.properties import parse_list
from klamm.protocol.errors import (
    InvalidRequestError,
    TelemetryTooLargeError,
    ThrottlingQuotaExceededError,
    UnknownSubscriptionIdError,
    UnsupportedCompressionTypeError,
)
from klamm.protocol.records.checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from uuid import UUID

DEFAULT_INTERVAL_MS: Final = 300_000
ALL_METRICS: Final = "*"

CLIENT_INSTANCE_ID: Final = "client_instance_id"
CLIENT_ID: Final = "client_id"
CLIENT_SOFTWARE_NAME: Final = "client_software_name"
CLIENT_SOFTWARE_VERSION: Final = "client_software_version"
CLIENT_SOURCE_ADDRESS: Final = "client_source_address"
CLIENT_SOURCE_PORT: Final = "client_source_port"

Attributes: TypeAlias = "Mapping[str, str]"
"""Attributes of a client that ``match`` compares, by their names in the config."""
_RESERVED_BELOW: Final = 100
_SHORTEST_EXPIRY_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSubscription:
    """Subscription: the configs of one resource of type CLIENT_METRICS."""

    name: str
    metrics: frozenset[str]
    """Prefixes of metric names. ``*`` means all metrics."""
    interval_ms: int
    match: Mapping[str, Callable[[str], bool]]
    """Patterns that the client's attributes have to match, by attribute. Empty matches every client."""

    def matches(self, attributes: Attributes) -> bool:
        """Return whether the subscription applies to a client."""
        return all(name in attributes and matches(attributes[name]) for name, matches in self.match.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """All subscriptions that apply to one client, merged."""

    metrics: tuple[str, ...]
    """Prefixes of metric names, sorted. Empty means that the client pushes nothing."""
    interval_ms: int
    """Smallest interval of the subscriptions."""


def parse_subscription(name: str, configs: Mapping[str, str]) -> MetricsSubscription:
    """Return the subscription of a resource, whose configs were checked when they were set.

    Raises:
        PatternError: A pattern is valid in Java, but RE2 does not support it, or it is too complex.
    """
    match = {}
    for pattern in parse_list(configs.get("match", "")):
        attribute, _, expression = pattern.partition("=")
        match[attribute.strip()] = full_matcher(expression.strip(), is_from_client=True)
    return MetricsSubscription(
        name=name,
        metrics=frozenset(parse_list(configs.get("metrics", ""))),
        interval_ms=int(configs.get("interval.ms", DEFAULT_INTERVAL_MS)),
        match=match,
    )


def subscribed(subscriptions: Iterable[MetricsSubscription], attributes: Attributes) -> Subscribed:
    """Merge the subscriptions that apply to a client."""
    metrics: set[str] = set()
    interval_ms = DEFAULT_INTERVAL_MS
    for subscription in subscriptions:
        if subscription.matches(attributes):
            metrics |= subscription.metrics
            interval_ms = min(interval_ms, subscription.interval_ms)
    return Subscribed(
        metrics=(ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics)), interval_ms=interval_ms
    )


def subscription_id(of_client: Subscribed, client_instance_id: UUID) -> int:
    """Return the subscription id as Kafka computes it: CRC-32C of metrics and interval, XOR hash of the instance id.

    Kafka's order of the metrics is that of a hash set; here they are sorted. The result is a signed 32-bit integer.
    """
    text = f"[{', '.join(of_client.metrics)}]{of_client.interval_ms}"
    high, low = client_instance_id.int >> 64, client_instance_id.int & 0xFFFFFFFFFFFFFFFF
    folded = high ^ low
    value = crc32c(text.encode()) ^ (folded >> 32) ^ (folded & 0xFFFFFFFF)
    return value - 2**32 if value >= 2**31 else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """A PushTelemetry request."""

    client_instance_id: UUID
    subscription_id: int
    is_terminating: bool
    is_codec_known: bool
    """Whether the compression type is one of Kafka's."""
    size: int
    """Size of the compressed metrics in bytes."""


@dataclass(slots=True, kw_only=True)
class ClientInstance:
    """State of one client instance. Only ``ClientMetricsService`` changes it."""

    client_instance_id: UUID
    attributes: Attributes
    subscribed: Subscribed
    subscription_id: int
    version: int
    """Version of all subscriptions at the time when ``subscribed`` was merged from them."""
    connection_id: int | None = None
    """Connection of the latest request. None before the first one."""
    last_get_ms: int = 0
    last_push_ms: int = 0
    last_seen_ms: int = 0
    is_terminating: bool = False
    may_ask_again: bool = False
    """Whether the last push was rejected with an error after which the client fetches its subscriptions at once."""

    def is_expired(self, now_ms: int) -> bool:
        """Return whether the client has sent no request for three push intervals, and at least for a minute."""
        return now_ms - self.last_seen_ms > max(_SHORTEST_EXPIRY_MS, 3 * self.subscribed.interval_ms)

    def take_get(self, now_ms: int) -> None:
        """Accept a GetTelemetrySubscriptions request.

        Raises:
            ThrottlingQuotaExceededError: The push interval has not passed yet.
        """
        if now_ms - max(self.last_get_ms, self.last_push_ms) >= self.subscribed.interval_ms:
            self.last_get_ms = now_ms
        elif not self.may_ask_again:
            raise ThrottlingQuotaExceededError("The request arrived before the next push interval")
        else:
            self.last_get_ms = max(now_ms, self.last_push_ms + 1)
        self.may_ask_again = False

    def take_push(self, push: Push, now_ms: int, *, max_bytes: int) -> None:
        """Accept a PushTelemetry request. The caller decodes its metrics afterwards.

        Raises:
            KafkaApiError: The push is rejected, by the rules in the module's table.
        """
        was_terminating, self.is_terminating = self.is_terminating, push.is_terminating
        if was_terminating:
            raise InvalidRequestError("The client sent a terminating push before")
        is_due = self.last_get_ms > self.last_push_ms or now_ms - self.last_push_ms >= self.subscribed.interval_ms
        if is_due:
            self.last_push_ms = now_ms
        elif not push.is_terminating:
            raise ThrottlingQuotaExceededError("The request arrived before the next push interval")
        try:
            self._check(push, max_bytes)
        except (UnknownSubscriptionIdError, UnsupportedCompressionTypeError):
            self.may_ask_again = True
            raise

    def _check(self, push: Push, max_bytes: int) -> None:
        if push.subscription_id != self.subscription_id:
            raise UnknownSubscriptionIdError(f"Unknown subscription id {push.subscription_id}")
        if not push.is_codec_known:
            raise UnsupportedCompressionTypeError("Unknown compression type")
        if push.size > max_bytes:
            raise TelemetryTooLargeError(f"{push.size} bytes of metrics exceed the limit of {max_bytes}")


def check_instance_id(client_instance_id: UUID) -> None:
    """Check the instance id of a push.

    Raises:
        InvalidRequestError: The id is reserved, such as zero.
    """
    if client_instance_id.int < _RESERVED_BELOW:
        raise InvalidRequestError("Invalid client instance id")
