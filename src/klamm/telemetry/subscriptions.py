"""Subscriptions to client metrics: which metrics a client pushes, and how often (Kafka's ``ClientMetricsConfigs``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.patterns import full_matcher
from klamm.properties import parse_list
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
        PatternError: A pattern is valid in Java, but RE2 does not support it.
    """
    match = {}
    for pattern in parse_list(configs.get("match", "")):
        attribute, _, expression = pattern.partition("=")
        match[attribute.strip()] = full_matcher(expression.strip())
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
