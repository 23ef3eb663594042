from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from klamm.mirror.admin import KafkaAdmin
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.planning import print_plan
from tests.support.mirror_fakes import FakeCluster

if TYPE_CHECKING:
    from klamm.mirror.settings.flow import FlowSettings

ONE_FLOW = {
    "clusters": "A,B",
    "A.bootstrap.servers": "a:1",
    "B.bootstrap.servers": "b:1",
    "A->B.enabled": "true",
    "topics": "orders",
}
HEARTBEATS_ON_A = "  + topic heartbeats of the mirror's own on cluster A: 1 partition"
HEARTBEATS_ON_B = "  + topic heartbeats of the mirror's own on cluster B: 1 partition"


def printed(monkeypatch: pytest.MonkeyPatch, clusters: dict[str, FakeCluster], **more: str) -> tuple[int, list[str]]:
    """Return the exit code and the lines of a plan."""

    def admin(flow: FlowSettings, side: str) -> FakeCluster:
        return clusters[(flow.source if side == "source" else flow.target).alias]

    monkeypatch.setattr(KafkaAdmin, "of", admin)
    out = io.StringIO()
    code = print_plan(parse_settings(ONE_FLOW | more), out)
    return code, out.getvalue().splitlines()


def test_a_plan_names_the_topics_of_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """K894-44: they are written to both clusters, and those on the source are mirrored."""
    code, lines = printed(monkeypatch, {"A": FakeCluster(orders=1), "B": FakeCluster()})
    assert code == 0
    assert [line for line in lines if "heartbeats" in line] == [
        HEARTBEATS_ON_A,
        HEARTBEATS_ON_B,
        "  + topic A.heartbeats of the mirror's own on cluster B: 1 partition",
    ]
    there = {"A": FakeCluster(orders=1, heartbeats=1), "B": FakeCluster(heartbeats=1)}
    _, lines = printed(monkeypatch, there)
    assert [line for line in lines if "heartbeats" in line] == [
        "  + topic A.heartbeats: 1 partitions, replication factor 2"
    ]


def test_a_plan_of_two_flows_names_each_topic_of_heartbeats_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, lines = printed(monkeypatch, {"A": FakeCluster(), "B": FakeCluster()}, **{"B->A.enabled": "true"})
    assert sorted(line for line in lines if "topic heartbeats" in line) == [HEARTBEATS_ON_A, HEARTBEATS_ON_B]


def test_a_plan_without_heartbeats_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    _, lines = printed(monkeypatch, {"A": FakeCluster(), "B": FakeCluster()}, **{"emit.heartbeats.enabled": "false"})
    assert [line for line in lines if "heartbeats" in line] == []


class Broken:
    """A filter of the user's own with a mistake."""

    def should_replicate_topic(self, topic: str) -> bool:
        raise KeyError(topic)


class Nameless:
    """A naming policy of the user's own with a mistake."""

    def format_remote_topic(self, source_alias: str, topic: str) -> None:
        _ = source_alias, topic

    def topic_source(self, topic: str) -> None:
        _ = topic

    def upstream_topic(self, topic: str) -> None:
        _ = topic


@pytest.mark.parametrize(
    ("key", "name", "reason"),
    [
        ("topic.filter.class", "Broken", "KeyError: 'orders'"),
        (
            "replication.policy.class",
            "Nameless",
            "TypeError: replication.policy.class: format_remote_topic gave None for orders, not a name",
        ),
    ],
)
def test_a_mistake_in_a_class_of_the_users_own_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, key: str, name: str, reason: str
) -> None:
    code, lines = printed(monkeypatch, {"A": FakeCluster(orders=1), "B": FakeCluster()}, **{key: f"{__name__}:{name}"})
    assert (code, lines) == (1, [f"A->B: can not be planned: {reason}"])
