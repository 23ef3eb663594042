"""Staged roll-out: a fixed percentage of the clients, which only grows when it is raised."""

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


def test_rollout_reaches_about_the_requested_percentage() -> None:
    assert 140 <= len(with_rollout("10")) <= 260
    assert len(with_rollout("0")) == 0
    assert len(with_rollout("100")) == len(APPS)


def test_raised_percentage_keeps_earlier_clients() -> None:
    assert with_rollout("1") < with_rollout("10") < with_rollout("50") < with_rollout("100")


def test_class_of_a_client_is_stable() -> None:
    """A fixed value: after a restart or an update the same clients must be in."""
    assert client_class(ClientConfigEntity.of_client("alice", "app-1"), "acks") == 7_222


def test_resolved_configs_omit_the_rollout() -> None:
    configs = {"rollout.acks": "0:all", "heartbeat.interval.ms": "1000"}
    assert values_for(configs, APPS[0]) == {"heartbeat.interval.ms": "1000"}


def test_clients_outside_the_rollout_keep_the_weaker_layer() -> None:
    configs = {ClientConfigEntity.of_user(None): {"acks": "0"}, ALICE: {"rollout.acks": "0.01:all"}}
    assert [app for app in APPS[:50] if resolve(configs, app) != {"acks": "0"}] == []


@given(st.integers(0, HUNDREDTHS), st.sampled_from(["all", "0", "a:b"]))
def test_formatted_rollout_parses_to_itself(hundredths: int, value: str) -> None:
    rollout = Rollout(hundredths=hundredths, value=value)
    assert parse_rollout("rollout.acks", str(rollout)) == rollout


@pytest.mark.parametrize("text", ["", "all", "10", "101:all", "100.01:all", "-1:all", "10%:all", "1e1:all"])
def test_invalid_rollout_is_rejected(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"rollout\.acks"):
        check_value("rollout.acks", text, BrokerLimits())


def test_rollout_value_is_checked_like_its_config() -> None:
    assert check_value("rollout.acks", " 10.50: all ", BrokerLimits()) == "10.5:all"
    with pytest.raises(InvalidRequestError, match="acks"):
        check_value("rollout.acks", "10:2", BrokerLimits())
    with pytest.raises(InvalidRequestError, match="linger"):
        check_value("rollout.linger.ms", "10:2", BrokerLimits())


@pytest.mark.parametrize("depth", [1, 3_000])
def test_nested_rollout_is_rejected(depth: int) -> None:
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


def test_new_rollout_after_a_complete_one_keeps_the_complete_value() -> None:
    complete = {"acks": "1", "rollout.acks": "100:all"}
    assert plan(complete, ("rollout.acks", "10:0")) == {"rollout.acks": "10:0", "acks": "all"}
    assert plan(complete, ("rollout.acks", "10:0"), ("acks", "1")) == {"rollout.acks": "10:0", "acks": "1"}
    assert plan(complete, ("rollout.acks", "50:all")) == {"rollout.acks": "50:all"}
    assert plan(complete, ("rollout.acks", None)) == {"rollout.acks": None}
    assert plan({"acks": "1", "rollout.acks": "99.99:all"}, ("rollout.acks", "10:0")) == {"rollout.acks": "10:0"}


def test_rollout_for_one_client_id_is_rejected() -> None:
    with pytest.raises(InvalidRequestError, match="for a user without a client id"):
        plan({}, ("rollout.acks", "10:all"), client_id="app")


def test_only_allowed_keys_are_settable_but_any_is_removable() -> None:
    limits = BrokerLimits(allowed_keys=frozenset({"heartbeat.interval.ms"}))
    assert check_value("heartbeat.interval.ms", "5", limits) == "5"
    for name, value in (("acks", "all"), ("rollout.acks", "10:all")):
        with pytest.raises(PolicyViolationError, match=r"client\.configs\.allowed\.keys"):
            check_value(name, value, limits)
    entry = AlterEntry(components=(("user", "alice"),), ops=(AlterOp(key="acks", value="", remove=True),))
    (planned,) = plan_alter([entry], {ALICE: {"acks": "all"}}, limits)
    assert [change.new for change in planned.changes] == [None]
