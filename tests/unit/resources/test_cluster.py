"""Reading of the resources that a plan compares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from klamm.admin import (
    ConfigEntry,
    ConfigSource,
    DescribeConfigsResult,
    DescribeTopicsResult,
    PartitionDescription,
    PartitionReassignment,
    ResourceType,
    TopicDescription,
    TopicPartition,
)
from klamm.admin.types import ConfigSynonym
from klamm.kafka_client.pool.calls import Outcome
from klamm.protocol.errors import ClusterAuthorizationError, TopicAuthorizationError
from klamm.protocol.primitives import ZERO_UUID
from klamm.resources.cluster import observe
from klamm.resources.model import Existing, Kind, ResourceKey

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from klamm.admin import AdminClient, ConfigResource


_OWN = ConfigSource.DYNAMIC_BROKER_CONFIG
BROKER_CONFIGS = {
    "log.retention.ms": ConfigEntry(
        "log.retention.ms",
        "86400000",
        source=_OWN,
        synonyms=(
            ConfigSynonym("log.retention.ms", "86400000", _OWN),
            ConfigSynonym("log.retention.hours", "72", ConfigSource.STATIC_BROKER_CONFIG),
        ),
    )
}


class FakeAdmin:
    """Cluster with the topics ``open``, ``hidden`` (without DESCRIBE_CONFIGS) and ``moving`` (from broker 1 to 2)."""

    def __init__(self, *, shows_reassignments: bool) -> None:
        self._shows_reassignments = shows_reassignments

    def list_topics(self, *, include_internal: bool) -> Outcome[Mapping[str, None]]:
        assert include_internal
        return done(dict.fromkeys(("open", "hidden", "moving")))

    def describe_topics(self, names: Collection[str]) -> DescribeTopicsResult:
        result = DescribeTopicsResult(names)
        for name in names:
            partition = PartitionDescription(
                partition=0, leader=1, leader_epoch=0, replicas=(2, 1) if name == "moving" else (1,), isr=(1,)
            )
            result.succeed(
                name, TopicDescription(name=name, topic_id=ZERO_UUID, is_internal=False, partitions=(partition,))
            )
        return result

    def describe_configs(self, resources: Collection[ConfigResource], **_: Any) -> DescribeConfigsResult:
        result = DescribeConfigsResult(resources)
        for resource in resources:
            if resource.name == "hidden":
                result.fail(resource, TopicAuthorizationError("no right"))
            entries = {"flush.ms": ConfigEntry("flush.ms", "1")}
            result.succeed(resource, BROKER_CONFIGS if resource.type is ResourceType.BROKER else entries)
        return result

    def list_partition_reassignments(self, _: object) -> Outcome[Mapping[TopicPartition, PartitionReassignment]]:
        if not self._shows_reassignments:
            raise ClusterAuthorizationError("no right")
        moving = PartitionReassignment(replicas=(2, 1), adding_replicas=(2,), removing_replicas=(1,))
        return done({TopicPartition("moving", 0): moving})


def done(value: Any) -> Outcome[Any]:
    outcome: Outcome[Any] = Outcome()
    outcome.set_result(value)
    return outcome


def topics_of(admin: FakeAdmin, *names: str) -> dict[str, Existing]:
    wanted = {ResourceKey(Kind.TOPIC, name): ["flush.ms"] for name in names}
    return {key.name: existing for key, existing in observe(cast("AdminClient", admin), wanted).resources.items()}


def test_topic_without_describe_configs_right_is_a_problem() -> None:
    topics = topics_of(FakeAdmin(shows_reassignments=False), "open", "hidden", "new")
    assert {name: topic.problem for name, topic in topics.items()} == {
        "open": None,
        "hidden": "cannot be described: no right",
    }
    assert topics["open"].is_moving, "the principal may not see whether it is"


def test_reassigned_topic_has_the_replication_factor_after_it() -> None:
    topics = topics_of(FakeAdmin(shows_reassignments=True), "open", "moving")
    shown = {name: (topic.values["replication_factor"].value, topic.is_moving) for name, topic in topics.items()}
    assert shown == {"open": ("1", False), "moving": ("1", True)}


def test_inherited_value_of_a_broker_is_in_the_unit_of_its_config() -> None:
    key = ResourceKey(Kind.BROKER, "1")
    admin = cast("AdminClient", FakeAdmin(shows_reassignments=True))
    value = observe(admin, {key: ["log.retention.ms"]}).resources[key].values["log.retention.ms"]
    assert (value.inherited, value.inherited_origin) == ("259200000", "server.properties")
