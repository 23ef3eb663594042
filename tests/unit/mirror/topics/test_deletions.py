"""Deletion of remote topics: between clusters in memory, with a clock of the test."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import pytest

from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.progress.flow_progress import MirrorStatus
from klamm.mirror.records.requested_states import RequestedState
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.claims import FlowClaim
from klamm.mirror.topics.control import FlowControl
from klamm.mirror.topics.deletions import TopicDeletion, plan_deletions
from klamm.mirror.topics.states import FlowStates
from klamm.properties import SettingsError
from tests.support.mirror_fakes import FakeCluster, rejection

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from klamm.mirror.settings.flow import FlowSettings

KEY = "klamm.sync.topic.deletions"


def flow(**more: str) -> FlowSettings:
    properties = {
        "clusters": "A,B",
        "A.bootstrap.servers": "a:1",
        "B.bootstrap.servers": "b:1",
        "A->B.enabled": "true",
        "topics": "orders.*,users",
        KEY: "on",
    }
    return parse_settings(properties | {key.replace("_", "."): value for key, value in more.items()}).flows[0]


@pytest.mark.parametrize(
    ("key", "value", "prefix"),
    [("replication.policy.class", "IdentityReplicationPolicy", ""), ("source.cluster.alias", "eu", "eu.")],
)
def test_remote_topic_that_another_flow_selects_is_kept(key: str, value: str, prefix: str) -> None:
    """It holds the records of the other source, too."""
    more = {"clusters": "A,B,C", "C.bootstrap.servers": "c:1", "C->B.enabled": "true", "C->B.topics": "orders"}
    settings = flow(**more, **{key: value})
    topics = ("orders", "users")
    remote_topics = {f"{prefix}{topic}" for topic in topics}
    assert plan_deletions(settings, topics, {"other"}, remote_topics) == {"users": f"{prefix}users"}


def test_remote_topic_is_deleted_although_another_flow_selects_its_name() -> None:
    more = {"clusters": "A,B,C", "C.bootstrap.servers": "c:1", "C->B.enabled": "true"}
    assert plan_deletions(flow(**more), ["users"], {"other"}, {"A.users", "C.users"}) == {"users": "A.users"}


@pytest.mark.parametrize("switch", [{"refresh.topics.enabled": "false"}, {"refresh.topics.interval.seconds": "-1"}])
def test_deletion_without_the_search_for_topics_is_rejected(switch: dict[str, str]) -> None:
    """A topic would be announced as deleted soon, and never be looked for again."""
    with pytest.raises(SettingsError, match=f"{KEY}=on without the search for topics"):
        flow(**switch)
    assert not flow(**switch, **{KEY: "plan"}).refresh_topics_enabled


class Run:
    """The control loop of a flow that has source offsets for ``mirrored``. Refreshes the topics once a second."""

    def __init__(self, mirrored: Collection[str], mode: str = "on", **more: str) -> None:
        keys = {KEY: mode, f"{KEY}.grace.seconds": "60", f"{KEY}.max.per.hour": "2", **more}
        settings = flow(**{"refresh.topics.interval.seconds": "1", **keys})
        self.source = FakeCluster(other=1, **dict.fromkeys(mirrored, 1))
        self.target = FakeCluster(**{f"A.{topic}": 1 for topic in mirrored})
        self.mirrored = set(mirrored)
        self.is_hidden = self.is_read_only = False
        self.is_copied = False
        """Whether tasks still have partitions of the source topics."""
        self.now = 1000.0
        self.states, self.claim = FlowStates(), FlowClaim.always()
        deletion = TopicDeletion(
            settings,
            self.source,
            self.target,
            mirrored=self._read,
            forget=self._forget,
            first_cluster=lambda _, now: now,
            is_released=lambda _: not self.is_copied,
        )
        self.control = FlowControl(
            settings,
            self.source,
            self.target,
            status=MirrorStatus([settings.name]),
            publish=lambda _: None,
            clock=lambda: self.now,
            deletion=deletion,
            states=self.states,
            claim=self.claim,
        )
        self.control.turn()

    def _read(self, _: FlowSettings) -> Collection[str]:
        if self.is_hidden:
            raise ConnectionLostError("An open transaction hides source offsets")
        return self.mirrored

    def _forget(self, _: FlowSettings, topics: Collection[str]) -> None:
        if self.is_read_only:
            raise ConnectionLostError("NOT_LEADER_OR_FOLLOWER")
        self.mirrored.difference_update(topics)

    def after(self, seconds: float) -> set[str]:
        """Refresh the topics each second for some time. Return the remote topics that are left."""
        for _ in range(round(seconds)):
            self.now += 1
            self.control.turn()
        return {name for name in self.target.topics if name.startswith("A.")}


@pytest.mark.parametrize(
    ("source", "target", "deleted"),
    [
        (["other"], ["A.orders"], ["A.orders"]),
        (["orders", "other"], ["A.orders"], []),  # it exists
        ([], ["A.orders"], []),  # the source lists nothing
        (["heartbeats", "__consumer_offsets"], ["A.orders"], []),  # an empty source with a mirror
        (["other"], ["A.users"], []),  # users has no source offsets
        (["other"], ["A.heartbeats"], []),
        (["other"], ["A.private"], []),  # the filters do not select it any more
    ],
)
def test_only_deleted_mirrored_topics_are_planned(source: list[str], target: list[str], deleted: list[str]) -> None:
    mirrored = ["orders", "heartbeats", "private"]
    assert [*plan_deletions(flow(), mirrored, source, target).values()] == deleted


def test_remote_topic_of_another_source_topic_is_kept() -> None:
    settings = flow(**{"replication.policy.class": "IdentityReplicationPolicy"})
    assert plan_deletions(settings, ["orders"], ["users"], ["orders", "users"]) == {"orders": "orders"}
    assert plan_deletions(settings, ["orders"], ["orders", "users"], ["orders", "users"]) == {}


def test_remote_topic_is_deleted_after_grace_period_and_forgotten() -> None:
    run = Run(["orders", "users"])
    del run.source.topics["orders"]
    assert run.after(1) == {"A.orders", "A.users"}
    assert run.after(59) == {"A.orders", "A.users"}
    assert run.after(1) == {"A.users"}
    assert run.mirrored == {"users"}


def test_remote_topic_is_not_deleted_before_its_tasks_have_ended() -> None:
    """Their last source offsets would be those of a later topic with that name."""
    # given
    run = Run(["orders"], **{f"{KEY}.grace.seconds": "0"})
    run.is_copied = True
    # when
    del run.source.topics["orders"]
    # then
    assert run.after(2) == {"A.orders"}
    assert run.mirrored == {"orders"}
    # when
    run.is_copied = False
    # then
    assert run.after(1) == set()
    assert run.mirrored == set()


def test_recreated_source_topic_cancels_deletion(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(["orders"])
    del run.source.topics["orders"]
    run.after(10)
    run.source.topics["orders"] = 1
    run.after(30)
    del run.source.topics["orders"]
    run.after(1)
    assert run.after(59) == {"A.orders"}
    assert "A->B: topic orders: the deletion of its remote topic is cancelled" in caplog.messages
    assert run.after(1) == set()


def test_unreadable_source_offsets_delay_deletion_only(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(["orders"])
    del run.source.topics["orders"]
    run.after(10)
    run.is_hidden = True
    run.source.topics["users"] = 1
    assert run.after(60) == {"A.orders", "A.users"}
    assert "A->B: remote topics cannot be deleted now: An open transaction hides source offsets" in caplog.messages
    run.is_hidden = False
    assert run.after(1) == {"A.users"}


def test_undescribable_topic_is_kept() -> None:
    run = Run(["orders"])
    run.source.denied = {"orders"}
    run.after(10)
    assert run.after(100) == {"A.orders"}


def test_source_without_topics_deletes_nothing() -> None:
    run = Run(["orders", "users"])
    run.source.topics.clear()
    run.after(10)
    assert run.after(1000) == {"A.orders", "A.users"}


def test_source_with_other_cluster_id_deletes_no_remote_topic(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(["orders", "users"])
    run.source.topics.pop("orders")
    run.after(10)
    run.source.cluster_id = "rebuilt"
    run.source.topics.pop("users")
    run.after(100)
    assert run.after(100) == {"A.orders", "A.users"}
    assert "no remote topic is deleted, because A is cluster rebuilt and was " in caplog.text


def test_grace_period_begins_again_after_a_time_without_refreshes() -> None:
    run = Run(["orders"])
    del run.source.topics["orders"]
    run.after(1)
    run.now += 61
    assert run.after(59) == {"A.orders"}
    assert run.after(5) == set()


def test_grace_period_begins_again_after_another_process_had_the_flow() -> None:
    run = Run(["orders"])
    del run.source.topics["orders"]
    run.after(10)
    run.claim.let_go(holder="there")
    run.after(10)
    run.claim.hold(math.inf, was_taken=True)
    assert run.after(1) == {"A.orders"}
    assert run.after(59) == {"A.orders"}
    assert run.after(1) == set()


def test_promoted_topic_does_not_stand_for_a_source_without_topics() -> None:
    run = Run(["orders", "users"])
    run.states.change(lambda states: states.with_topics(["users"], RequestedState.FAILED_OVER))
    run.source.topics.clear()
    run.after(10)
    assert run.after(1000) == {"A.orders", "A.users"}


def test_remote_topic_of_a_promoted_topic_is_kept() -> None:
    run = Run(["orders", "users"])
    run.states.change(lambda states: states.with_topics(["users"], RequestedState.PROMOTED))
    for topic in ("orders", "users"):
        del run.source.topics[topic]
    run.after(10)
    assert run.after(1000) == {"A.users"}


def test_deletions_per_hour_are_limited() -> None:
    run = Run(["orders", "orders2", "orders3", "users"])
    for name in ("orders", "orders2", "orders3"):
        del run.source.topics[name]
    run.after(1)
    assert run.after(60) == {"A.orders3", "A.users"}
    assert run.after(3599) == {"A.orders3", "A.users"}
    assert run.after(1) == {"A.users"}


def test_plan_mode_logs_once_and_deletes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(["orders"], "plan")
    del run.source.topics["orders"]
    with caplog.at_level(logging.WARNING):
        assert [run.after(100), run.after(100)] == [{"A.orders"}, {"A.orders"}]
    assert [line for line in caplog.messages if "orders" in line] == [
        "A->B: topic orders is gone on cluster A: topic A.orders on cluster B would be deleted after 60 s "
        f"with {KEY}=on"
    ]


def test_rejected_deletion_is_retried_and_source_offsets_are_kept() -> None:
    run = Run(["orders"])
    del run.source.topics["orders"]
    run.target.rejects["A.orders"] = rejection("TOPIC_AUTHORIZATION_FAILED", "no right")
    run.after(10)
    assert run.after(60) == {"A.orders"}
    assert run.mirrored == {"orders"}
    run.target.rejects.clear()
    assert run.after(1) == set()


def test_failed_source_offset_deletion_is_retried_before_new_topic_is_mirrored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise, the retry would delete the source offsets of the new topic."""
    # given
    run = Run(["orders"])
    del run.source.topics["orders"]
    run.is_read_only = True
    assert run.after(61) == set()
    # when
    run.source.topics["orders"] = 1
    # then
    assert run.after(1) == set()
    assert "Until then, new topics with these names are not mirrored: NOT_LEADER_OR_FOLLOWER" in caplog.text
    # when
    run.is_read_only = False
    # then
    assert run.after(1) == {"A.orders"}
    assert run.mirrored == set()


