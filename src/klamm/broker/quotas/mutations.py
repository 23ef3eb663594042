"""How many partitions a client may create and delete (KIP-599), after Kafka's ControllerMutationQuotaManager."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from klamm.broker.quotas.rates import SAMPLE_S, SAMPLES
from klamm.broker.quotas.remembered import Remembered
from klamm.configs.quotas import CONTROLLER_MUTATION_RATE
from klamm.protocol.errors import ThrottlingQuotaExceededError

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.broker.configs.quotas import QuotaService
    from klamm.broker.session import Session

BURST_S: Final = SAMPLES * SAMPLE_S
"""As many seconds' worth may come at once."""


class TokenBucket:
    """What is left of a rate: filled all the time, up to a burst (Kafka's TokenBucket)."""

    __slots__ = ("_at_s", "_full_at_s", "_tokens")

    def __init__(self) -> None:
        self._tokens = float("inf")
        self._at_s = self._full_at_s = 0.0

    def wait_s(self, rate: float, now_s: float) -> float:
        """Return how long it takes, at ``rate`` tokens a second, until none is owed; 0.0 when none is."""
        self._fill(rate, now_s)
        return max(0.0, -self._tokens / rate)

    def take(self, tokens: float, rate: float, now_s: float) -> None:
        """Take tokens, also more than there are."""
        self._fill(rate, now_s)
        self._tokens -= tokens
        self._full_at_s = now_s + BURST_S - self._tokens / rate

    def is_idle(self, now_s: float) -> bool:
        """Tell whether it is full again."""
        return now_s >= self._full_at_s

    def _fill(self, rate: float, now_s: float) -> None:
        self._tokens = min(BURST_S * rate, self._tokens + rate * (now_s - self._at_s))
        self._at_s = now_s


class MutationQuota:
    """What one request may do; without a limit, anything."""

    __slots__ = ("_bucket", "_free_at_s", "_is_strict", "_now_s", "_rate")

    def __init__(self, bucket: TokenBucket | None, rate: float, *, is_strict: bool, now_s: Callable[[], float]) -> None:
        self._bucket = bucket
        self._rate = rate
        self._is_strict = is_strict
        self._now_s = now_s
        self._free_at_s = 0.0

    @property
    def throttle_time_ms(self) -> int:
        """How long the client is to wait from now on, as it is told."""
        return 0 if self._free_at_s == 0.0 else max(0, round((self._free_at_s - self._now_s()) * 1000))

    def charge(self, partitions: int) -> None:
        """Count partitions that are about to be created or deleted, or would be.

        A strict quota refuses them while something is owed and lets any number pass when nothing is. The other one
        lets everything pass, and the client wait.

        Raises:
            ThrottlingQuotaExceededError: They are too many, and nothing is counted.
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
    """The quotas on partitions of all clients. Loop-confined.

    Args:
        quotas: What is set for users and client ids.
        now_s: A clock that never goes back.
    """

    def __init__(self, quotas: QuotaService, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._quotas = quotas
        self._now_s = now_s
        self._buckets = Remembered(TokenBucket)

    def of(self, session: Session, client_id: str | None, *, is_strict: bool) -> MutationQuota:
        """Return what a request may do.

        Args:
            session: Whose request it is.
            client_id: From its header.
            is_strict: Whether its version knows THROTTLING_QUOTA_EXCEEDED; older ones are only made to wait.
        """
        if self._quotas.is_empty:
            return UNLIMITED
        found = self._quotas.limit(CONTROLLER_MUTATION_RATE, session.principal_name, client_id or "")
        if found is None:
            return UNLIMITED
        bucket = self._buckets.of(found.shared_by, self._now_s())
        return MutationQuota(bucket, found.value, is_strict=is_strict, now_s=self._now_s)


UNLIMITED: Final = MutationQuota(None, 0.0, is_strict=False, now_s=time.monotonic)
"""Loop-confined like all others, and never changed."""
