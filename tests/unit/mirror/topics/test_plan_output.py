from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from klamm.admin import ConfigEntry, ConfigSource, KafkaApiError, OpType, PolicyOverride
from klamm.kafka_client.errors import error_text
from klamm.mirror.cluster_admin import TopicConfigOperation
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics import plan_output
from klamm.mirror.topics.plan_output import config_line, print_plan
from tests.support.mirror_fakes import FakeCluster, entries_of, rejection

if TYPE_CHECKING:
    from klamm.mirror.settings.flow import FlowSettings

ONE_FLOW = {
    "clusters": "A,B",
    "A.bootstrap.servers": "a:1",
    "B.bootstrap.servers": "b:1",
    "A->B.enabled": "true",
    "topics": "orders",
}
HEARTBEATS_ON_A = "  + internal topic heartbeats on cluster A: 1 partition"
HEARTBEATS_ON_B = "  + internal topic heartbeats on cluster B: 1 partition"


def printed(monkeypatch: pytest.MonkeyPatch, clusters: dict[str, FakeCluster], /, **more: str) -> tuple[int, list[str]]:
    """Return the exit code and the lines of a plan."""

    def admin(flow: FlowSettings, side: str) -> FakeCluster:
        return clusters[(flow.source if side == "source" else flow.target).alias]

    monkeypatch.setattr(plan_output, "admin_client", admin)
    out = io.StringIO()
    code = print_plan(parse_settings(ONE_FLOW | more), out)
    return code, out.getvalue().splitlines()


def test_plan_names_heartbeats_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """K894-44: they are written to both clusters, and those on the source are mirrored."""
    code, lines = printed(monkeypatch, {"A": FakeCluster(orders=1), "B": FakeCluster()})
    assert code == 0
    assert [line for line in lines if "heartbeats" in line] == [
        HEARTBEATS_ON_A,
        HEARTBEATS_ON_B,
        "  + internal topic A.heartbeats on cluster B: 1 partition",
    ]
    there = {"A": FakeCluster(orders=1, heartbeats=1), "B": FakeCluster(heartbeats=1)}
    _, lines = printed(monkeypatch, there)
    assert [line for line in lines if "heartbeats" in line] == [
        "  + topic A.heartbeats: 1 partition, replication factor 2"
    ]


