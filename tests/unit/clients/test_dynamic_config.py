"""Timing of config requests, and handling of their responses: without a network or a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.clients.dynamic_config import ConfigChange, DynamicConfigs, Origin, normalise_consumer, normalise_producer
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsResponse

if TYPE_CHECKING:
    from klamm.clients.dynamic_config import Values

ANNOUNCED = {"client.configs": (1, 1)}


def producer(acks: str = "1", *, is_idempotent: bool = False) -> DynamicConfigs:
    def normalise(values: Values) -> Values:
        return normalise_producer(values, is_idempotent=is_idempotent)

    return DynamicConfigs(
        client_id="app1", static={"acks": acks}, normalise=normalise, interval_s=300.0, retry_backoff_s=0.1
    )


def answer(**values: str) -> DescribeClientConfigsResponse:
    entry = DescribeClientConfigsResponse.EntryData(
        values=[
            DescribeClientConfigsResponse.ValueData(key=key.replace("_", "."), value=value)
            for key, value in values.items()
        ]
    )
    return DescribeClientConfigsResponse(error_message=None, entries=[entry])


def error_response(code: int) -> DescribeClientConfigsResponse:
    return DescribeClientConfigsResponse(error_code=code, error_message="no", entries=None)


def test_first_request_is_due_at_once_and_registers_supported_configs() -> None:
    """K649-30: The user is taken from the connection's authenticated principal (name without "User:".

    K649-39: A client registers its supported keys at start-up through a DescribeClientConfigs request (SupportedConfigs
    non-null).

    K649-75: Producer registers [acks]; consumer registers [session.timeout.ms, heartbeat.interval.ms].
    """
    configs = producer()
    assert configs.due_in_s(0.0) == 0.0
    request = configs.request()
    assert [(c.entity_type, c.match_type, c.match) for c in request.components] == [("client-id", 0, "app1")]
    assert request.supported_configs == ["acks"]
    assert request.resolve_entity


def test_no_request_is_due_while_one_is_in_flight() -> None:
    """K649-72: Fetch interval = metadata.max.age.ms (default 300000); at most one request in flight; failed (no
    response) -> retry, expiry clock not reset.
    """
    configs = producer()
    configs.request()
    assert configs.due_in_s(1_000.0) is None


def test_second_request_follows_the_interval_without_registration() -> None:
    """K649-39: A client registers its supported keys at start-up through a DescribeClientConfigs request
    (SupportedConfigs non-null).

    K649-72: Fetch interval = metadata.max.age.ms (default 300000); at most one request in flight; failed (no response)
    -> retry, expiry clock not reset.
    """
    configs = producer()
    configs.request()
    configs.on_answer(10.0, answer())
    assert configs.due_in_s(10.0) == 300.0
    assert configs.due_in_s(310.0) == 0.0
    assert configs.request().supported_configs is None


def test_dynamic_value_overrides_static_value() -> None:
    """K649-34: Resolved dynamic values override the client's static (.properties) values; static overrides built-in
    defaults.

    K649-74: Producer: fetch in the send loop; acks of later Produce requests follow the dynamic value.
    """
    configs = producer("1")
    configs.request()
    update = configs.on_answer(0.0, answer(acks="-1"))
    assert update is not None
    assert update.changes == (ConfigChange(name="acks", old="1", new="all", origin=Origin.DYNAMIC),)
    assert configs.effective == update.effective == {"acks": "all"}


def test_removed_dynamic_value_reverts_to_static_value() -> None:
    """K649-77: A key that vanishes from the answer reverts to the client's static value."""
    configs = producer("1")
    configs.request()
    configs.on_answer(0.0, answer(acks="all"))
    configs.request()
    update = configs.on_answer(300.0, answer())
    assert update is not None
    assert update.changes == (ConfigChange(name="acks", old="all", new="1", origin=Origin.STATIC),)


def test_repeated_response_changes_nothing() -> None:
    configs = producer("1")
    configs.request()
    assert configs.on_answer(0.0, answer(acks="0")) is not None
    configs.request()
    assert configs.on_answer(300.0, answer(acks="0")) is None


def test_unknown_keys_are_ignored() -> None:
    """K649-37: Values are not filtered by SupportedConfigs; unknown keys are the client's to ignore.

    K649-80: Unknown keys in Values are ignored.
    """
    configs = producer("1")
    configs.request()
    update = configs.on_answer(0.0, answer(acks="0", linger_ms="5"))
    assert update is not None
    assert dict(update.effective) == {"acks": "0"}


