"""How long and how many trials of delayed parts are remembered."""

from __future__ import annotations

from klamm.gateway.policies.decisions import MAX_TRIALS, TRIAL_LASTS_S, PassedTrials
from tests.support.gateway_context import ANNA


def test_trial_is_remembered_once_and_until_it_expires() -> None:
    now = [0.0]
    trials = PassedTrials(lambda: now[0])
    for part in "ab":
        trials.remember(part, f"entry of {part}", None, ANNA)
    assert [trials.take("a", ANNA), trials.take("a", ANNA)] == ["entry of a", None]
    now[0] = TRIAL_LASTS_S
    assert trials.take("b", ANNA) is None


def test_oldest_trial_is_forgotten_first() -> None:
    trials = PassedTrials()
    for part in range(MAX_TRIALS + 1):
        trials.remember(part, part, None, ANNA)
    assert [trials.take(part, ANNA) for part in (0, 1, MAX_TRIALS)] == [None, 1, MAX_TRIALS]