def stop_topic(run: Run) -> None:
    run.states.change(lambda states: states.with_topics(["orders"], RequestedState.STOPPED))
    run.control.turn()
    run.states.change(lambda states: states.with_topics(["orders"], RequestedState.RUNNING))


def stop_flow(run: Run) -> None:
    run.states.change(lambda states: states.with_flow(RequestedState.STOPPED))
    run.control.turn()
    run.states.change(lambda states: states.with_flow(RequestedState.RUNNING))


def let_another_process_mirror(run: Run) -> None:
    run.claim.let_go(holder="there")
    run.control.turn()
    run.claim.hold(math.inf, was_taken=True)


@pytest.mark.parametrize("interrupt", [stop_topic, stop_flow, let_another_process_mirror])
def test_source_offsets_of_an_interrupted_deletion_are_kept(interrupt: Callable[[Run], None]) -> None:
    """They may be those of a reset, or of the new topic, which another process mirrored."""
    # given
    run = Run(["orders"])
    del run.source.topics["orders"]
    run.is_read_only = True
    assert run.after(61) == set()
    # when
    interrupt(run)  # within one refresh interval
    run.source.topics["orders"] = 1
    run.is_read_only = False
    # then
    assert run.after(2) == {"A.orders"}
    assert run.mirrored == {"orders"}


def test_failed_source_offset_deletion_is_retried_after_a_time_without_refreshes() -> None:
    # given
    run = Run(["orders"])
    del run.source.topics["orders"]
    run.is_read_only = True
    run.after(61)
    # when
    run.now += 61
    run.after(1)
    run.is_read_only = False
    # then
    run.after(1)
    assert run.mirrored == set()


def test_topic_deletion_is_off_by_default_and_invalid_mode_rejected() -> None:
    run = Run(["orders"], "off")
    del run.source.topics["orders"]
    run.after(10)
    assert run.after(1000) == {"A.orders"}
    with pytest.raises(SettingsError, match=r"klamm\.sync\.topic\.deletions=yes: expected one of off, plan, on"):
        flow(**{KEY: "yes"})
