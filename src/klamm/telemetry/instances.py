"""Client instances (Kafka's ``ClientMetricsInstance``): the checks of requests that a client sends about its metrics.

=====================  ===========================================================================================
Request                Rejected with
=====================  ===========================================================================================
GetTelemetry-          THROTTLING_QUOTA_EXCEEDED before the push interval has passed since the last request, unless
Subscriptions          the last push was rejected with UNKNOWN_SUBSCRIPTION_ID or UNSUPPORTED_COMPRESSION_TYPE
PushTelemetry          INVALID_REQUEST after a terminating push; THROTTLING_QUOTA_EXCEEDED before the push interval
                       has passed since the last push, unless it is the first one after new subscriptions or a
                       terminating one; UNKNOWN_SUBSCRIPTION_ID if the subscriptions have changed;
                       UNSUPPORTED_COMPRESSION_TYPE; TELEMETRY_TOO_LARGE
=====================  ===========================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.protocol.errors import (
    InvalidRequestError,
    TelemetryTooLargeError,
    ThrottlingQuotaExceededError,
    UnknownSubscriptionIdError,
    UnsupportedCompressionTypeError,
)

if TYPE_CHECKING:
    from uuid import UUID

    from klamm.telemetry.instances import Attributes, Subscribed

_RESERVED_BELOW: Final = 100
_SHORTEST_EXPIRY_MS: Final = 60_000


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
