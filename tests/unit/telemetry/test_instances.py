from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from klamm.protocol.errors import (
    InvalidRequestError,
    KafkaApiError,
    TelemetryTooLargeError,
    ThrottlingQuotaExceededError,
    UnknownSubscriptionIdError,
    UnsupportedCompressionTypeError,
)
from klamm.telemetry.instances import ClientInstance, Push, Subscribed, check_instance_id

ID = UUID(int=2**100)
NOW = 1_700_000_000_000
PUSH = Push(client_instance_id=ID, subscription_id=7, is_terminating=False, is_codec_known=True, size=100)


def new_instance() -> ClientInstance:
    return ClientInstance(
        client_instance_id=ID,
        attributes={},
        subscribed=Subscribed(metrics=("*",), interval_ms=1000),
        subscription_id=7,
        version=0,
    )


def push(instance: ClientInstance, at_ms: int, pushed: Push = PUSH) -> type[KafkaApiError] | None:
    try:
        instance.take_push(pushed, at_ms, max_bytes=100)
    except KafkaApiError as error:
        return type(error)
    return None


def test_first_push_after_new_subscriptions_may_come_early() -> None:
    """Clients spread their pushes: the first one comes after half to one and a half intervals."""
    instance = new_instance()
    instance.take_get(NOW)
    assert push(instance, NOW + 500) is None
    assert push(instance, NOW + 1499) is ThrottlingQuotaExceededError
    assert push(instance, NOW + 1500) is None


def test_subscriptions_are_fetched_once_per_interval() -> None:
    instance = new_instance()
    instance.take_get(NOW)
    with pytest.raises(ThrottlingQuotaExceededError):
        instance.take_get(NOW + 999)
    instance.take_get(NOW + 1000)
    assert push(instance, NOW + 1500) is None
    with pytest.raises(ThrottlingQuotaExceededError):
        instance.take_get(NOW + 2400)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (replace(PUSH, subscription_id=8), UnknownSubscriptionIdError),
        (replace(PUSH, is_codec_known=False), UnsupportedCompressionTypeError),
    ],
)
def test_rejected_push_permits_fetching_subscriptions_at_once(wrong: Push, error: type[KafkaApiError]) -> None:
    instance = new_instance()
    instance.take_get(NOW)
    assert push(instance, NOW + 1000, wrong) is error
    instance.take_get(NOW + 1000)
    assert push(instance, NOW + 1001) is None
    with pytest.raises(ThrottlingQuotaExceededError):
        instance.take_get(NOW + 1002)


def test_push_after_an_oversized_one_is_throttled() -> None:
    instance = new_instance()
    assert push(instance, NOW, replace(PUSH, size=101)) is TelemetryTooLargeError
    assert push(instance, NOW + 1) is ThrottlingQuotaExceededError


def test_terminating_push_is_accepted_at_any_time_and_is_the_last() -> None:
    """K714-05."""
    instance = new_instance()
    assert push(instance, NOW) is None
    assert push(instance, NOW + 1, replace(PUSH, is_terminating=True)) is None
    assert push(instance, NOW + 5000) is InvalidRequestError


def test_silent_client_expires_after_three_intervals_but_at_least_a_minute() -> None:
    instance = new_instance()
    instance.last_seen_ms = NOW
    assert not instance.is_expired(NOW + 60_000)
    assert instance.is_expired(NOW + 60_001)
    instance.subscribed = Subscribed(metrics=(), interval_ms=60_000)
    assert not instance.is_expired(NOW + 180_000)
    assert instance.is_expired(NOW + 180_001)


@pytest.mark.parametrize(("value", "is_valid"), [(0, False), (1, False), (99, False), (100, True)])
def test_reserved_instance_ids_are_rejected(value: int, is_valid: bool) -> None:
    if is_valid:
        check_instance_id(UUID(int=value))
        return
    with pytest.raises(InvalidRequestError):
        check_instance_id(UUID(int=value))
