"""Throttle of moved replicas on a broker: what its end removes, also after an interruption."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import klamm
from klamm.admin import (
    AdminClient,
    AlterConfigOp,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OpType,
    ResourceType,
    TopicPartition,
)
from klamm.resources.model import THROTTLED_REPLICAS
from klamm.resources.throttle import MoveThrottle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

pytestmark = pytest.mark.process
RATE = 1_000
MOVES = {TopicPartition(topic, 0): ((1,), (1, 2)) for topic in ("a", "b")}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with klamm.Broker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def admin(address: str) -> Iterator[AdminClient]:
    """Return the admin client of a broker with two topics and no throttle."""
    with AdminClient(address) as made:
        made.create_topics([NewTopic(name, 1, 1) for name in ("a", "b")]).all().result()
        yield made
        present = made.list_topics().result()
        made.delete_topics([name for name in ("a", "b") if name in present]).all().result()


def throttles(admin: AdminClient) -> dict[tuple[str, str], str | None]:
    """Return the throttles that are set on the broker and on the topics, by resource and config."""
    topics = [ConfigResource(ResourceType.TOPIC, name) for name in ("a", "b") if name in admin.list_topics().result()]
    described = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1"), *topics]).all().result()
    own = (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_TOPIC_CONFIG)
    return {
        (resource.name, name): entry.value
        for resource, entries in described.items()
        for name, entry in entries.items()
        if ".throttled." in name and entry.source in own and entry.value
    }


def test_end_removes_the_throttle_although_a_moving_topic_was_deleted(admin: AdminClient) -> None:
    # given
    throttle = MoveThrottle(admin, RATE)
    throttle.begin(MOVES)
    assert len(throttles(admin)) == 6
    admin.delete_topics(["a"]).all().result()
    # when
    throttle.end()
    # then
    assert throttles(admin) == {}


def test_next_run_removes_the_rates_of_a_run_interrupted_after_it_emptied_the_lists(
    admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    interrupted = MoveThrottle(admin, RATE)
    interrupted.begin(MOVES)
    alter = admin.incremental_alter_configs

    def until_the_broker(operations: Mapping[ConfigResource, list[AlterConfigOp]]) -> object:
        if any(resource.type is ResourceType.BROKER for resource in operations):
            raise KeyboardInterrupt
        return alter(operations)

    monkeypatch.setattr(admin, "incremental_alter_configs", until_the_broker)
    with pytest.raises(KeyboardInterrupt):
        interrupted.end()
    monkeypatch.undo()
    assert {resource for resource, _ in throttles(admin)} == {"1"}
    # when
    of_others = MoveThrottle(admin, 2 * RATE)
    of_others.take_over(["a", "b"])
    of_others.end()
    # then
    assert len(throttles(admin)) == 2
    # when
    following = MoveThrottle(admin, RATE)
    following.take_over(["a", "b"])
    following.end()
    # then
    assert throttles(admin) == {}


@pytest.mark.parametrize("lists", [THROTTLED_REPLICAS[:1], THROTTLED_REPLICAS])
def test_list_that_names_all_replicas_of_a_topic_stays_as_it_is(admin: AdminClient, lists: Sequence[str]) -> None:
    # given
    everything = [AlterConfigOp(ConfigEntry(name, "*"), OpType.SET) for name in lists]
    admin.incremental_alter_configs({ConfigResource(ResourceType.TOPIC, "a"): everything}).all().result()
    throttle = MoveThrottle(admin, RATE)
    # when
    throttle.begin({TopicPartition("a", 0): MOVES[TopicPartition("a", 0)]})
    # then
    assert len(throttles(admin)) == 4
    # when
    throttle.end()
    # then
    assert throttles(admin) == {("a", name): "*" for name in lists}