def test_plan_reports_flow_within_one_cluster_and_repeated_aliases(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(orders=1)
    code, lines = printed(monkeypatch, {"A": cluster, "B": cluster}, topics=".*")
    assert (code, len(lines)) == (1, 1)
    assert "A->B: cannot be planned: clusters A and B are the same cluster: topic orders" in lines[0]
    clusters = {"A": FakeCluster(**{"A.orders": 1, "C.orders": 1}), "B": FakeCluster()}
    _, lines = printed(monkeypatch, clusters, topics=".*")
    assert [line for line in lines if "  !" in line] == [
        "  ! topic A.A.orders: topic A.orders of cluster A already has the alias A: does another mirror use it for "
        "another cluster?"
    ]


def test_plan_reports_unmatched_topic_patterns_and_topics_new_since_4_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clusters = {"A": FakeCluster(**{"orders": 1, "orders-internal": 1, "x.replica": 1}), "B": FakeCluster()}
    code, lines = printed(monkeypatch, clusters, topics=r"ord.*, payments\..*, (users, clients), x.*")
    assert (code, [line for line in lines if "! topics" in line]) == (
        0,
        [f"  ! topics: {expression} selects no topic of cluster A" for expression in (r"payments\..*", "x.*")],
    )
    assert [line.partition(";")[2] for line in lines if "+ topic A.orders" in line] == [
        "", " MirrorMaker before 4.1 does not mirror it",
    ]  # fmt: skip


def test_plan_reports_topics_excluded_by_topics_blacklist(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = {"A": FakeCluster(orders=1, users=1, new=1), "B": FakeCluster(**{"A.users": 1, "A.orders": 1})}
    _, lines = printed(monkeypatch, clusters, topics=".*", **{"topics.blacklist": "users, new"})
    assert [line for line in lines if line.startswith("  !")] == [
        "  ! topic A.users: not mirrored, topics.blacklist excludes users; MirrorMaker 4.0 and later ignore this key"
    ]


def test_plan_of_two_flows_names_each_heartbeats_topic_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, lines = printed(monkeypatch, {"A": FakeCluster(), "B": FakeCluster()}, **{"B->A.enabled": "true"})
    assert sorted(line for line in lines if "topic heartbeats" in line) == [HEARTBEATS_ON_A, HEARTBEATS_ON_B]


def test_plan_without_heartbeats_names_no_heartbeats_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    _, lines = printed(monkeypatch, {"A": FakeCluster(), "B": FakeCluster()}, **{"emit.heartbeats.enabled": "false"})
    assert [line for line in lines if "heartbeats" in line] == []


class Source(FakeCluster):
    """Tells defaults, too."""

    def entries(self, topic: str) -> list[ConfigEntry]:
        defaults = {"flush.ms": "1", "segment.ms": "1"}
        return [*entries_of(self.configs.get(topic, {})), *entries_of(defaults, ConfigSource.DEFAULT_CONFIG)]


class Secretive(FakeCluster):
    """May not be asked for configs."""

    def entries(self, topic: str) -> KafkaApiError:
        return rejection("TOPIC_AUTHORIZATION_FAILED", "no right to")


def test_plan_reports_topic_without_describe_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """K894-21: everything is sent there; defaults that are defaults on both sides are not listed one by one."""
    source, target = Source(orders=1), Secretive(**{"A.orders": 1})
    source.configs["orders"] = {"retention.ms": "5"}
    _, lines = printed(monkeypatch, {"A": source, "B": target})
    why = "cluster B does not allow describing the configs"
    assert [line for line in lines if "A.orders" in line] == [
        f"  ~ topic A.orders: retention.ms: ? -> 5: set on the source topic; {why}",
        f"  - topic A.orders: 2 configs: ? -> (default): not set on the source topic; {why}",
    ]
    _, lines = printed(monkeypatch, {"A": source, "B": target}, **{"use.incremental.alter.configs": "never"})
    assert [line for line in lines if "A.orders" in line] == [
        f"  ~ topic A.orders: ? -> the complete set, which AlterConfigs writes; {why}"
    ]


def test_plan_shows_rejected_changes_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    source, target = FakeCluster(orders=3, users=1, new=1), FakeCluster(**{"A.orders": 1, "A.users": 1})
    source.configs["users"] = {"retention.ms": "5"}
    target.configs["A.users"] = {"retention.ms": "7"}
    denied = rejection("TOPIC_AUTHORIZATION_FAILED", "Authorization failed.")
    wrong = rejection("INVALID_REPLICATION_FACTOR", "only 1 broker")
    target.rejects = {"A.orders": denied, "A.users": denied, "A.new": wrong, "mm2-offsets.A.internal": wrong}
    # when
    code, lines = printed(monkeypatch, {"A": source, "B": target}, topics="orders,users,new")
    # then
    assert code == 1
    assert [line for line in lines if "would be rejected" in line] == [
        "  ! topic mm2-offsets.A.internal: its creation on cluster B with offset.storage.replication.factor=3 "
        f"would be rejected: {error_text(wrong)}",
        f"  ! topic A.new: its creation on cluster B with replication.factor=2 would be rejected: {error_text(wrong)}",
        f"  ! topic A.orders: more partitions on cluster B would be rejected: {error_text(denied)}",
        f"  ! topic A.users: the change of its configs on cluster B would be rejected: {error_text(denied)}",
    ]
    assert target.created == [], "a plan creates nothing"
    assert target.topics == {"A.orders": 1, "A.users": 1}


def test_plan_validates_the_complete_set_of_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    source, target = FakeCluster(users=1), FakeCluster(**{"A.users": 1})
    source.configs["users"] = {"retention.ms": "5"}
    target.rejects = {"A.users": rejection("INVALID_CONFIG", "unknown config")}
    # when
    code, lines = printed(
        monkeypatch, {"A": source, "B": target}, topics="users", **{"use.incremental.alter.configs": "never"}
    )
    # then
    assert code == 1
    assert [line for line in lines if "would be rejected" in line] == [
        "  ! topic A.users: the change of its configs on cluster B would be rejected: INVALID_CONFIG: unknown config"
    ]


@pytest.mark.parametrize(("now", "changes"), [("5", 0), ("6", 1)])
def test_plan_names_values_that_a_policy_overrides(now: str, changes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = FakeCluster(orders=1), FakeCluster(**{"A.orders": 1})
    source.configs["orders"] = {"retention.ms": "7"}
    target.configs["A.orders"] = {"retention.ms": now}
    override = PolicyOverride(reason="at most 5", values={"retention.ms": "5"})
    monkeypatch.setattr(plan_output, "alter_topic_configs", lambda *_, **__: {"A.orders": override})
    code, lines = printed(monkeypatch, {"A": source, "B": target})
    assert code == 0
    assert sum("~ topic A.orders: retention.ms: 6 -> 7" in line for line in lines) == changes
    assert "  ! topic A.orders: retention.ms: a policy of cluster B stores 5 in place of 7: at most 5" in lines


def test_plan_names_other_flows_that_sync_configs_of_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"clusters": "A,B,C", "C.bootstrap.servers": "c:1", "C->B.enabled": "true"}
    more["replication.policy.class"] = "IdentityReplicationPolicy"
    clusters = {"A": FakeCluster(orders=1), "B": FakeCluster(orders=1), "C": FakeCluster()}
    _, lines = printed(monkeypatch, clusters, **more)
    (line,) = [line for line in lines if "also selects" in line]
    assert line.startswith("  ! C->B also selects orders, and both flows sync topic configs: ")


def test_plan_skips_configs_unknown_to_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror leaves them out, so they are no rejection."""
    source, target = FakeCluster(orders=1), FakeCluster(other=1)
    source.configs["orders"] = {"vendor.tier": "gold"}
    target.unknown = frozenset({"vendor.tier"})
    assert printed(monkeypatch, {"A": source, "B": target})[0] == 0


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
def test_error_in_custom_class_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, key: str, name: str, reason: str
) -> None:
    code, lines = printed(monkeypatch, {"A": FakeCluster(orders=1), "B": FakeCluster()}, **{key: f"{__name__}:{name}"})
    assert (code, lines) == (1, [f"A->B: cannot be planned: {reason}"])


def test_plan_shows_durations_in_words() -> None:
    # given
    change = TopicConfigOperation(
        name="retention.ms", operation=OpType.SET, value="86400000", old_value="604800000", rule="because"
    )
    # then
    assert config_line("A.orders", change) == (
        "~ topic A.orders: retention.ms: 604800000 (7 days) -> 86400000 (1 day): because"
    )


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("auto", "  reason: klamm.offsets.by=auto: replica is experimental, so auto never chooses it"),
        ("replay", "  reason: klamm.offsets.by=replay: no other way is tried"),
    ],
)
def test_plan_names_how_offsets_are_kept_and_why(way: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = (
        "  a replica would need klamm.offsets.by=replica, klamm.replica.experimental=true, klamm.replica.node.id, "
        "klamm.replica.listeners, B.bootstrap.controllers, CLUSTER_ACTION on the cluster, and metadata.version 4.3 or "
        "more"
    )
    there = {"A": FakeCluster(orders=1), "B": FakeCluster()}
    code, lines = printed(monkeypatch, there, **{"klamm.offsets": "preserve", "klamm.offsets.by": way})
    assert (code, lines[2]) == (0, reason)
    assert lines[1].startswith("  offsets are kept by replay: ")
    assert (replica in lines) == (way == "auto")
    assert next(line for line in lines if "rights" in line).startswith(
        "  rights on cluster B: ALTER on the cluster; DESCRIBE and WRITE on transactional ids"
    )
