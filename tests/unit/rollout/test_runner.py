"""The runner against a cluster in memory: killed at every call, with other operators, with guards of any outcome."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.client_configs.definitions import BrokerLimits
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.plan import AlterEntry, AlterOp, plan_entry
from klamm.protocol.errors import InvalidConfigError
from klamm.rollout.guards import GuardOutcome
from klamm.rollout.record import RolloutEvent, RolloutRecord, RolloutState, Wave, advance, begun, values_before
from klamm.rollout.runner import RevertError
from klamm.rollout.store import StaleRecordError
from klamm.rollout.waves import waves_of_clients
from tests.support.rollouts import KilledError, RolloutWorld

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from klamm.protocol.errors import KafkaApiError
    from klamm.rollout.entities import EntityValues
    from klamm.rollout.record import Values

PASSED, FAILED, NO_DATA = GuardOutcome.PASSED, GuardOutcome.FAILED, GuardOutcome.NO_DATA
START = {"TOPIC:a": {"k": "0"}, "TOPIC:b": {}, "USER:u": {"acks": "1"}}
WAVES = (
    Wave(name="1", settings={"TOPIC:a": {"k": "1"}, "USER:u": {"rollout.acks": "10:all"}}),
    Wave(name="2", settings={"TOPIC:b": {"k": "1"}, "USER:u": {"rollout.acks": "100:all"}}),
    Wave(name="final", settings={"USER:u": {"rollout.acks": None, "acks": "all"}}, is_final=True),
)
DONE = {"TOPIC:a": {"k": "1"}, "TOPIC:b": {"k": "1"}, "USER:u": {"acks": "all"}}


def world(outcomes: Sequence[GuardOutcome] = (), **changes: object) -> RolloutWorld:
    before = values_before(WAVES, START)
    record = RolloutRecord(
        id="1", waves=WAVES, bake_ms=30, check_ms=10, guards=("lag: g < 1",), runner="first", before=before
    )
    return RolloutWorld(
        configs={entity: dict(values) for entity, values in START.items()},
        record=begun(replace(record, **changes), at_ms=0),  # type: ignore[arg-type]
        outcomes=iter(outcomes),
    )


def taken_over(rig: RolloutWorld, runner: str, event: RolloutEvent = RolloutEvent.RESUME) -> RolloutRecord:
    rig.record = advance(replace(rig.record, runner=runner), event, at_ms=rig.at_ms)
    return rig.record


def present(rig: RolloutWorld) -> dict[str, dict[str, str | None]]:
    return {
        entity: {key: value for key, value in values.items() if value is not None}
        for entity, values in rig.configs.items()
    }


def finish(rig: RolloutWorld) -> RolloutRecord:
    """Drive the roll-out to its end, resuming it after each kill and each hold."""
    number = 0
    record = rig.record
    while True:
        try:
            record = rig.runner().run(record)
        except KilledError:
            rig.calls_left = 10**9
        if rig.record.is_over:
            return rig.record
        number += 1
        assert number < 50, rig.record.progress
        record = taken_over(rig, f"process-{number}")


def test_all_waves_are_applied_and_the_values_become_final() -> None:
    rig = world()
    assert rig.runner().run(rig.record).state is RolloutState.DONE
    assert present(rig) == DONE
    assert rig.at_ms == 60, "each of two waves is watched for its bake time"


def test_record_without_values_before_gets_them_wave_by_wave() -> None:
    rig = world(before={})
    assert rig.runner().run(rig.record).state is RolloutState.DONE
    assert rig.record.before == values_before(WAVES, START)


@pytest.mark.parametrize("before", [values_before(WAVES, START), {}])
@pytest.mark.parametrize("wave", [0, 1])
def test_failed_guard_reverts_all_waves(wave: int, before: Values) -> None:
    passed_before = 1 + 4 * wave
    rig = world([PASSED] * passed_before + [FAILED], before=before)
    record = rig.runner().run(rig.record)
    assert (record.state, record.wave) == (RolloutState.REVERTED, wave)
    assert present(rig) == START
    assert rig.at_ms == 30 * wave, "it is reverted at once"


def test_guard_failing_before_the_first_wave_holds_the_roll_out() -> None:
    rig = world([FAILED])
    record = rig.runner().run(rig.record)
    assert (record.state, rig.touched) == (RolloutState.HELD, [])
    assert record.reason == "before the first wave: guard 'lag: g < 1': failed: made up"


def test_guard_without_data_at_the_end_of_the_bake_time_holds_the_roll_out() -> None:
    rig = world([PASSED, NO_DATA, NO_DATA, NO_DATA, NO_DATA])
    record = rig.runner().run(rig.record)
    assert (record.state, record.wave, rig.at_ms) == (RolloutState.HELD, 0, 30)


def test_guard_briefly_without_data_is_evaluated_again() -> None:
    rig = world([PASSED, NO_DATA, NO_DATA, NO_DATA, PASSED])
    assert rig.runner().run(rig.record).state is RolloutState.DONE


class ClientConfigWorld(RolloutWorld):
    """A cluster that changes client configs as a broker does."""

    def _write(self, settings: Values) -> None:
        for name, values in settings.items():
            user, before = ClientConfigEntity.of_user(name.partition(":")[2]), self.configs[name]
            ops = tuple(AlterOp(key=key, value=of or "", remove=of is None) for key, of in values.items())
            current = {user: {key: of for key, of in before.items() if of is not None}}
            plan = plan_entry(AlterEntry(components=(), ops=ops), user, Counter([user]), current, BrokerLimits())
            assert plan.error is None
            before.update((change.name, change.new) for change in plan.changes)


@pytest.mark.parametrize("wave", [0, 1])
@pytest.mark.parametrize(
    "start",
    [
        {},
        {"acks": "1"},
        {"rollout.acks": "100:1"},
        {"rollout.acks": "100:all"},
        {"acks": "0", "rollout.acks": "100:1"},
        {"acks": "1", "rollout.acks": "100:1"},
        {"acks": "1", "rollout.acks": "100:all"},
    ],
)
def test_failed_guard_restores_client_configs_with_their_earlier_roll_out(start: dict[str, str], wave: int) -> None:
    # given
    waves = waves_of_clients({"USER:u": {"acks": "all"}}, {"USER:u": start}, (10, 100))
    before = values_before(waves, {"USER:u": start})
    record = RolloutRecord(
        id="1", waves=waves, bake_ms=30, check_ms=10, guards=("lag: g < 1",), runner="first", before=before
    )
    rig = ClientConfigWorld(
        configs={"USER:u": dict(start)},
        record=begun(record, at_ms=0),
        outcomes=iter([PASSED] * (1 + 4 * wave) + [FAILED]),
    )
    # when
    reverted = rig.runner().run(rig.record)
    # then
    assert (reverted.state, reverted.wave) == (RolloutState.REVERTED, wave)
    assert present(rig) == {"USER:u": start}


def test_key_that_a_policy_adds_since_the_plan_is_reverted() -> None:
    # given
    rig = world([PASSED, FAILED])
    rig.policy = lambda values: {"p": "2"} if values.get("k") == "1" else {}
    # when
    record = rig.runner().run(rig.record)
    # then
    assert (record.state, record.left_alone) == (RolloutState.REVERTED, ())
    assert record.waves[0].settings["TOPIC:a"] == {"k": "1", "p": "2"}
    assert record.before["TOPIC:a"] == {"k": "0", "p": None}
    assert present(rig) == START


def test_revert_leaves_a_value_that_a_policy_requires() -> None:
    # given
    rig = world([PASSED, FAILED])
    rig.policy = lambda values: {"p": "2"} if "k" in values else {}
    # when
    record = rig.runner().run(rig.record)
    # then
    assert record.state is RolloutState.REVERTED
    assert record.left_alone == ("TOPIC:a: p is 2, which a policy has set",)
    assert present(rig) == {**START, "TOPIC:a": {"k": "0", "p": "2"}}


def test_rejected_setting_reverts_its_wave() -> None:
    rig = world()
    rig.rejects["TOPIC:b"] = InvalidConfigError("no")
    record = rig.runner().run(rig.record)
    assert (record.state, record.wave) == (RolloutState.REVERTED, 1)
    assert present(rig) == START
    assert any("rejected: TOPIC:b: no" in step.reason for step in record.steps)


def test_value_that_a_policy_stored_in_a_partly_rejected_wave_is_reverted() -> None:
    # given
    rig = world()
    rig.policy = lambda values: {"k": "7", "p": "2"} if values.get("k") == "1" else {}
    rig.rejects["USER:u"] = InvalidConfigError("no")
    # when
    record = rig.runner().run(rig.record)
    # then
    assert (record.state, record.wave, record.left_alone) == (RolloutState.REVERTED, 0, ())
    assert present(rig) == START


def test_value_that_a_policy_stored_in_a_partly_rejected_revert_is_not_of_another_change() -> None:
    # given
    rig = world([PASSED, FAILED])
    rig.policy = lambda values: {"k": "7"} if values.get("k") == "0" else {}
    rejections: Iterator[dict[str, KafkaApiError]] = iter([{"USER:u": InvalidConfigError("no")}])

    def reject_once(name: str) -> None:
        if name == "check" and rig.record.state is RolloutState.REVERTING:
            rig.rejects = next(rejections, {})

    rig.on_call = reject_once
    # when
    record = rig.runner().run(rig.record)
    # then
    assert record.left_alone == ("TOPIC:a: k is 7, which a policy has set",)
    assert present(rig) == {**START, "TOPIC:a": {"k": "7"}}


def test_rejected_revert_stays_reverting_and_resumes_later() -> None:
    rig = world([PASSED, FAILED])
    rig.on_call = lambda _: rig.rejects.update({"TOPIC:a": InvalidConfigError("no")} if rig.touched else {})
    with pytest.raises(RevertError, match=r"roll-out 1: values before it cannot be restored: TOPIC:a: no; .* resume 1"):
        rig.runner().run(rig.record)
    assert rig.record.state is RolloutState.REVERTING
    rig.on_call, rig.rejects = (lambda _: None), {}
    assert finish(rig).state is RolloutState.REVERTED
    assert present(rig) == START


def test_revert_restores_the_other_entities_while_one_cannot_be_read() -> None:
    # given
    rig = world([*[PASSED] * 5, FAILED])
    rig.on_call = lambda _: rig.down.update({"TOPIC:b"} if rig.record.state is RolloutState.REVERTING else ())
    # when
    with pytest.raises(RevertError, match=r"cannot be restored: TOPIC:b cannot be read: down; .* resume 1"):
        rig.runner().run(rig.record)
    # then
    assert rig.record.state is RolloutState.REVERTING
    assert present(rig) == {**START, "TOPIC:b": {"k": "1"}}
    # when
    rig.on_call = lambda _: None
    rig.down.clear()
    # then
    assert finish(rig).state is RolloutState.REVERTED
    assert rig.record.left_alone == ()
    assert present(rig) == START


def test_revert_that_may_leave_values_ends_and_names_those_of_the_lost_entity() -> None:
    # given
    rig = world([*[PASSED] * 5, FAILED])
    rig.on_call = lambda _: rig.down.update({"TOPIC:b"} if rig.record.state is RolloutState.REVERTING else ())
    with pytest.raises(RevertError, match=r"end it with klamm rollout abort 1 --leave-unrestored"):
        rig.runner().run(rig.record)
    # when
    record = rig.runner(ends_unrestored=True).run(taken_over(rig, "operator", RolloutEvent.ABORT))
    # then
    assert (record.state, record.reason) == (RolloutState.REVERTED, "TOPIC:b cannot be read: down")
    assert record.left_alone == ("TOPIC:b: k may still be 1, which the roll-out has set (before it was unset)",)
    assert present(rig) == {**START, "TOPIC:b": {"k": "1"}}


def test_revert_that_may_leave_values_ends_and_names_those_that_the_cluster_rejects() -> None:
    # given
    rig = world([PASSED, FAILED])
    rig.on_call = lambda _: rig.rejects.update({"TOPIC:a": InvalidConfigError("no")} if rig.touched else {})
    # when
    record = rig.runner(ends_unrestored=True).run(rig.record)
    # then
    assert (record.state, record.reason) == (RolloutState.REVERTED, "TOPIC:a: no")
    assert record.left_alone == ("TOPIC:a: k is 1, which the roll-out has set (before it was 0)",)


def test_entity_going_down_while_its_wave_is_written_reverts_the_roll_out() -> None:
    rig = world()
    rig.on_call = lambda name: rig.down.update({"TOPIC:a"} if name == "write" and not rig.touched else ())
    with pytest.raises(RevertError, match="TOPIC:a cannot be read: down"):
        rig.runner().run(rig.record)
    assert rig.record.state is RolloutState.REVERTING
    assert any("rejected: TOPIC:a: down" in step.reason for step in rig.record.steps)
    assert present(rig) == START


@pytest.mark.parametrize("state", [RolloutState.PLANNED, RolloutState.APPLYING, RolloutState.GUARDED])
def test_wave_that_cannot_be_read_holds_the_roll_out(state: RolloutState) -> None:
    # given
    rig = world()
    rig.on_call = lambda _: rig.down.update({"USER:u"} if rig.record.state is state else ())
    # when
    held = rig.runner().run(rig.record)
    # then
    assert (held.state, held.resumes_in, held.reason) == (RolloutState.HELD, state, "USER:u cannot be read: down")
    # when
    rig.on_call = lambda _: None
    rig.down.clear()
    # then
    assert finish(rig).state is RolloutState.DONE
    assert present(rig) == DONE


@pytest.mark.parametrize("state", [RolloutState.APPLYING, RolloutState.GUARDED])
@pytest.mark.parametrize(("outcome", "end"), [(FAILED, RolloutState.REVERTED), (NO_DATA, RolloutState.HELD)])
def test_resumed_roll_out_evaluates_guards_before_the_next_wave(
    state: RolloutState, outcome: GuardOutcome, end: RolloutState
) -> None:
    # given
    rig = world()
    rig.on_call = lambda _: rig.down.update(
        {"TOPIC:b"} if (rig.record.state, rig.record.wave) == (state, state is RolloutState.APPLYING) else ()
    )
    held = rig.runner().run(rig.record)
    assert (held.state, held.resumes_in) == (RolloutState.HELD, state)
    rig.on_call = lambda _: None
    rig.down.clear()
    rig.touched.clear()
    rig.outcomes = itertools.repeat(outcome)
    # when
    resumed = rig.runner().run(taken_over(rig, "operator"))
    # then
    assert resumed.state is end
    assert "TOPIC:b" not in rig.touched


def test_roll_out_held_before_its_first_write_evaluates_guards_as_before_the_first_wave() -> None:
    # given
    rig = world()
    rig.on_call = lambda _: rig.down.update({"TOPIC:a"} if rig.record.state is RolloutState.APPLYING else ())
    rig.runner().run(rig.record)
    rig.on_call = lambda _: None
    rig.down.clear()
    rig.outcomes = iter([FAILED])
    # when
    resumed = rig.runner().run(taken_over(rig, "operator"))
    # then
    assert (resumed.state, rig.touched) == (RolloutState.REVERTED, [])


def test_change_by_another_operator_holds_the_roll_out() -> None:
    rig = world()

    def another_operator(_: str) -> None:
        if (rig.record.state, rig.record.wave) == (RolloutState.GUARDED, 0):
            rig.configs["USER:u"]["rollout.acks"] = "5:0"

    rig.on_call = another_operator
    record = rig.runner().run(rig.record)
    assert record.state is RolloutState.HELD
    assert "USER:u: rollout.acks is 5:0, which another change has set" in record.reason
    assert present(rig)["TOPIC:b"] == {}


@pytest.mark.parametrize("taken_back", [{}, {"acks": "1"}])
def test_value_that_another_operator_takes_back_holds_the_roll_out(taken_back: dict[str, str | None]) -> None:
    """A new plain value, or a share of 0, ends the staged roll-out of a client config."""
    # given
    waves = waves_of_clients({"USER:u": {"acks": "all"}}, {"USER:u": {}}, (10, 50, 100))
    record = replace(world().record, waves=waves, before=values_before(waves, {"USER:u": {}}))
    rig = ClientConfigWorld(configs={"USER:u": {}}, record=record, outcomes=iter(()))

    def another_operator(_: str) -> None:
        if (rig.record.state, rig.record.wave) == (RolloutState.BAKING, 0):
            rig.configs["USER:u"] = dict(taken_back)

    rig.on_call = another_operator
    # when
    held = rig.runner().run(rig.record)
    # then
    assert (held.state, held.wave) == (RolloutState.HELD, 1)
    assert held.reason == (
        "USER:u: rollout.acks is unset, which another change has set (the roll-out had set 10:all, before it was unset)"
    )
    assert rig.configs == {"USER:u": taken_back}


def test_change_of_a_later_wave_by_another_operator_holds_the_roll_out_until_it_is_taken_back() -> None:
    # given
    rig = world()

    def another_operator(_: str) -> None:
        if (rig.record.state, rig.record.wave) == (RolloutState.BAKING, 0):
            rig.configs["TOPIC:b"]["k"] = "foreign"

    rig.on_call = another_operator
    for runner in ("first", "second"):
        # when
        held = rig.runner().run(rig.record)
        # then
        assert (held.state, held.wave) == (RolloutState.HELD, 1)
        assert held.reason == (
            "TOPIC:b: k is foreign, which another change has set (the roll-out had set 1, before it was unset)"
        )
        assert present(rig)["TOPIC:b"] == {"k": "foreign"}
        taken_over(rig, runner)
    # when
    rig.configs["TOPIC:b"].clear()
    # then
    assert rig.runner().run(rig.record).state is RolloutState.DONE
    assert present(rig) == DONE


def test_revert_does_not_name_what_only_later_waves_would_set() -> None:
    rig = world([PASSED, FAILED])

    def another_operator(_: str) -> None:
        if rig.record.wave == 0:
            rig.configs["TOPIC:b"]["k"] = "foreign"
            rig.configs["USER:u"]["acks"] = "0"

    rig.on_call = another_operator
    record = rig.runner().run(rig.record)
    assert (record.state, record.wave, record.left_alone) == (RolloutState.REVERTED, 0, ())
    assert present(rig) == {**START, "TOPIC:b": {"k": "foreign"}, "USER:u": {"acks": "0"}}


def test_revert_does_not_need_what_only_later_waves_would_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker of a later wave may be the one that is down."""
    rig = world([PASSED, FAILED])
    described: list[str] = []
    values = rig.values

    def describe(entities: Collection[str]) -> EntityValues:
        described.extend(entities)
        return values(entities)

    monkeypatch.setattr(rig, "values", describe)
    assert rig.runner().run(rig.record).state is RolloutState.REVERTED
    assert "TOPIC:b" not in described


