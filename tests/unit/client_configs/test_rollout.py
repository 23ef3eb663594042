"""A staged roll-out: some percent of the clients, always the same ones, and never fewer when it is raised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.client_configs.definitions import BrokerLimits, check_value
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.plan import AlterEntry, AlterOp
from klamm.client_configs.resolution import resolve
from klamm.client_configs.rollout import HUNDREDTHS, Rollout, client_class, parse_rollout, values_for
from klamm.protocol.errors import InvalidRequestError, PolicyViolationError
from tests.support.client_configs import plan_alter

ALICE = ClientConfigEntity.of_user("alice")
APPS = [ClientConfigEntity.of_client("alice", f"app-{number}") for number in range(2_000)]


def with_rollout(percent: str) -> set[str | None]:
    configs = {ALICE: {"acks": "1", "rollout.acks": f"{percent}:all"}}
    return {app.client_id for app in APPS if resolve(configs, app)["acks"] == "all"}


def test_about_the_percent_that_was_asked_for_gets_the_value() -> None:
    assert 140 <= len(with_rollout("10")) <= 260
    assert len(with_rollout("0")) == 0
    assert len(with_rollout("100")) == len(APPS)


def test_who_is_in_stays_in_when_it_is_raised() -> None:
    assert with_rollout("1") < with_rollout("10") < with_rollout("50") < with_rollout("100")


def test_the_class_of_a_client_never_changes() -> None:
    """A fixed value: after a restart or an update the same clients must be in."""
    assert client_class(ClientConfigEntity.of_client("alice", "app-1"), "acks") == 7_222


def test_clients_never_see_the_roll_out_itself() -> None:
    configs = {"rollout.acks": "0:all", "heartbeat.interval.ms": "1000"}
    assert values_for(configs, APPS[0]) == {"heartbeat.interval.ms": "1000"}


def test_those_that_are_out_keep_what_a_weaker_layer_says() -> None:
    configs = {ClientConfigEntity.of_user(None): {"acks": "0"}, ALICE: {"rollout.acks": "0.01:all"}}
    assert [app for app in APPS[:50] if resolve(configs, app) != {"acks": "0"}] == []


@given(st.integers(0, HUNDREDTHS), st.sampled_from(["all", "0", "a:b"]))
def test_what_is_stored_is_read_back(hundredths: int, value: str) -> None:
    rollout = Rollout(hundredths=hundredths, value=value)
    assert parse_rollout("rollout.acks", str(rollout)) == rollout


@pytest.mark.parametrize("text", ["", "all", "10", "101:all", "100.01:all", "-1:all", "10%:all", "1e1:all"])
def test_what_is_no_roll_out_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"rollout\.acks"):
        check_value("rollout.acks", text, BrokerLimits())


def test_its_value_is_checked_as_the_config_itself() -> None:
    assert check_value("rollout.acks", " 10.50: all ", BrokerLimits()) == "10.5:all"
    with pytest.raises(InvalidRequestError, match="acks"):
        check_value("rollout.acks", "10:2", BrokerLimits())
    with pytest.raises(InvalidRequestError, match="linger"):
        check_value("rollout.linger.ms", "10:2", BrokerLimits())


@pytest.mark.parametrize("depth", [1, 3_000])
def test_a_roll_out_of_a_roll_out_is_none(depth: int) -> None:
    with pytest.raises(InvalidRequestError, match="Invalid configuration key rollout"):
        check_value("rollout." * depth + "rollout.acks", "10:" * depth + "10:all", BrokerLimits())


def plan(configs: dict[str, str], *ops: tuple[str, str | None], client_id: str | None = None) -> dict[str, str | None]:
    components = [("user", "alice")] + ([] if client_id is None else [("client-id", client_id)])
    entry = AlterEntry(
        components=tuple(components),
        ops=tuple(AlterOp(key=key, value=value or "", remove=value is None) for key, value in ops),
    )
    (planned,) = plan_alter([entry], {ALICE: configs}, BrokerLimits())
    if planned.error is not None:
        raise planned.error
    return {change.name: change.new for change in planned.changes}


def test_setting_or_removing_the_config_ends_its_roll_out() -> None:
    under_way = {"acks": "1", "rollout.acks": "10:all"}
    assert plan(under_way, ("acks", "all")) == {"acks": "all", "rollout.acks": None}
    assert plan(under_way, ("acks", None)) == {"acks": None, "rollout.acks": None}
    assert plan(under_way, ("rollout.acks", "50:all")) == {"rollout.acks": "50:all"}
    assert plan({"acks": "1"}, ("acks", "all")) == {"acks": "all"}


def test_a_roll_out_after_a_complete_one_keeps_the_value_that_every_client_has() -> None:
    complete = {"acks": "1", "rollout.acks": "100:all"}
    assert plan(complete, ("rollout.acks", "10:0")) == {"rollout.acks": "10:0", "acks": "all"}
    assert plan(complete, ("rollout.acks", "10:0"), ("acks", "1")) == {"rollout.acks": "10:0", "acks": "1"}
    assert plan(complete, ("rollout.acks", "50:all")) == {"rollout.acks": "50:all"}
    assert plan(complete, ("rollout.acks", None)) == {"rollout.acks": None}
    assert plan({"acks": "1", "rollout.acks": "99.99:all"}, ("rollout.acks", "10:0")) == {"rollout.acks": "10:0"}


def test_one_client_id_cannot_be_rolled_out_to_in_part() -> None:
    with pytest.raises(InvalidRequestError, match="for a user without a client id"):
        plan({}, ("rollout.acks", "10:all"), client_id="app")


def test_only_allowed_keys_may_be_set_and_any_may_be_removed() -> None:
    limits = BrokerLimits(allowed_keys=frozenset({"heartbeat.interval.ms"}))
    assert check_value("heartbeat.interval.ms", "5", limits) == "5"
    for name, value in (("acks", "all"), ("rollout.acks", "10:all")):
        with pytest.raises(PolicyViolationError, match=r"client\.configs\.allowed\.keys"):
            check_value(name, value, limits)
    entry = AlterEntry(components=(("user", "alice"),), ops=(AlterOp(key="acks", value="", remove=True),))
    (planned,) = plan_alter([entry], {ALICE: {"acks": "all"}}, limits)
    assert [change.new for change in planned.changes] == [None]
