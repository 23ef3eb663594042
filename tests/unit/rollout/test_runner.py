"""The runner against a cluster in memory: killed at every call, with other operators, with guards of any outcome."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.protocol.errors import InvalidConfigError
from klamm.rollout.guards import GuardOutcome
from klamm.rollout.record import RolloutEvent, RolloutRecord, RolloutState, Wave, advance, begun
from klamm.rollout.runner import RevertError
from klamm.rollout.store import StaleRecordError
from tests.support.rollouts import KilledError, RolloutWorld

if TYPE_CHECKING:
    from collections.abc import Sequence

PASSED, FAILED, NO_DATA = GuardOutcome.PASSED, GuardOutcome.FAILED, GuardOutcome.NO_DATA
START = {"TOPIC:a": {"k": "0"}, "TOPIC:b": {}, "USER:u": {"acks": "1"}}
WAVES = (
    Wave(name="1", settings={"TOPIC:a": {"k": "1"}, "USER:u": {"rollout.acks": "10:all"}}),
    Wave(name="2", settings={"TOPIC:b": {"k": "1"}, "USER:u": {"rollout.acks": "100:all"}}),
    Wave(name="final", settings={"USER:u": {"rollout.acks": None, "acks": "all"}}, is_final=True),
)
DONE = {"TOPIC:a": {"k": "1"}, "TOPIC:b": {"k": "1"}, "USER:u": {"acks": "all"}}


def world(outcomes: Sequence[GuardOutcome] = (), **changes: object) -> RolloutWorld:
    record = RolloutRecord(id="1", waves=WAVES, bake_ms=30, check_ms=10, guards=("lag: g < 1",), runner="first")
    return RolloutWorld(
        configs={entity: dict(values) for entity, values in START.items()},
        record=begun(replace(record, **changes), at_ms=0),  # type: ignore[arg-type]
        outcomes=iter(outcomes),
    )


def taken_over(here: RolloutWorld, runner: str, event: RolloutEvent = RolloutEvent.RESUME) -> RolloutRecord:
    here.record = advance(replace(here.record, runner=runner), event, at_ms=here.at_ms)
    return here.record


def present(here: RolloutWorld) -> dict[str, dict[str, str | None]]:
    return {
        entity: {key: value for key, value in values.items() if value is not None}
        for entity, values in here.configs.items()
    }


def finish(here: RolloutWorld) -> RolloutRecord:
    """Drive the roll-out to its end, resuming it after each kill and each hold."""
    number = 0
    record = here.record
    while True:
        try:
            record = here.runner().run(record)
        except KilledError:
            here.calls_left = 10**9
        if here.record.is_over:
            return here.record
        number += 1
        assert number < 50, here.record.progress
        record = taken_over(here, f"process-{number}")


def test_all_waves_are_applied_and_the_values_become_final() -> None:
    here = world()
    assert here.runner().run(here.record).state is RolloutState.DONE
    assert present(here) == DONE
    assert here.at_ms == 60, "each of two waves is watched for its bake time"


@pytest.mark.parametrize("wave", [0, 1])
def test_failed_guard_reverts_all_waves(wave: int) -> None:
    passed_before = 1 + 4 * wave
    here = world([PASSED] * passed_before + [FAILED])
    record = here.runner().run(here.record)
    assert (record.state, record.wave) == (RolloutState.REVERTED, wave)
    assert present(here) == START
    assert here.at_ms == 30 * wave, "it is reverted at once"


def test_guard_failing_before_the_first_wave_holds_the_roll_out() -> None:
    here = world([FAILED])
    record = here.runner().run(here.record)
    assert (record.state, here.touched) == (RolloutState.HELD, [])
    assert record.reason == "before the first wave: guard 'lag: g < 1': failed: made up"


def test_guard_without_data_at_the_end_of_the_bake_time_holds_the_roll_out() -> None:
    here = world([PASSED, NO_DATA, NO_DATA, NO_DATA, NO_DATA])
    record = here.runner().run(here.record)
    assert (record.state, record.wave, here.at_ms) == (RolloutState.HELD, 0, 30)


def test_guard_briefly_without_data_is_evaluated_again() -> None:
    here = world([PASSED, NO_DATA, NO_DATA, NO_DATA, PASSED])
    assert here.runner().run(here.record).state is RolloutState.DONE


def test_rejected_setting_reverts_its_wave() -> None:
    here = world()
    here.rejects["TOPIC:b"] = InvalidConfigError("no")
    record = here.runner().run(here.record)
    assert (record.state, record.wave) == (RolloutState.REVERTED, 1)
    assert present(here) == START
    assert any("rejected: TOPIC:b: no" in step.reason for step in record.steps)


def test_rejected_revert_stays_reverting_and_resumes_later() -> None:
    here = world([PASSED, FAILED])
    here.on_call = lambda _: here.rejects.update({"TOPIC:a": InvalidConfigError("no")} if here.touched else {})
    with pytest.raises(RevertError, match=r"roll-out 1: values before it cannot be restored: TOPIC:a: no; .* resume 1"):
        here.runner().run(here.record)
    assert here.record.state is RolloutState.REVERTING
    here.on_call, here.rejects = (lambda _: None), {}
    assert finish(here).state is RolloutState.REVERTED
    assert present(here) == START


def test_change_by_another_operator_holds_the_roll_out() -> None:
    here = world()

    def another_operator(_: str) -> None:
        if (here.record.state, here.record.wave) == (RolloutState.GUARDED, 0):
            here.configs["USER:u"]["rollout.acks"] = "5:0"

    here.on_call = another_operator
    record = here.runner().run(here.record)
    assert record.state is RolloutState.HELD
    assert "USER:u: rollout.acks is 5:0, which another change has set" in record.reason
    assert present(here)["TOPIC:b"] == {}


def test_process_stops_once_its_roll_out_is_taken_over() -> None:
    here = world([PASSED, PASSED, PASSED])
    first = here.record
    here.calls_left = 6
    with pytest.raises(KilledError):  # stands for a process that hangs
        here.runner().run(first)
    here.calls_left = 10**9
    stopped = here.record
    aborted = taken_over(here, "second", RolloutEvent.ABORT)
    assert here.runner().run(aborted).state is RolloutState.REVERTED
    here.touched.clear()
    with pytest.raises(StaleRecordError, match="roll-out 1 was taken over"):
        here.runner().run(stopped)
    assert here.touched == []
    assert present(here) == START


class Others:
    """Another operator, who changes one topic at some call, and the operators who resume and abort the roll-out."""

    def __init__(self, here: RolloutWorld, call: int, topic: str) -> None:
        self.here, self.call, self.topic = here, call, topic
        self.has_changed = False
        here.on_call = self.change

    def change(self, name: str) -> None:
        self.call -= name != "write"  # no request of Kafka compares a value before it sets it
        if self.call == 0 and not self.has_changed:
            self.has_changed = True
            self.here.configs[self.topic]["k"] = "foreign"


@given(
    kills=st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=8),
    outcomes=st.lists(st.sampled_from([PASSED, PASSED, PASSED, FAILED, NO_DATA]), max_size=20),
    abort_at=st.integers(0, 30),
    change=st.tuples(st.integers(0, 60), st.sampled_from(["TOPIC:a", "TOPIC:b"])),
    reverts=st.booleans(),
)
def test_roll_out_killed_at_any_call_ends_done_or_reverted(
    kills: list[tuple[int, bool]], outcomes: list[GuardOutcome], abort_at: int, change: tuple[int, str], reverts: bool
) -> None:
    # given
    here = world(outcomes, reverts_without_data=reverts)
    others, topic = Others(here, *change), change[1]
    # when
    record = here.record
    for number, (calls, is_before) in enumerate([*kills, *[(10**9, True)] * 40]):
        here.calls_left, here.is_killed_before = calls, is_before
        with contextlib.suppress(KilledError):
            here.runner().run(record)
        if here.record.is_over:
            break
        event = RolloutEvent.ABORT if number == abort_at else RolloutEvent.RESUME
        record = taken_over(here, f"process {number}", event)
    # then
    assert here.record.is_over
    end = present(here)
    is_done = here.record.state is RolloutState.DONE
    for entity, values in (DONE if is_done else START).items():
        assert end[entity] == values or (others.has_changed and entity == topic)
    # A change before the roll-out recorded the value is part of what it started from.
    was_before = here.record.before.get(topic) == {"k": "foreign"}
    assert not others.has_changed or end[topic] == {"k": "foreign"} or (is_done and was_before)