def test_process_stops_once_its_roll_out_is_taken_over() -> None:
    rig = world([PASSED, PASSED, PASSED])
    first = rig.record
    rig.calls_left = 6
    with pytest.raises(KilledError):  # stands for a process that hangs
        rig.runner().run(first)
    rig.calls_left = 10**9
    stopped = rig.record
    aborted = taken_over(rig, "second", RolloutEvent.ABORT)
    assert rig.runner().run(aborted).state is RolloutState.REVERTED
    rig.touched.clear()
    with pytest.raises(StaleRecordError, match="roll-out 1 was taken over"):
        rig.runner().run(stopped)
    assert rig.touched == []
    assert present(rig) == START


class Others:
    """Another operator, who changes one topic at some call, and the operators who resume and abort the roll-out."""

    def __init__(self, rig: RolloutWorld, call: int, topic: str) -> None:
        self.here, self.call, self.topic = rig, call, topic
        self.has_changed = False
        rig.on_call = self.change

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
    rig = world(outcomes, reverts_without_data=reverts)
    others, topic = Others(rig, *change), change[1]
    # when
    record = rig.record
    for number, (calls, is_before) in enumerate([*kills, *[(10**9, True)] * 40]):
        rig.calls_left, rig.is_killed_before = calls, is_before
        with contextlib.suppress(KilledError):
            rig.runner().run(record)
        if rig.record.is_over:
            break
        event = RolloutEvent.ABORT if number == abort_at else RolloutEvent.RESUME
        record = taken_over(rig, f"process {number}", event)
    # then
    assert rig.record.is_over
    end = present(rig)
    is_done = rig.record.state is RolloutState.DONE
    for entity, values in (DONE if is_done else START).items():
        assert end[entity] == values or (others.has_changed and entity == topic)
    assert not others.has_changed or end[topic] == {"k": "foreign"}
