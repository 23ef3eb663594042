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


def test_waves_are_applied_baked_and_guarded_in_order() -> None:
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
def test_every_unfinished_state_can_be_aborted_and_resumed(state: RolloutState) -> None:
    assert TRANSITIONS[state, RolloutEvent.ABORT] is RolloutState.REVERTING
    assert (state, RolloutEvent.RESUME) in TRANSITIONS


@pytest.mark.parametrize("state", sorted(OVER))
def test_finished_roll_out_allows_no_event(state: RolloutState) -> None:
    for event in RolloutEvent:
        with pytest.raises(TransitionError, match=r"roll-out 1 is .*: .* is not possible; it has ended"):
            advance(replace(RECORD, state=state), event, at_ms=0)


def test_impossible_event_error_names_the_possible_ones() -> None:
    with pytest.raises(TransitionError, match="roll-out 1 is planned: applied is not possible; possible are abort, "):
        advance(RECORD, RolloutEvent.APPLIED, at_ms=0)


@pytest.mark.parametrize("events", [(), ("next",), ("next", "applied")])
def test_paused_roll_out_resumes_in_the_same_state_and_restarts_its_bake_time(events: tuple[str, ...]) -> None:
    running = after(*map(RolloutEvent, events))
    held = after(RolloutEvent.PAUSE, record=running)
    assert held.state is RolloutState.HELD
    resumed = advance(held, RolloutEvent.RESUME, at_ms=100)
    assert (resumed.state, resumed.wave, resumed.since_ms) == (running.state, running.wave, 100)


@pytest.mark.parametrize("pauses", [(), (RolloutEvent.PAUSE,)], ids=["killed", "paused"])
def test_guarded_wave_bakes_again_when_its_roll_out_is_resumed(pauses: tuple[RolloutEvent, ...]) -> None:
    stopped = after(RolloutEvent.NEXT, RolloutEvent.APPLIED, RolloutEvent.PASSED, *pauses)
    resumed = advance(stopped, RolloutEvent.RESUME, at_ms=100)
    assert (resumed.state, resumed.wave, resumed.since_ms) == (RolloutState.BAKING, 0, 100)


def test_resume_by_another_process_does_not_restart_the_bake_time() -> None:
    baking = after(RolloutEvent.NEXT, RolloutEvent.APPLIED)
    assert advance(baking, RolloutEvent.RESUME, at_ms=100).since_ms == baking.since_ms


@pytest.mark.parametrize(("reverts", "state"), [(False, RolloutState.HELD), (True, RolloutState.REVERTING)])
def test_guard_without_data_holds_or_reverts(reverts: bool, state: RolloutState) -> None:
    baking = replace(after(RolloutEvent.NEXT, RolloutEvent.APPLIED), reverts_without_data=reverts)
    assert advance(baking, RolloutEvent.NO_DATA, at_ms=0).state is state


def test_revert_restores_values_and_absence_in_started_waves() -> None:
    record = after(RolloutEvent.NEXT, RolloutEvent.APPLIED, RolloutEvent.FAILED)
    plan = plan_revert_of(record, {"TOPIC:a": {"retention.ms": "1"}, "TOPIC:b": {"retention.ms": "1"}})
    assert plan.settings == {"TOPIC:a": {"retention.ms": None}}
    assert plan.left_alone == ()


def test_revert_keeps_and_reports_changes_by_others_and_deleted_topics() -> None:
    record = after(*(RolloutEvent.NEXT, RolloutEvent.APPLIED, RolloutEvent.PASSED) * 2)
    plan = plan_revert_of(record, {"TOPIC:a": {"retention.ms": "2"}})
    assert plan.settings == {}
    assert plan.left_alone == (
        "TOPIC:a: retention.ms is 2, which another change has set (the roll-out had set 1, before it was unset)",
        "TOPIC:b does not exist any more",
    )


@pytest.mark.parametrize(
    ("entity", "key", "old", "new", "described"),
    [
        ("TOPIC:a", "retention.ms", "7", "1", " 1"),
        ("BROKER:1", "log.cleaner.io.max.bytes.per.second", "2.0E7", "10000000", "1.0E7"),
        ("BROKER:1", "log.cleanup.policy", None, "compact, delete", "delete,compact"),
        ("QUOTA:user=alice", "producer_byte_rate", None, "1e6", "1000000"),
        ("USER:alice", "rollout.acks", None, "10:all", "10.00:-1"),
    ],
)
def test_value_in_another_notation_still_belongs_to_the_roll_out(
    entity: str, key: str, old: str | None, new: str, described: str
) -> None:
    waves = (Wave(name="100%", settings={entity: {key: new}}),)
    record = advance(replace(RECORD, waves=waves, before={entity: {key: old}}), RolloutEvent.NEXT, at_ms=7)
    assert plan_revert_of(record, {entity: {key: described}}).settings == {entity: {key: old}}


def test_record_of_many_rejected_and_unrestored_entities_stays_small() -> None:
    # given
    failed = advance(after(RolloutEvent.NEXT), RolloutEvent.FAILED, at_ms=7, reason="; ".join(["TOPIC:a: no"] * 90_000))
    # when
    reverted = advance(failed, RolloutEvent.RESTORED, at_ms=7, left_alone=("TOPIC:a does not exist any more",) * 12_000)
    # then
    assert failed.reason.startswith("TOPIC:a: no; TOPIC:a: no")
    assert "characters left out" in failed.reason
    assert reverted.left_alone[-1] == "and 11,000 more"
    assert len(json.dumps(to_document(reverted))) < 50_000


def test_roll_outs_of_one_entity_exclude_each_other() -> None:
    assert conflict([RECORD], ["TOPIC:b", "TOPIC:c"]) == (RECORD, "TOPIC:b")
    assert conflict([RECORD], ["TOPIC:c"]) is None
    assert conflict([replace(RECORD, state=RolloutState.DONE)], ["TOPIC:b"]) is None


def test_record_round_trips_as_json() -> None:
    record = replace(
        after(RolloutEvent.NEXT, RolloutEvent.APPLIED), guards=("lag: g < 1",), baselines={"lag: g < 1": (1.5, None)}
    )
    document = json.loads(json.dumps(to_document(record)))
    assert from_document({**document, "added_later": 1}) == record


@pytest.mark.parametrize("document", [{}, {"waves": 1}, {"waves": [{}], "steps": []}])
def test_invalid_record_document_is_rejected(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not the record of a roll-out"):
        from_document(document)
