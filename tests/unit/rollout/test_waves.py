"""Division of a change into waves, and the clients that a wave changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.rollout import client_class
from klamm.configs.quotas import quota_resource
from klamm.properties import SettingsError
from klamm.rollout.record import RolloutRecord, Values, Wave, values_before
from klamm.rollout.waves import is_changed, parse_percentages, waves_by_name, waves_by_percentage, waves_of_clients

TOPICS: Values = {f"TOPIC:t{number}": {"retention.ms": "1"} for number in range(20)}


@pytest.mark.parametrize("text", ["", "10", "50%,10%,100%", "0%,100%", "10%,x", "100%,200%", "50%,50%,100%"])
def test_percentages_ascend_to_100(text: str) -> None:
    with pytest.raises(SettingsError, match="expected ascending percentages that end with 100%"):
        parse_percentages(text)


def test_percentages_are_parsed() -> None:
    assert parse_percentages("1%, 12.5,100%") == (1, 12.5, 100)


def test_every_entity_is_in_one_wave_and_the_first_wave_is_not_empty() -> None:
    waves = waves_by_percentage(TOPICS, (1, 4, 50, 100))
    assert [(wave.name, len(wave.settings)) for wave in waves] == [("1%", 1), ("50%", 9), ("100%", 10)]
    assert {entity: values for wave in waves for entity, values in wave.settings.items()} == TOPICS


def test_first_wave_has_the_same_topics_in_every_roll_out() -> None:
    first, *_ = waves_by_percentage(TOPICS, (10, 100))
    again, *_ = waves_by_percentage(dict(reversed(list(TOPICS.items()))), (10, 50, 100))
    assert first.settings == again.settings


def test_explicit_waves_contain_matching_entities() -> None:
    waves = waves_by_name(TOPICS, ["t1,t2", "t1.*", ".*"])
    assert [len(wave.settings) for wave in waves] == [2, 10, 8]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["t1"], "TOPIC:t0, TOPIC:t10, .* and 9 more: in no --wave; name it, or end with --wave '.*'"),
        (["nothing"], "--wave nothing: it matches none of those that are left"),
        (["("], "--wave \\(: not a regular expression"),
    ],
)
def test_explicit_waves_must_be_complete(groups: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        waves_by_name(TOPICS, groups)


def test_client_configs_are_staged_by_percentage_and_made_final() -> None:
    waves = waves_of_clients({"USER:alice": {"acks": "all"}}, {"USER:alice": {"acks": "1"}}, (10, 100))
    assert waves == (
        Wave(name="10%", settings={"USER:alice": {"rollout.acks": "10:all"}}),
        Wave(name="100%", settings={"USER:alice": {"rollout.acks": "100:all"}}),
        Wave(name="final", settings={"USER:alice": {"acks": "all", "rollout.acks": None}}, is_final=True),
    )


def test_completed_earlier_roll_out_becomes_the_plain_value() -> None:
    first, *_ = waves_of_clients({"USER:a": {"acks": "all"}}, {"USER:a": {"rollout.acks": "100:1"}}, (10, 100))
    assert first.settings == {"USER:a": {"acks": "1", "rollout.acks": "10:all"}}


def test_value_that_all_clients_have_already_is_not_taken_from_them() -> None:
    settings = {"USER:a": {"acks": "all"}, "USER:b": {"acks": "all"}}
    first, _, final = waves_of_clients(settings, {"USER:a": {"acks": "0", "rollout.acks": "100:all"}}, (10, 100))
    assert first.settings == {"USER:a": {"rollout.acks": "100:all"}, "USER:b": {"rollout.acks": "10:all"}}
    assert final.settings == {entity: {"acks": "all", "rollout.acks": None} for entity in settings}


def test_incomplete_earlier_roll_out_is_rejected() -> None:
    with pytest.raises(SettingsError, match=r"USER:a: rollout.acks=30:1 is a roll-out that is not complete"):
        waves_of_clients({"USER:a": {"acks": "all"}}, {"USER:a": {"rollout.acks": "30:1"}}, (10, 100))


def record_of(waves: tuple[Wave, ...]) -> RolloutRecord:
    return RolloutRecord(id="1", waves=waves, bake_ms=1, check_ms=1)


def test_changed_clients_match_the_brokers_selection() -> None:
    record = record_of(waves_of_clients({"USER:alice": {"acks": "all"}}, {}, (10, 50, 100)))
    for number in range(200):
        client = ClientConfigEntity.of_client("alice", f"c{number}")
        hundredths = client_class(client, "acks")
        assert [is_changed(record, wave, client) for wave in range(3)] == [hundredths < 1000, hundredths < 5000, True]
    assert is_changed(record, 2, ClientConfigEntity.of_client("bob", "c")) is None


@pytest.mark.parametrize("number", range(3))
def test_plain_value_of_a_completed_roll_out_changes_no_client(number: int) -> None:
    # given
    present: Values = {"USER:a": {"acks": "0", "rollout.acks": "100:1"}}
    waves = waves_of_clients({"USER:a": {"acks": "all"}}, present, (10, 50, 100))
    record = replace(record_of(waves), before=values_before(waves, present))
    clients = [ClientConfigEntity.of_client("a", f"c{each}") for each in range(100)]
    # when
    changed = [is_changed(record, number, client) for client in clients]
    # then
    assert changed == [client_class(client, "acks") < (1000, 5000, 10_000)[number] for client in clients]


def test_client_with_value_of_completed_roll_out_is_not_concerned() -> None:
    # given
    present: Values = {"USER:a": {"rollout.acks": "100:all"}, "USER:b": {}}
    waves = waves_of_clients({"USER:a": {"acks": "all"}, "USER:b": {"acks": "all"}}, present, (10, 100))
    record = replace(record_of(waves), before=values_before(waves, present))
    # when
    changed = [is_changed(record, 1, ClientConfigEntity.of_client(user, "c")) for user in ("a", "b")]
    # then
    assert changed == [None, True]


def test_quotas_change_clients_of_their_user_and_topics_all_clients() -> None:
    alice, bob = (ClientConfigEntity.of_client(user, "c") for user in ("alice", "bob"))
    quotas: Values = {f"QUOTA:user={user}": {"producer_byte_rate": "1"} for user in ("alice", "bob")}
    record = record_of(waves_by_name(quotas, ["alice", "bob"]))
    assert [is_changed(record, 0, each) for each in (alice, bob)] == [True, False]
    assert is_changed(record_of(waves_by_percentage(TOPICS, (1, 100))), 0, bob) is True


def test_quota_of_the_default_user_changes_all_clients_and_that_of_an_escaped_name_those_of_the_user() -> None:
    alice, certified = (ClientConfigEntity.of_client(user, "c") for user in ("alice", "CN=a,O=b"))
    for users, changed in (([None], [True, True]), (["CN=a,O=b"], [None, True]), (["CN=a,O=b", None], [True, True])):
        quotas: Values = {quota_resource((("user", user),)): {"producer_byte_rate": "1"} for user in users}
        record = record_of(waves_by_percentage(quotas, (100,)))
        assert [is_changed(record, 0, each) for each in (alice, certified)] == changed
