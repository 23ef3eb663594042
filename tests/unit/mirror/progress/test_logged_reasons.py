from __future__ import annotations

from klamm.mirror.progress.logged_reasons import LoggedReasons


def test_reasons_that_take_turns_are_new_once_until_the_failure_is_over() -> None:
    logged = LoggedReasons()
    reasons = ["b:1 refuses", "timed out after 59993 ms", "b:1 refuses", "timed out after 59998 ms"]
    assert [logged.is_new(reason) for reason in reasons] == [True, True, False, False]
    assert logged.clear()
    assert logged.is_new("b:1 refuses")


def test_nothing_is_over_that_did_not_begin() -> None:
    assert not LoggedReasons().clear()


def test_what_is_remembered_is_bounded() -> None:
    logged = LoggedReasons()
    assert sum(logged.is_new("x" * length) for length in range(1_000)) == 100
