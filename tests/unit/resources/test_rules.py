"""Decisions of a rules file about planned changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.admin import (
    AdminClient,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConfigSynonym,
    CreatedTopic,
    CreateTopicsResult,
    DescribeConfigsResult,
    DescribeTopicsResult,
    Node,
    PartitionDescription,
    ResourceType,
    TopicDescription,
)
from klamm.admin.results import PerKeyResult
from klamm.kafka_client.pool.calls import Outcome
from klamm.protocol.errors import ClusterAuthorizationError, InvalidReplicationFactorError
from klamm.protocol.primitives import ZERO_UUID
from klamm.resources.diff import Ownership, plan_resources
from klamm.resources.engine import Plan, check_offline, make_plan
from klamm.resources.model import CurrentValue, Declared, Existing, Kind, ResourceKey
from klamm.resources.rules import RulesFile

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from klamm.admin import NewTopic
    from klamm.resources.execute import ChangeOutcomes

ORDERS = ResourceKey(Kind.TOPIC, "orders")


def judged(tmp_path: Path, rules: str, declared: Declared, existing: Existing, ownership: Ownership) -> ChangeOutcomes:
    (file := tmp_path / "rules.yaml").write_text(f"rules:\n  - {rules}\n")
    resources = {declared.key: existing}
    return RulesFile(file, "User:anna").judge(plan_resources([declared], resources, ownership), resources)


def done(value: Any) -> Outcome[Any]:
    outcome: Outcome[Any] = Outcome()
    outcome.set_result(value)
    return outcome


class FakeAdmin:
    """Cluster with 12 partitions, 3 replicas and some configs as the defaults of topics.

    A new topic cannot have more than 3 replicas. The existing topic ``audit`` sets ``retention.ms``. The retention of
    the broker is in hours, which is not described beside that. A separate controller, without the broker's properties,
    reports the configs of new topics.
    """

    OF_CONTROLLER = (("retention.ms", "604800000"), ("min.insync.replicas", "1"))

    def __init__(self, *, hours: str | None = "24", reports_configs: bool = True) -> None:
        """Set the retention of the broker. None: it cannot be described."""
        self._hours, self._reports_configs = hours, reports_configs

    def list_topics(self, *, include_internal: bool) -> Outcome[Mapping[str, Any]]:
        assert include_internal
        return done({"audit": None})

    def list_partition_reassignments(self, _: object) -> Outcome[Mapping[Any, Any]]:
        return done({})

    def describe_topics(self, names: Collection[str]) -> DescribeTopicsResult:
        result = DescribeTopicsResult(names)
        partition = PartitionDescription(partition=0, leader=1, leader_epoch=0, replicas=(1, 2), isr=(1, 2))
        for name in names:
            topic = TopicDescription(name=name, topic_id=ZERO_UUID, is_internal=False, partitions=(partition,))
            result.succeed(name, topic)
        return result

    def describe_cluster(self) -> Outcome[ClusterDescription]:
        nodes = (Node(id=1, host="127.0.0.1", port=9092),)
        return done(ClusterDescription(cluster_id="c", controller_id=1, nodes=nodes, features={}))

    def describe_configs(
        self, resources: Collection[ConfigResource], *, include_synonyms: bool = False
    ) -> DescribeConfigsResult:
        result = DescribeConfigsResult(resources)
        own, static = ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.STATIC_BROKER_CONFIG
        for resource in resources:
            if resource.type is ResourceType.TOPIC:
                synonyms = (ConfigSynonym("retention.ms", "1000", own),) if include_synonyms else ()
                entry = ConfigEntry("retention.ms", "1000", source=own, synonyms=synonyms)
                result.succeed(resource, {"retention.ms": entry})
            elif self._hours is not None:
                values = {"log.retention.hours": self._hours, "min.insync.replicas": "2"}
                result.succeed(resource, {n: ConfigEntry(n, value, source=static) for n, value in values.items()})
            else:
                result.fail(resource, ClusterAuthorizationError("no right"))
        return result

    def create_topics(self, topics: Collection[NewTopic], *, validate_only: bool) -> CreateTopicsResult:
        assert validate_only
        result = CreateTopicsResult(topic.name for topic in topics)
        for topic in topics:
            if topic.replication_factor > 3:
                result.fail(topic.name, InvalidReplicationFactorError("only 3 brokers"))
                continue
            defaults = {
                name: ConfigEntry(name, value, source=ConfigSource.STATIC_BROKER_CONFIG)
                for name, value in self.OF_CONTROLLER
            }
            own = {
                name: ConfigEntry(name, str(value), source=ConfigSource.DYNAMIC_TOPIC_CONFIG)
                for name, value in topic.configs.items()
            }
            result.succeed(
                topic.name,
                CreatedTopic(
                    name=topic.name,
                    topic_id=ZERO_UUID,
                    num_partitions=12 if topic.num_partitions < 0 else topic.num_partitions,
                    replication_factor=3 if topic.replication_factor < 0 else topic.replication_factor,
                    configs=defaults | own if self._reports_configs else {},
                ),
            )
        return result

    def incremental_alter_configs(
        self, alterations: Mapping[ConfigResource, object], _: object
    ) -> PerKeyResult[ConfigResource, None]:
        result: PerKeyResult[ConfigResource, None] = PerKeyResult(alterations)
        for resource in alterations:
            result.succeed(resource, None)
        return result


def planned(
    tmp_path: Path, rules: str, declared: Declared, admin: FakeAdmin, ownership: Ownership | None = None
) -> Plan:
    (file := tmp_path / "rules.yaml").write_text(f"rules:\n  - {rules}\n")
    rules_file = RulesFile(file, "User:anna")
    return make_plan(cast("AdminClient", admin), [declared], ownership or Ownership(), rules_file)


def test_removed_config_is_judged_by_inherited_value(tmp_path: Path) -> None:
    # given
    own = CurrentValue(value="1000", origin="topic", is_own=True, inherited="604800000")
    # when
    outcomes = judged(
        tmp_path,
        "{name: short, configs: {retention.ms: {max: 1d}}}",
        Declared(kind=Kind.TOPIC, name="orders"),
        Existing(values={"retention.ms": own}, replicas=((1,),)),
        Ownership(prune_keys=True),
    )
    # then
    assert "retention.ms=604800000 (the broker's default)" in str(outcomes.errors[ORDERS])


@pytest.mark.parametrize(
    ("rules", "values", "denial"),
    [
        ("{name: safe, replication_factor: {min: 2}}", {"replication_factor": "1"}, "replication factor=1"),
        ("{name: safe, replication_factor: {min: 2}}", {"replication_factor": "2"}, None),
        ("{name: safe, spare_replicas: {min: 1}}", {"replication_factor": "2"}, "min.insync.replicas 2"),
        (
            "{name: safe, spare_replicas: {min: 1}}",
            {"replication_factor": "2", "min.insync.replicas": "1", "partitions": "4"},
            None,
        ),
        (
            "{name: safe, spare_replicas: {min: 1}}\n"
            "  - {name: two, effect: override, configs: {min.insync.replicas: {min: 2}}}",
            {"replication_factor": "2", "min.insync.replicas": "1"},
            "min.insync.replicas 2",
        ),
        ("{name: safe, spare_replicas: {min: 0, max: 1}}", {"replication_factor": "5"}, "replication factor 5"),
    ],
)
def test_changed_replication_factor_is_judged_as_a_gateway_judges_the_reassignment(
    rules: str, values: dict[str, str], denial: str | None, tmp_path: Path
) -> None:
    # given
    own = CurrentValue(value="2", origin="topic", is_own=True, inherited="1")
    factor = CurrentValue(value="3", origin="cluster", is_own=True)
    existing = Existing(
        values={"min.insync.replicas": own, "replication_factor": factor}, replicas=((1, 2, 3), (1, 2, 3))
    )
    # when
    outcomes = judged(tmp_path, rules, Declared(kind=Kind.TOPIC, name="orders", values=values), existing, Ownership())
    # then
    assert len(outcomes.errors) == (denial is not None)
    assert (denial or "") in "".join(map(str, outcomes.errors.values()))


CORRECTING = (
    "{name: safe, effect: override, replication_factor: {min: 2}, partitions: {min: 3},"
    " configs: {retention.ms: {max: 3d}}}"
)
REMOVING = (
    "{name: none, effect: override, configs: {retention.ms: {forbidden: true}}}\n"
    "  - {name: short, configs: {retention.ms: {max: 7d}}}"
)


def test_new_topic_that_the_defaults_of_the_cluster_suit_is_not_overridden(tmp_path: Path) -> None:
    # when
    plan = planned(tmp_path, CORRECTING, Declared(kind=Kind.TOPIC, name="orders"), FakeAdmin())
    # then
    assert (plan.failed, plan.corrected, [diff.changes for diff in plan.diffs]) == ({}, {}, [()])


def test_new_topic_in_an_offline_plan_is_overridden_where_the_defaults_of_kafka_break_rules(tmp_path: Path) -> None:
    # given
    (file := tmp_path / "rules.yaml").write_text(f"rules:\n  - {CORRECTING}\n")
    # when
    plan = check_offline([Declared(kind=Kind.TOPIC, name="orders")], RulesFile(file, "User:anna"))
    # then
    assert {change.key: change.new for change in plan.diffs[0].changes} == {
        "partitions": "3",
        "replication_factor": "2",
        "retention.ms": "259200000",
    }


@pytest.mark.parametrize(
    ("rules", "values", "denial"),
    [
        ("{name: safe, replication_factor: {min: 3}, partitions: {min: 12}}", {}, None),
        ("{name: safe, replication_factor: {min: 3}}", {"replication_factor": "2"}, "replication factor=2"),
        ("{name: safe, spare_replicas: {min: 1}}", {"replication_factor": "2"}, "min.insync.replicas 2"),
        (
            "{name: safe, spare_replicas: {min: 1}}",
            {"replication_factor": "2", "min.insync.replicas": "1"},
            None,
        ),
        ("{name: safe, partitions: {max: 3}}", {"replication_factor": "4"}, "only 3 brokers"),
    ],
)
def test_new_topic_is_judged_as_the_cluster_would_create_it(
    rules: str, values: dict[str, str], denial: str | None, tmp_path: Path
) -> None:
    # when
    plan = planned(tmp_path, rules, Declared(kind=Kind.TOPIC, name="orders", values=values), FakeAdmin())
    # then
    assert len(plan.failed) == (denial is not None)
    assert (denial or "") in "".join(plan.failed.values())


def test_rules_reject_new_topic_without_describe_configs_right(tmp_path: Path) -> None:
    # given
    admin = FakeAdmin(reports_configs=False)
    # when
    plan = planned(
        tmp_path, "{name: safe, configs: {retention.ms: {max: 7d}}}", Declared(kind=Kind.TOPIC, name="orders"), admin
    )
    # then
    assert "Grant DESCRIBE_CONFIGS on the topic" in plan.failed[ORDERS]


@pytest.mark.parametrize(
    ("hours", "denial"),
    [("2160", "retention.ms=7776000000 (the broker's default)"), (None, "Grant DESCRIBE_CONFIGS on the cluster")],
)
@pytest.mark.parametrize("values", [{}, {"retention.ms": "3600000"}], ids=["undeclared", "left out by an override"])
def test_new_topic_is_judged_by_the_configs_of_a_broker_and_not_of_the_controller(
    values: dict[str, str], hours: str | None, denial: str, tmp_path: Path
) -> None:
    # given
    declared = Declared(kind=Kind.TOPIC, name="orders", values=values)
    # when
    plan = planned(tmp_path, REMOVING, declared, FakeAdmin(hours=hours))
    # then
    assert denial in plan.failed[ORDERS]


@pytest.mark.parametrize(
    ("hours", "denial"),
    [("2160", "retention.ms=7776000000 (the broker's default)"), (None, "retention.ms that the topic inherits cannot")],
)
def test_override_that_removes_a_config_is_judged_by_the_hours_of_the_broker(
    hours: str | None, denial: str, tmp_path: Path
) -> None:
    # given
    audit = Declared(kind=Kind.TOPIC, name="audit", values={"retention.ms": "2000"})
    # when
    plan = planned(tmp_path, REMOVING, audit, FakeAdmin(hours=hours))
    # then
    assert denial in plan.failed[audit.key]


@pytest.mark.parametrize(
    ("hours", "denial"),
    [("2160", "retention.ms=7776000000 (the broker's default)"), (None, "retention.ms that the topic inherits cannot")],
)
def test_removed_config_is_judged_by_the_hours_of_the_broker(hours: str | None, denial: str, tmp_path: Path) -> None:
    """Kafka does not describe them beside a value in milliseconds of the topic."""
    # given
    admin = FakeAdmin(hours=hours)
    audit = Declared(kind=Kind.TOPIC, name="audit")
    # when
    plan = planned(
        tmp_path, "{name: short, configs: {retention.ms: {max: 7d}}}", audit, admin, Ownership(prune_keys=True)
    )
    # then
    assert denial in plan.failed[audit.key]


@pytest.mark.parametrize(
    ("rule", "key", "inherited", "denial"),
    [
        ("message.max.bytes: {max: 2000000}", "message.max.bytes", "1048588", None),
        ("message.max.bytes: {max: 1000000}", "message.max.bytes", "1048588", "message.max.bytes=1048588"),
        ("message.max.bytes: {max: 2000000}", "message.max.bytes", None, "(not set)"),
    ],
    ids=["allowed", "denied", "hidden"],
)
def test_removed_config_of_broker_is_judged_by_inherited_value(
    rule: str, key: str, inherited: str | None, denial: str | None, tmp_path: Path
) -> None:
    # given
    broker = Declared(kind=Kind.BROKER, name="1")
    own = CurrentValue(value="5", origin="broker", is_own=True, inherited=inherited)
    # when
    outcomes = judged(
        tmp_path,
        f"{{name: small, broker_configs: {{{rule}}}}}",
        broker,
        Existing(values={key: own}),
        Ownership(prune_keys=True),
    )
    # then
    assert len(outcomes.errors) == (denial is not None)
    assert (denial or "") in "".join(map(str, outcomes.errors.values()))
