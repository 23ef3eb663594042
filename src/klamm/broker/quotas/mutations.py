"""Quotas on the partitions a client creates and deletes (KIP-599), after Kafka's ControllerMutationQuotaManager."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from klamm.configs.quotas import CONTROLLER_MUTATION_RATE
from klamm.protocol.errors import ThrottlingQuotaExceededError
from klamm.server.quotas.client_counters import ClientCounters
from klamm.server.quotas.rates import SAMPLE_S, SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.broker.quotas.service import QuotaService
    from klamm.server.session import Session

BURST_S: Final = SAMPLES * SAMPLE_S
"""Size of a bucket, in seconds of its rate. So much may be used at once."""


class TokenBucket:
    """Token bucket: filled at a constant rate up to a burst size (Kafka's TokenBucket)."""

    __slots__ = ("_at_s", "_full_at_s", "_tokens")

    def __init__(self) -> None:
        self._tokens = float("inf")
        self._at_s = self._full_at_s = 0.0

    def wait_s(self, rate: float, now_s: float) -> float:
        """Return the seconds until the bucket is no longer negative; 0.0 when it is not.

        ``rate`` is in tokens per second.
        """
        self._fill(rate, now_s)
        return max(0.0, -self._tokens / rate)

    def take(self, tokens: float, rate: float, now_s: float) -> None:
        """Take tokens. The bucket may become negative."""
        self._fill(rate, now_s)
        self._tokens -= tokens
        self._full_at_s = now_s + BURST_S - self._tokens / rate

    def is_idle(self, now_s: float) -> bool:
        """Return whether the bucket is full, so it may be dropped."""
        return now_s >= self._full_at_s

    def _fill(self, rate: float, now_s: float) -> None:
        self._tokens = min(BURST_S * rate, self._tokens + rate * (now_s - self._at_s))
        self._at_s = now_s


class MutationQuota:
    """Quota on partition mutations of one request."""

    __slots__ = ("_bucket", "_free_at_s", "_is_strict", "_now_s", "_rate")

    def __init__(self, bucket: TokenBucket | None, rate: float, *, is_strict: bool, now_s: Callable[[], float]) -> None:
        self._bucket = bucket
        self._rate = rate
        self._is_strict = is_strict
        self._now_s = now_s
        self._free_at_s = 0.0

    @property
    def throttle_time_ms(self) -> int:
        """Remaining wait of the client in milliseconds, for the response."""
        return 0 if self._free_at_s == 0.0 else max(0, round((self._free_at_s - self._now_s()) * 1000))

    def charge(self, partitions: int) -> None:
        """Charge partitions that are about to be created or deleted.

        A request with ``validate_only`` is charged as well.

        ==========  ================================  =====================================================
        Quota       Bucket is negative                Bucket is not negative
        ==========  ================================  =====================================================
        strict      reject, charge nothing            accept any number of partitions
        permissive  accept, the client is throttled   accept any number; throttle if negative afterwards
        ==========  ================================  =====================================================

        Raises:
            ThrottlingQuotaExceededError: A strict quota is exceeded. Nothing is charged.
        """
        bucket = self._bucket
        if bucket is None:
            return
        now_s = self._now_s()
        if self._is_strict and (wait_s := bucket.wait_s(self._rate, now_s)) > 0:
            self._free_at_s = now_s + wait_s
            raise ThrottlingQuotaExceededError
        bucket.take(partitions, self._rate, now_s)
        if not self._is_strict and (wait_s := bucket.wait_s(self._rate, now_s)) > 0:
            self._free_at_s = now_s + wait_s


class MutationQuotas:
    """Quotas on partition mutations of all clients. Used on the event loop only.

    Args:
        quotas: Quotas of users and client ids.
        now_s: Monotonic clock, in seconds.
    """

    def __init__(self, quotas: QuotaService, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._quotas = quotas
        self._now_s = now_s
        self._buckets = ClientCounters(TokenBucket)

    def of(self, session: Session, client_id: str | None, *, is_strict: bool) -> MutationQuota:
        """Return the quota of a request.

        Args:
            session: Connection of the request.
            client_id: Client id of the request header.
            is_strict: Whether the request's version has THROTTLING_QUOTA_EXCEEDED. Clients with older versions are only
                throttled.
        """
        if self._quotas.is_empty:
            return UNLIMITED
        found = self._quotas.limit(CONTROLLER_MUTATION_RATE, session.principal_name, client_id or "")
        if found is None:
            return UNLIMITED
        bucket = self._buckets.of(found.shared_by, self._now_s())
        return MutationQuota(bucket, found.value, is_strict=is_strict, now_s=self._now_s)


UNLIMITED: Final = MutationQuota(None, 0.0, is_strict=False, now_s=time.monotonic)
"""Quota without a limit. It has no state, so all requests share it."""
