"""Differences between declared and existing resources."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from klamm.admin import PolicyOverride
from klamm.cli.resources.report import document
from klamm.impact.changes import (
    AclsRemoved,
    ClientConfigAltered,
    CredentialsRemoved,
    DenyAclsAdded,
    QuotaAltered,
    ReplicationFactorAltered,
)
from klamm.resources.cluster import Observation
from klamm.resources.diff import Ownership, after_override, plan_resources
from klamm.resources.engine import Plan
from klamm.resources.equality import is_same
from klamm.resources.impact import planned_changes
from klamm.resources.model import CurrentValue, Declared, Existing, Kind, ResourceDiff, ResourceKey, Secret

ORDERS = ResourceKey(Kind.TOPIC, "orders")
VALUES = {
    "partitions": CurrentValue(value="3", origin="cluster", is_own=True),
    "replication_factor": CurrentValue(value="1", origin="cluster", is_own=True),
    "retention.ms": CurrentValue(value="5000", origin="topic", is_own=True, inherited="604800000"),
    "cleanup.policy": CurrentValue(value="compact,delete", origin="topic", is_own=True, inherited="delete"),
    "segment.ms": CurrentValue(value="604800000", origin="all brokers", is_own=False),
    "flush.ms": CurrentValue(value="9223372036854775807", origin="default", is_own=False),
}
EXISTING = {ORDERS: Existing(values=VALUES, replicas=((1,), (1,), (1,)))}
PRUNE_KEYS = Ownership(prune_keys=True)


def topic(name: str = "orders", **values: str) -> Declared:
    texts = {key.replace("__", "."): value for key, value in values.items()}
    return Declared(kind=Kind.TOPIC, name=name, values=texts, place=f"f: topics.{name}")


def plan(declared: Declared, ownership: Ownership | None = None) -> ResourceDiff:
    (diff,) = plan_resources([declared], EXISTING, ownership or Ownership())
    return diff


def lines(diff: ResourceDiff) -> list[str]:
    return [str(change) for change in diff.changes]


def test_new_topic_consists_of_additions() -> None:
    diff = plan(topic("audit", partitions="2", retention__ms="1"))
    assert lines(diff) == ["+ partitions: 2 (file)", "+ retention.ms: 1 (file)"]
    assert not diff.exists
    assert not diff.is_in_line


def test_new_topic_without_values_is_not_in_line() -> None:
    assert not plan(topic("audit")).is_in_line


def test_changed_value_has_old_and_new_value_with_origins() -> None:
    assert lines(plan(topic(retention__ms="1", segment__ms="2"))) == [
        "~ retention.ms: 5000 (5 s, topic) -> 1 (file)",
        "+ segment.ms: 604800000 (7 days, all brokers) -> 2 (file)",
    ]


def test_inherited_values_are_no_changes() -> None:
    declared = topic(segment__ms="604800000")
    assert plan(declared).is_in_line
    assert lines(plan(declared, PRUNE_KEYS)) == [
        "- cleanup.policy: compact,delete (topic) -> delete (default)",
        "- retention.ms: 5000 (5 s, topic) -> 604800000 (7 days, default)",
    ]


@pytest.mark.parametrize("mark", ["flag", "file"])
def test_undeclared_keys_are_kept_unless_the_file_owns_them(mark: str) -> None:
    values = {"cleanup.policy": "compact,delete"}
    declared = Declared(kind=Kind.TOPIC, name="orders", values=values, owns_all=mark == "file")
    assert lines(plan(topic(cleanup__policy="compact,delete"))) == []
    assert lines(plan(declared, PRUNE_KEYS if mark == "flag" else Ownership())) == [
        "- retention.ms: 5000 (5 s, topic) -> 604800000 (7 days, default)"
    ]


def test_ignored_keys_are_neither_changed_nor_removed() -> None:
    declared = Declared(
        kind=Kind.TOPIC, name="orders", values={"retention.ms": "1"}, ignored=("ret*", "cleanup.policy")
    )
    assert plan(declared, PRUNE_KEYS).is_in_line


def test_removal_without_reported_inherited_value_names_the_inherited_value() -> None:
    existing = {ORDERS: Existing(values={"segment.ms": CurrentValue(value="5", origin="topic", is_own=True)})}
    (diff,) = plan_resources([topic()], existing, PRUNE_KEYS)
    assert lines(diff) == ["- segment.ms: 5 (topic) -> the inherited value"]


def test_more_partitions_and_another_replication_factor_are_changes() -> None:
    diff = plan(topic(partitions="5", replication_factor="2"))
    assert lines(diff) == ["~ partitions: 3 (cluster) -> 5 (file)", "~ replication_factor: 1 (cluster) -> 2 (file)"]
    assert diff.config_changes == ()


def test_fewer_partitions_are_a_problem_and_no_change() -> None:
    diff = plan(topic(partitions="2", retention__ms="1"))
    assert diff.problems[0].startswith("f: topics.orders.partitions: 2: expected at least 3")
    assert diff.changes == ()
    assert not diff.is_in_line


def test_undeclared_resources_are_kept_without_prune() -> None:
    assert plan_resources([], EXISTING, PRUNE_KEYS) == ()


@pytest.mark.parametrize(("pattern", "deleted"), [(None, True), ("ord.*", True), ("ord", False)])
def test_prune_deletes_undeclared_topics_matching_the_whole_name(pattern: str | None, deleted: bool) -> None:
    ownership = Ownership(prune={Kind.TOPIC: None if pattern is None else re.compile(pattern)})
    diffs = plan_resources([], EXISTING, ownership)
    assert [(diff.key, diff.is_deletion, diff.removals) for diff in diffs] == ([(ORDERS, True, 1)] if deleted else [])


def test_absent_resource_is_deleted_once() -> None:
    absent = Declared(kind=Kind.TOPIC, name="orders", is_absent=True)
    assert plan(absent).is_deletion
    (gone,) = plan_resources([absent], {})
    assert gone.is_in_line


def test_pruned_grouping_kind_removes_undeclared_keys() -> None:
    key = ResourceKey(Kind.ACLS, "User:a")
    acls = {text: CurrentValue(value="", origin="cluster", is_own=True) for text in ("ALLOW READ x", "ALLOW WRITE x")}
    declared = Declared(kind=Kind.ACLS, name="User:a", values={"ALLOW READ x": ""})
    (kept,) = plan_resources([declared], {key: Existing(values=acls)})
    (pruned,) = plan_resources([declared], {key: Existing(values=acls)}, Ownership(prune={Kind.ACLS: None}))
    assert kept.is_in_line
    assert lines(pruned) == ["- ALLOW WRITE x"]
    assert pruned.removals == 1


def test_unknown_config_is_sent_for_the_broker_to_reject() -> None:
    assert lines(plan(topic(nonsense="1"))) == ["+ nonsense: 1 (file)"]


@pytest.mark.parametrize(
    ("kind", "key", "current", "wanted", "same"),
    [
        (Kind.TOPIC, "cleanup.policy", "compact,delete", "compact, delete", True),
        (Kind.TOPIC, "cleanup.policy", "compact,delete", "delete,compact", True),
        (Kind.TOPIC, "cleanup.policy", "compact,delete", "delete", False),
        (Kind.TOPIC, "preallocate", "true", "TRUE", True),
        (Kind.TOPIC, "min.cleanable.dirty.ratio", "0.5", "0.50", True),
        (Kind.TOPIC, "retention.ms", "5000", "5000", True),
        (Kind.TOPIC, "retention.ms", "5000", "many", False),
        (Kind.TOPIC, "retention.ms", None, "5000", False),
        (Kind.TOPIC, "config.of.the.future", "1", "1.0", False),
        (Kind.BROKER, "log.cleanup.policy", "compact,delete", "delete,compact", True),
        (Kind.BROKER, "listener.name.a.ssl.cipher.suites", "A,B", "B,A", False),
        (Kind.BROKER, "log.retention.ms", "5", "+5", True),
        (Kind.QUOTA, "producer_byte_rate", "1000", "1000.0", True),
        (Kind.QUOTA, "producer_byte_rate", "1000", "1001", False),
        (Kind.SCRAM, "SCRAM-SHA-256", "4096", "any", True),
        (Kind.SCRAM, "SCRAM-SHA-256", "4096", "8192", False),
        (Kind.CLIENT_CONFIGS, "acks", "all", "-1", True),
        (Kind.CLIENT_CONFIGS, "acks", "all", "1", False),
        (Kind.CLIENT_CONFIGS, "session.timeout.ms", "45000", "+45000", True),
        (Kind.CLIENT_CONFIGS, "rollout.acks", "10:all", "10.0:-1", True),
        (Kind.CLIENT_METRICS, "metrics", "a,b", "b, a", True),
        (Kind.GROUP, "consumer.session.timeout.ms", "45000", " 45000", True),
    ],
)
def test_values_are_compared_as_kafka_reads_them(
    kind: Kind, key: str, current: str | None, wanted: str, same: bool
) -> None:
    assert is_same(kind, key, current, wanted) is same


def test_vendor_config_is_compared_by_its_reported_type() -> None:
    assert is_same(Kind.TOPIC, "vendor.limit", "5", "05", config_type=5)
    assert not is_same(Kind.TOPIC, "vendor.name", "5", "05", config_type=2)


def test_throttles_are_never_removed() -> None:
    throttles = {
        f"{role}.replication.throttled.replicas": CurrentValue(value="0:1", origin="topic", is_own=True)
        for role in ("leader", "follower")
    }
    (diff,) = plan_resources([topic()], {ORDERS: Existing(values=throttles)}, PRUNE_KEYS)
    assert diff.is_in_line


def test_colliding_names_are_problems_of_new_topics() -> None:
    declared = [topic(name) for name in ("or_ders", "or.ders", "a.b", "a.b_c", "a_b", "a.b.c")]
    existing = {ResourceKey(Kind.TOPIC, "or.ders"): EXISTING[ORDERS]}
    problems = {diff.key.name: diff.problems for diff in plan_resources(declared, existing) if diff.problems}
    assert {name: problem[0].rpartition(f".{name}:")[2][:46] for name, problem in problems.items()} == {
        "or_ders": " the name collides with that of topic or.ders:",
        "a_b": " the name collides with that of topic a.b: met",
        "a.b.c": " the name collides with that of topic a.b_c: m",
    }


def test_override_replaces_declared_values() -> None:
    # given
    declared = topic(retention__ms="1", segment__ms="2", cleanup__policy="delete")
    values = {"retention.ms": "5000", "segment.ms": "3", "cleanup.policy": None, "flush.ms": None}
    # when
    diff = after_override(plan(declared), PolicyOverride(reason="set right", values=values), EXISTING[ORDERS])
    # then
    assert lines(diff) == [
        "+ segment.ms: 604800000 (7 days, all brokers) -> 3 (policy)",
        "- cleanup.policy: compact,delete (topic) -> delete (default)",
    ]
    only_equal = PolicyOverride(reason="set right", values={"retention.ms": "5000"})
    assert after_override(plan(topic(retention__ms="1")), only_equal, EXISTING[ORDERS]).is_in_line


def test_secret_is_sent_when_missing_or_on_request_and_never_shown() -> None:
    # given
    key = ResourceKey(Kind.BROKER, "1")
    secrets = {"ssl.key.password": Secret(path=Path("/secret"))}
    broker = Declared(kind=Kind.BROKER, name="1", secrets=secrets)
    hidden = CurrentValue(value=None, origin="broker", is_own=True, is_sensitive=True)
    present = {key: Existing(values={"ssl.key.password": hidden})}
    # when
    (missing,) = plan_resources([broker], {key: Existing(values={})})
    (equal,) = plan_resources([broker], present)
    (again,) = plan_resources([broker], present, Ownership(send_secrets=True))
    # then
    assert lines(missing) == ["+ ssl.key.password: (secret) (file)"]
    assert equal.is_in_line
    assert lines(again) == ["~ ssl.key.password: (secret) (broker) -> (secret) (file)"]


@pytest.mark.parametrize("key", ["listener.name.a.ssl.key.password", "sasl.jaas.config", "plugin.token"])
def test_secret_in_the_file_itself_is_sent_when_missing_or_on_request_and_never_shown(key: str) -> None:
    # given
    broker = Declared(kind=Kind.BROKER, name="1", values={key: "hunter2"})
    hidden = CurrentValue(value=None, origin="broker", is_own=True, is_sensitive=True)
    # when
    (new,) = plan_resources([broker], {broker.key: Existing(values={})})
    (equal,) = plan_resources([broker], {broker.key: Existing(values={key: hidden})})
    (again,) = plan_resources([broker], {broker.key: Existing(values={key: hidden})}, Ownership(send_secrets=True))
    # then
    assert lines(new) == [f"+ {key}: (secret) (file)"]
    assert equal.is_in_line
    assert lines(again) == [f"~ {key}: (secret) (broker) -> (secret) (file)"]
    assert [change.new for diff in (new, again) for change in diff.changes] == ["hunter2", "hunter2"]
    plans = [
        Plan(diffs=(diff,), failed={}, observation=Observation(resources={broker.key: Existing(values={})}))
        for diff in (new, again)
    ]
    assert "hunter2" not in repr([document(each, None) for each in plans])
    assert [change for each in plans for change in planned_changes(each)] == []


def test_first_values_of_users_and_lower_factors_have_an_impact() -> None:
    billing = "user=billing"
    declared = [
        Declared(kind=Kind.CLIENT_CONFIGS, name=billing, values={"acks": "1"}),
        Declared(kind=Kind.QUOTA, name=billing, values={"producer_byte_rate": "1"}),
        Declared(kind=Kind.TOPIC, name="t", values={"replication_factor": "1"}),
        Declared(kind=Kind.TOPIC, name="new", values={"replication_factor": "1"}),
    ]
    factor = CurrentValue(value="2 and 3", origin="cluster", is_own=True)
    present = {declared[2].key: Existing(values={"replication_factor": factor}, replicas=((1, 2), (1, 2, 3)))}
    diffs = tuple(plan_resources(declared, present))
    plan = Plan(diffs=diffs, failed={}, observation=Observation(resources=present))
    assert sorted(map(repr, planned_changes(plan))) == sorted(
        map(
            repr,
            [
                ClientConfigAltered(entity=(("user", "billing"),), name="acks", value="1"),
                QuotaAltered(entity=(("user", "billing"),), name="producer_byte_rate", value=1.0),
                ReplicationFactorAltered(topic="t", factor=1, factor_before=3),
            ],
        )
    )


def test_removed_acls_and_credentials_have_an_impact() -> None:
    # given
    declared = [
        Declared(kind=Kind.ACLS, name="User:a", values={"ALLOW WRITE on TOPIC:LITERAL:t from *": ""}, owns_all=True),
        Declared(kind=Kind.SCRAM, name="a", is_absent=True),
        Declared(kind=Kind.SCRAM, name="b", values={"SCRAM-SHA-512": "any"}, owns_all=True),
    ]
    there = CurrentValue(value="4096", origin="cluster", is_own=True)
    acls = ("ALLOW READ on TOPIC:LITERAL:t from *", "DENY READ on TOPIC:LITERAL:u from *", *declared[0].values)
    present = {
        declared[0].key: Existing(values=dict.fromkeys(acls, replace(there, value=""))),
        declared[1].key: Existing(values={"SCRAM-SHA-256": there}),
        declared[2].key: Existing(values={"SCRAM-SHA-256": there, "SCRAM-SHA-512": there}),
    }
    diffs = tuple(plan_resources(declared, present))
    # when
    changes = planned_changes(Plan(diffs=diffs, failed={}, observation=Observation(resources=present)))
    # then
    assert sorted(changes, key=repr) == [
        AclsRemoved(principal="User:a", acls=("ALLOW READ on TOPIC:LITERAL:t from *",)),
        CredentialsRemoved(user="a", mechanisms=("SCRAM-SHA-256",), are_all=True),
        CredentialsRemoved(user="b", mechanisms=("SCRAM-SHA-256",), are_all=False),
    ]


def test_new_acls_have_an_impact_if_they_deny() -> None:
    # given
    acls = ("ALLOW READ on TOPIC:LITERAL:t from *", "DENY ALL on TOPIC:LITERAL:* from *")
    declared = Declared(kind=Kind.ACLS, name="User:*", values=dict.fromkeys(acls, ""))
    present = {declared.key: Existing(values={acls[1]: CurrentValue(value="", origin="cluster", is_own=True)})}
    # when
    new, same = (
        planned_changes(Plan(diffs=plan_resources([declared], there), failed={}, observation=Observation(resources={})))
        for there in ({}, present)
    )
    # then
    assert new == [DenyAclsAdded(principal="User:*", acls=(acls[1],))]
    assert same == []


def test_credential_without_password_is_a_problem_only_where_it_is_missing() -> None:
    user = Declared(kind=Kind.SCRAM, name="a", values={"SCRAM-SHA-256": "any"}, place="f: users.a")
    there = CurrentValue(value="4096", origin="cluster", is_own=True)
    (missing,) = plan_resources([user], {})
    (present,) = plan_resources([user], {user.key: Existing(values={"SCRAM-SHA-256": there})})
    assert "cannot be set without a password" in missing.problems[0]
    assert present.is_in_line


def test_undescribable_resource_is_a_problem() -> None:
    (diff,) = plan_resources([topic()], {ORDERS: Existing(values={}, problem="cannot be described: no right")})
    assert diff.problems == ("f: topics.orders: cannot be described: no right",)
    assert diff.changes == ()


def test_min_insync_replicas_of_the_cluster_is_never_removed() -> None:
    key = ResourceKey(Kind.BROKER, "default")
    own = {
        name: CurrentValue(value="1", origin="all brokers", is_own=True)
        for name in ("min.insync.replicas", "log.cleaner.threads")
    }
    (diff,) = plan_resources([Declared(kind=Kind.BROKER, name="default")], {key: Existing(values=own)}, PRUNE_KEYS)
    assert lines(diff) == ["- log.cleaner.threads: 1 (all brokers) -> the inherited value"]


def test_inherited_value_is_set_if_the_plan_changes_the_broker_config_behind_it() -> None:
    # given
    defaults = ("log.retention.ms", "group.consumer.session.timeout.ms")
    inherited = CurrentValue(value="5", origin="all brokers", is_own=False)
    set_for_all = CurrentValue(value="5", origin="all brokers", is_own=True)
    existing = {
        ResourceKey(Kind.BROKER, "default"): Existing(values=dict.fromkeys(defaults, set_for_all)),
        ResourceKey(Kind.BROKER, "1"): Existing(values={"log.retention.ms": inherited}),
        ResourceKey(Kind.TOPIC, "orders"): Existing(values={"retention.ms": inherited}),
        ResourceKey(Kind.GROUP, "g"): Existing(values={"consumer.session.timeout.ms": inherited}),
    }

    def changes(default: str) -> list[tuple[str, str, str | None]]:
        declared = [
            Declared(kind=Kind.BROKER, name="default", values=dict.fromkeys(defaults, default)),
            Declared(kind=Kind.BROKER, name="1", values={"log.retention.ms": "5"}),
            Declared(kind=Kind.TOPIC, name="orders", values={"retention.ms": "5"}),
            Declared(kind=Kind.GROUP, name="g", values={"consumer.session.timeout.ms": "5"}),
        ]
        diffs = plan_resources(declared, existing)
        return [(diff.key.name, change.key, change.new) for diff in diffs for change in diff.changes]

    # when, then
    assert changes("5") == []
    assert changes("7") == [
        ("default", "log.retention.ms", "7"),
        ("default", "group.consumer.session.timeout.ms", "7"),
        ("1", "log.retention.ms", "5"),
        ("orders", "retention.ms", "5"),
        ("g", "consumer.session.timeout.ms", "5"),
    ]
