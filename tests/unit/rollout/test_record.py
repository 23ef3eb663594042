"""State of a roll-out: transitions, what a revert restores, and the record as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from klamm.rollout.record import (
    OVER,
    TRANSITIONS,
    RolloutEvent,
    RolloutRecord,
    RolloutState,
    TransitionError,
    Wave,
    advance,
    begun,
    conflict,
    from_document,
    plan_revert_of,
    to_document,
)

RECORD = begun(
    RolloutRecord(
        id="1",
        waves=(
            Wave(name="50%", settings={"TOPIC:a": {"retention.ms": "1"}}),
            Wave(name="100%", settings={"TOPIC:b": {"retention.ms": "1"}}),
        ),
        bake_ms=10,
        check_ms=1,
        operator="alice@host",
        runner="r",
    ),
    at_ms=5,
)


def after(*events: RolloutEvent, record: RolloutRecord = RECORD) -> RolloutRecord:
    for event in events:
        before = {} if event is not RolloutEvent.NEXT else record.waves[record.wave + 1].settings
        record = advance(record, event, at_ms=7, before={each: {"retention.ms": None} for each in before})
    return record


def test_every_wave_is_applied_baked_and_guarded_before_the_next() -> None:
    event = RolloutEvent
    done = after(*(event.NEXT, event.APPLIED, event.PASSED) * 2, event.FINISHED)
    assert [step.state for step in done.steps] == [
        "planned",
        *["applying", "baking", "guarded"] * 2,
        "done",
    ]
    assert done.version == 8
    assert done.before == {"TOPIC:a": {"retention.ms": None}, "TOPIC:b": {"retention.ms": None}}


@pytest.mark.parametrize("state", [state for state in RolloutState if state not in OVER])
def test_every_state_that_is_not_the_end_can_be_aborted_and_taken_over(state: RolloutState) -> None:
    assert TRANSITIONS[state, RolloutEvent.ABORT] is RolloutState.REVERTING
    assert (state, RolloutEvent.RESUME) in TRANSITIONS


@pytest.mark.parametrize("state", sorted(OVER))
def test_the_end_allows_no_event(state: RolloutState) -> None:
    for event in RolloutEvent:
        with pytest.raises(TransitionError, match=r"roll-out 1 is .*: .* is not possible; it has ended"):
            advance(replace(RECORD, state=state), event, at_ms=0)


def test_an_event_that_the_state_does_not_allow_is_an_error_that_names_the_possible_ones() -> None:
    with pytest.raises(TransitionError, match="roll-out 1 is planned: applied is not possible; possible are abort, "):
        advance(RECORD, RolloutEvent.APPLIED, at_ms=0)


@pytest.mark.parametrize("events", [(), ("next",), ("next", "applied"), ("next", "applied", "passed")])
def test_a_roll_out_that_is_paused_resumes_in_the_same_state_and_bakes_anew(events: tuple[str, ...]) -> None:
    running = after(*map(RolloutEvent, events))
    held = after(RolloutEvent.PAUSE, record=running)
    assert held.state is RolloutState.HELD
    resumed = advance(held, RolloutEvent.RESUME, at_ms=100)
    assert (resumed.state, resumed.wave, resumed.since_ms) == (running.state, running.wave, 100)


def test_a_process_that_takes_over_does_not_prolong_the_bake_time() -> None:
    baking = after(RolloutEvent.NEXT, RolloutEvent.APPLIED)
    assert advance(baking, RolloutEvent.RESUME, at_ms=100).since_ms == baking.since_ms


@pytest.mark.parametrize(("reverts", "state"), [(False, RolloutState.HELD), (True, RolloutState.REVERTING)])
def test_a_guard_without_data_holds_or_reverts(reverts: bool, state: RolloutState) -> None:
    baking = replace(after(RolloutEvent.NEXT, RolloutEvent.APPLIED), reverts_without_data=reverts)
    assert advance(baking, RolloutEvent.NO_DATA, at_ms=0).state is state


def test_a_revert_restores_values_and_absence_of_waves_that_were_begun() -> None:
    record = after(RolloutEvent.NEXT, RolloutEvent.APPLIED, RolloutEvent.FAILED)
    plan = plan_revert_of(record, {"TOPIC:a": {"retention.ms": "1"}, "TOPIC:b": {"retention.ms": "1"}})
    assert plan.settings == {"TOPIC:a": {"retention.ms": None}}
    assert plan.left_alone == ()


def test_a_revert_leaves_values_of_others_and_deleted_topics_alone_and_names_them() -> None:
    record = after(*(RolloutEvent.NEXT, RolloutEvent.APPLIED, RolloutEvent.PASSED) * 2)
    plan = plan_revert_of(record, {"TOPIC:a": {"retention.ms": "2"}})
    assert plan.settings == {}
    assert plan.left_alone == (
        "TOPIC:a: retention.ms is 2, which another change has set (the roll-out had set 1, before it was unset)",
        "TOPIC:b does not exist any more",
    )


def test_a_value_that_the_cluster_spells_otherwise_is_still_that_of_the_roll_out() -> None:
    record = after(RolloutEvent.NEXT)
    assert plan_revert_of(record, {"TOPIC:a": {"retention.ms": " 1"}}).settings == {"TOPIC:a": {"retention.ms": None}}


def test_roll_outs_of_one_entity_exclude_each_other_until_the_first_has_ended() -> None:
    assert conflict([RECORD], ["TOPIC:b", "TOPIC:c"]) == (RECORD, "TOPIC:b")
    assert conflict([RECORD], ["TOPIC:c"]) is None
    assert conflict([replace(RECORD, state=RolloutState.DONE)], ["TOPIC:b"]) is None


def test_a_record_is_the_same_after_json() -> None:
    record = replace(
        after(RolloutEvent.NEXT, RolloutEvent.APPLIED), guards=("lag: g < 1",), baselines={"lag: g < 1": (1.5, None)}
    )
    document = json.loads(json.dumps(to_document(record)))
    assert from_document({**document, "added_later": 1}) == record


@pytest.mark.parametrize("document", [{}, {"waves": 1}, {"waves": [{}], "steps": []}])
def test_document_that_is_not_a_record_is_rejected(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not the record of a roll-out"):
        from_document(document)
