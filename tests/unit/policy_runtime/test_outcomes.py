"""Cache of decisions on frequent requests."""

from __future__ import annotations

from klamm.policy import GroupDetails, PolicyTimeoutError, PolicyViolationError
from klamm.policy_runtime.outcomes import DECISION_LASTS_S, FAILURE_LASTS_S, MAX_OUTCOMES, OutcomeCache
from klamm.policy_runtime.worker import PolicyOutcome

ALLOWED = PolicyOutcome(None, None)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_decision_and_failure_expire_after_their_lifetimes() -> None:
    clock = Clock()
    cache = OutcomeCache(clock)
    decisions = [ALLOWED, PolicyOutcome(None, PolicyViolationError("no"))]
    failures = [PolicyOutcome(None, ValueError("oops")), PolicyOutcome(None, PolicyTimeoutError("late"))]
    questions = [GroupDetails(group_id=str(number)) for number in range(4)]
    for question, outcome in zip(questions, decisions + failures, strict=True):
        cache.put(question, outcome)
    assert cache.get(GroupDetails(group_id="1")) == decisions[1]
    assert cache.get(GroupDetails(group_id="1", client_id="other")) is None
    clock.now += FAILURE_LASTS_S
    assert [cache.get(question) for question in questions] == [*decisions, None, None]
    clock.now += DECISION_LASTS_S
    assert [cache.get(question) for question in questions] == [None] * 4


def test_oldest_outcomes_are_evicted() -> None:
    cache = OutcomeCache(Clock())
    for number in range(MAX_OUTCOMES + 3):
        cache.put(GroupDetails(group_id=str(number)), ALLOWED)
    held = [number for number in range(MAX_OUTCOMES + 3) if cache.get(GroupDetails(group_id=str(number))) is not None]
    assert held == list(range(3, MAX_OUTCOMES + 3))


def test_decisions_on_long_names_are_not_cached() -> None:
    cache = OutcomeCache(Clock())
    cache.put(GroupDetails(group_id="g" * 600, client_id="c" * 600), ALLOWED)
    assert cache.get(GroupDetails(group_id="g" * 600, client_id="c" * 600)) is None
