from __future__ import annotations

from klamm.retries import Backoff, LoggedReasons, backoff_s


def test_backoff_doubles_up_to_its_maximum_and_begins_again_after_a_success() -> None:
    backoff = Backoff(0.2, 1.0)
    assert [backoff.next_s() for _ in range(5)] == [0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.failures == 5
    backoff.reset()
    assert (backoff.failures, backoff.next_s()) == (0, 0.2)


def test_backoff_after_any_number_of_failures_is_the_maximum() -> None:
    assert backoff_s(100_000, 0.1, 5.0) == 5.0


def test_alternating_reasons_are_logged_once_until_cleared() -> None:
    logged = LoggedReasons()
    reasons = ["b:1 rejects", "timed out after 59993 ms", "b:1 rejects", "timed out after 59998 ms"]
    assert [logged.is_new(reason) for reason in reasons] == [True, True, False, False]
    assert logged.clear()
    assert logged.is_new("b:1 rejects")


def test_clear_without_a_failure_returns_false() -> None:
    assert not LoggedReasons().clear()


def test_number_of_remembered_reasons_is_limited() -> None:
    logged = LoggedReasons()
    assert sum(logged.is_new("x" * length) for length in range(1_000)) == 100