@pytest.mark.parametrize("bad", ["2", "", "none"])
def test_invalid_value_is_rejected_and_last_good_value_kept(bad: str, caplog: pytest.LogCaptureFixture) -> None:
    """K649-76: A set that fails client validation (e.g. heartbeat >= session."""
    configs = producer("1")
    configs.request()
    configs.on_answer(0.0, answer(acks="0"))
    for now in (300.0, 600.0):
        configs.request()
        assert configs.on_answer(now, answer(acks=bad)) is None
    assert configs.effective == {"acks": "0"}
    assert configs.due_in_s(600.0) == 300.0
    assert caplog.text.count("are rejected") == 1


def test_idempotent_producer_accepts_only_acks_all() -> None:
    """K649-76: A set that fails client validation (e.g. heartbeat >= session."""
    configs = producer("all", is_idempotent=True)
    configs.request()
    assert configs.on_answer(0.0, answer(acks="1")) is None
    assert configs.effective == {"acks": "all"}


def test_change_is_logged_with_old_and_new_value(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    configs = producer("1")
    configs.request()
    configs.on_answer(0.0, answer(acks="all"))
    assert "acks of client app1 changed from 1 to all (dynamic)" in caplog.text


@pytest.mark.parametrize("features", [{}, {"metadata.version": (1, 27)}, {"client.configs": (2, 3)}])
def test_broker_without_the_feature_is_not_queried(features: dict[str, tuple[int, int]]) -> None:
    """K649-67: New client, old broker: broker answers 42 (or does not offer the API); the client disables the feature
    and keeps working with static configs.

    K649-70: Also treat as "old broker": key absent in ApiVersions, error 35, unparsable answer, connection closed on
    the first try.
    """
    configs = producer()
    assert not configs.on_features(features)
    assert configs.due_in_s(0.0) is None
    assert configs.disabled_because is not None


def test_broker_with_the_feature_is_queried() -> None:
    """K649-69: Both new: feature used."""
    configs = producer()
    assert configs.on_features(ANNOUNCED)
    assert configs.due_in_s(0.0) == 0.0


@pytest.mark.parametrize("code", [42, 35])
def test_unsupported_error_disables_dynamic_configs(code: int, caplog: pytest.LogCaptureFixture) -> None:
    """K649-67: New client, old broker: broker answers 42 (or does not offer the API); the client disables the feature
    and keeps working with static configs.

    K649-70: Also treat as "old broker": key absent in ApiVersions, error 35, unparsable answer, connection closed on
    the first try.
    """
    caplog.set_level("INFO")
    configs = producer()
    configs.request()
    assert configs.on_answer(0.0, error_response(code)) is None
    assert configs.due_in_s(1e9) is None
    assert caplog.text.count("Dynamic configs are off") == 1


def test_disconnect_on_first_request_disables_dynamic_configs() -> None:
    """K649-70: Also treat as "old broker": key absent in ApiVersions, error 35, unparsable answer, connection closed on
    the first try.
    """
    configs = producer()
    configs.request()
    configs.on_no_answer(0.0, ConnectionError("closed"))
    assert configs.due_in_s(1e9) is None


def test_later_disconnect_is_retried() -> None:
    """K649-72: Fetch interval = metadata.max.age.ms (default 300000); at most one request in flight; failed (no
    response) -> retry, expiry clock not reset.
    """
    configs = producer()
    configs.request()
    configs.on_answer(0.0, answer())
    configs.request()
    configs.on_no_answer(300.0, ConnectionError("closed"))
    assert configs.due_in_s(300.0) == pytest.approx(0.1)


def test_disconnect_after_an_error_response_is_retried() -> None:
    """A gateway that is loading answers COORDINATOR_LOAD_IN_PROGRESS, so it knows the API."""
    # given
    configs = producer()
    configs.request()
    configs.on_answer(0.0, error_response(14))
    configs.request()
    # when
    configs.on_no_answer(1.0, ConnectionError("closed"))
    # then
    assert configs.due_in_s(1.0) is not None
    assert configs.request().supported_configs == ["acks"]


def test_unreadable_response_disables_dynamic_configs() -> None:
    """K649-70: Also treat as "old broker": key absent in ApiVersions, error 35, unparsable answer, connection closed on
    the first try.
    """
    configs = producer()
    configs.request()
    configs.on_unreadable(ValueError("garbage"))
    assert configs.due_in_s(1e9) is None


def test_response_without_resolved_entry_disables_dynamic_configs() -> None:
    """K649-31: Exactly one entry comes back, entity {user, client-id}, with merged Values."""
    configs = producer()
    configs.request()
    assert configs.on_answer(0.0, DescribeClientConfigsResponse(error_message=None, entries=[])) is None
    assert configs.disabled_because is not None


def test_failures_are_retried_with_backoff_up_to_the_interval() -> None:
    """K649-72: Fetch interval = metadata.max.age.ms (default 300000); at most one request in flight; failed (no
    response) -> retry, expiry clock not reset.
    """
    configs = producer()
    pauses = []
    for _ in range(14):
        configs.request()
        configs.on_not_sent(0.0)
        pauses.append(configs.due_in_s(0.0))
    assert pauses[:3] == [pytest.approx(0.1), pytest.approx(0.2), pytest.approx(0.4)]
    assert pauses[-1] == 300.0
    assert configs.request().supported_configs == ["acks"]


def test_other_errors_are_retried_with_registration() -> None:
    """K649-72: Fetch interval = metadata.max.age.ms (default 300000); at most one request in flight; failed (no
    response) -> retry, expiry clock not reset.
    """
    configs = producer()
    configs.request()
    assert configs.on_answer(0.0, error_response(56)) is None
    assert configs.due_in_s(0.0) == pytest.approx(0.1)
    assert configs.request().supported_configs == ["acks"]


def test_library_specific_static_value_applies_until_overridden() -> None:
    """K649-77. librdkafka takes acks=2; whether a client can run with its own values is the library's to say."""
    configs = producer("2")
    assert configs.effective == {"acks": "2"}
    for values, new, origin in [({"acks": "all"}, "all", Origin.DYNAMIC), ({}, "2", Origin.STATIC)]:
        configs.request()
        update = configs.on_answer(0.0, answer(**values))
        assert update is not None
        assert [(change.new, change.origin) for change in update.changes] == [(new, origin)]
    configs.request()
    assert configs.on_answer(0.0, answer()) is None


def test_zero_interval_and_backoff_still_pause_between_requests() -> None:
    configs = DynamicConfigs(
        client_id="app1", static={"acks": "1"}, normalise=lambda values: values, interval_s=0.0, retry_backoff_s=0.0
    )
    for _ in range(50):
        configs.request()
        configs.on_not_sent(0.0)
        assert (configs.due_in_s(0.0) or 0.0) > 0
    configs.request()
    configs.on_answer(0.0, answer())
    assert (configs.due_in_s(0.0) or 0.0) > 0


def consumer() -> DynamicConfigs:
    return DynamicConfigs(
        client_id="app1",
        static={"session.timeout.ms": "45000", "heartbeat.interval.ms": "3000"},
        normalise=normalise_consumer,
        interval_s=300.0,
        retry_backoff_s=0.1,
    )


def test_consumer_registers_its_two_configs() -> None:
    """K649-75: Producer registers [acks]; consumer registers [session.timeout.ms, heartbeat.interval.ms]."""
    assert consumer().request().supported_configs == ["session.timeout.ms", "heartbeat.interval.ms"]


def test_consumer_applies_one_config_and_keeps_the_other() -> None:
    configs = consumer()
    configs.request()
    update = configs.on_answer(0.0, answer(session_timeout_ms="20000"))
    assert update is not None
    assert [(change.name, change.new) for change in update.changes] == [("session.timeout.ms", "20000")]
    assert update.effective["heartbeat.interval.ms"] == "3000"


@pytest.mark.parametrize(
    "values",
    [
        {"session_timeout_ms": "9000", "heartbeat_interval_ms": "9500"},
        {"session_timeout_ms": "3000"},
        {"heartbeat_interval_ms": "45000"},
        {"heartbeat_interval_ms": "0"},
        {"session_timeout_ms": "soon"},
    ],
    ids=["above", "against the static one", "equal", "zero", "no number"],
)
def test_heartbeat_not_below_session_timeout_rejects_all_values(values: dict[str, str]) -> None:
    """K649-76: A set that fails client validation (e.g. heartbeat >= session."""
    configs = consumer()
    configs.request()
    assert configs.on_answer(0.0, answer(**values)) is None
    assert configs.effective == {"session.timeout.ms": "45000", "heartbeat.interval.ms": "3000"}
