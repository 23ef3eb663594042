"""Partitions beyond controller_mutation_rate (KIP-599)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from klamm.broker.quotas import UNLIMITED, MutationQuota, MutationQuotas
from klamm.configs.quotas import QuotaLimit, find_limit
from klamm.protocol.errors import ThrottlingQuotaExceededError
from klamm.server.session import Session

RATE = "controller_mutation_rate"


class LimitedUser:
    """Quotas of one user, at a time that stands still until it is moved."""

    def __init__(self, rate: float | None) -> None:
        self.now_s = 100.0
        self.rate = rate
        self.quotas = MutationQuotas(
            cast("Any", SimpleNamespace(is_empty=rate is None, limit=self._limit)), now_s=lambda: self.now_s
        )

    def _limit(self, name: str, user: str, client_id: str) -> QuotaLimit | None:
        return find_limit({(("user", "anna"),): {RATE: self.rate or 0.0}}, name, user, client_id)

    def request(self, *, is_strict: bool = True, user: str = "anna", client_id: str | None = "app") -> MutationQuota:
        session = Session(connection_id=1, node_id=1, principal=f"User:{user}")
        return self.quotas.of(session, client_id, is_strict=is_strict)


def rejected(quota: MutationQuota, partitions: int) -> bool:
    try:
        quota.charge(partitions)
    except ThrottlingQuotaExceededError:
        return True
    return False


def test_mutations_without_quota_are_not_counted() -> None:
    assert LimitedUser(None).request() is UNLIMITED
    assert LimitedUser(1.0).request(user="bert") is UNLIMITED
    assert LimitedUser(float("inf")).request() is UNLIMITED
    assert not rejected(UNLIMITED, 10**9)
    assert UNLIMITED.throttle_time_ms == 0


def test_strict_quota_accepts_one_request_then_rejects_until_paid() -> None:
    limited = LimitedUser(2.0)
    first = limited.request()
    assert not rejected(first, 22 + 5)
    assert first.throttle_time_ms == 0
    assert rejected(first, 1)
    assert first.throttle_time_ms == 2500
    other_client = limited.request(client_id=None)
    assert rejected(other_client, 1)
    limited.now_s += 0.5
    assert other_client.throttle_time_ms == 2000


def test_rejected_mutations_are_not_counted_and_debt_falls_at_the_rate() -> None:
    limited = LimitedUser(2.0)
    limited.request().charge(27)
    assert rejected(limited.request(), 100)
    limited.now_s += 2.5
    assert not rejected(limited.request(), 1)
    assert rejected(limited.request(), 1)


@pytest.mark.parametrize("rate", [1e-9, 1e-320])
def test_throttle_time_of_a_tiny_rate_fits_into_the_response(rate: float) -> None:
    quota = LimitedUser(rate).request(is_strict=False)
    quota.charge(1)
    assert quota.throttle_time_ms == 2**31 - 1


def test_versions_without_throttling_error_are_delayed() -> None:
    limited = LimitedUser(2.0)
    quota = limited.request(is_strict=False)
    assert not rejected(quota, 22)
    assert quota.throttle_time_ms == 0
    assert not rejected(quota, 5)
    assert not rejected(quota, 5)
    assert quota.throttle_time_ms == 5000
    limited.now_s += 7
    assert quota.throttle_time_ms == 0


def test_burst_of_eleven_seconds_is_accepted_after_any_idle_time() -> None:
    limited = LimitedUser(2.0)
    limited.request().charge(1)
    limited.now_s += 10_000
    quota = limited.request(is_strict=False)
    quota.charge(23)
    assert quota.throttle_time_ms == 500


def test_raised_quota_shortens_throttle_time() -> None:
    limited = LimitedUser(1.0)
    limited.request().charge(21)
    limited.rate = 10.0
    quota = limited.request()
    assert rejected(quota, 1)
    assert quota.throttle_time_ms == 1000


def test_only_clients_without_debt_are_dropped() -> None:
    limited = LimitedUser(1.0)
    buckets = limited.quotas.buckets
    owing = buckets.of("owes", limited.now_s)
    owing.take(10**6, 1.0, limited.now_s)
    for number in range(3_000):
        buckets.of(number, limited.now_s).take(1, 1.0, limited.now_s)
        limited.now_s += 1
    assert len(buckets) <= 1_000
    assert buckets.of("owes", limited.now_s) is owing
    assert owing.wait_s(1.0, limited.now_s) == pytest.approx(10**6 - 11 - 3_000)
