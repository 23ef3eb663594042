"""Cluster access of ``plan`` and ``apply``: reading the present topics and sending the differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from klamm.admin import (
    AlterConfigOp,
    AlterConfigsOptions,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OpType,
    ResourceType,
    TopicPartition,
)
from klamm.cli.configs.plan_diff import CurrentConfig, CurrentTopic, Mark
from klamm.cli.connection import explain
from klamm.cli.topics.actions import reassignments
from klamm.protocol.errors import KafkaApiError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from klamm.admin import AdminClient, PerKeyResult, PolicyOverride, TopicDescription
    from klamm.cli.configs.plan_diff import TopicDiff
    from klamm.cli.topics.actions import Reassignments
    from klamm.kafka_client.pool.outcome import Outcome

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOutcomes:
    """PlanOutcomes of requests about topics, by name."""

    refused: Mapping[str, BaseException]
    overrides: Mapping[str, PolicyOverride]
    """What a policy of klamm stores in place of requested values."""


def current_topics(admin: AdminClient, names: Iterable[str]) -> dict[str, CurrentTopic]:
    """Return the topics that exist in the cluster. One that the principal may not describe has a ``problem``."""
    everything = admin.list_topics(include_internal=True).result()
    existing = [name for name in names if name in everything]
    topics = admin.describe_topics(existing).values()
    resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in existing}
    configs = admin.describe_configs(list(resources.values()), include_synonyms=True).values()
    described = [topic.result() for topic in topics.values() if topic.exception() is None]
    moving = reassignments(admin, described)
    return {name: _current_topic(topics[name], configs[resources[name]], moving) for name in existing}


def _current_topic(
    topic: Outcome[TopicDescription], configs: Outcome[Mapping[str, ConfigEntry]], moving: Reassignments | None
) -> CurrentTopic:
    try:
        entries, description = configs.result(), topic.result()
    except KafkaApiError as error:
        reason = explain(error)
        return CurrentTopic(partitions=0, replication_factor=0, configs={}, problem=f"cannot be described: {reason}")
    partitions = description.partitions
    first = (moving or {}).get(TopicPartition(description.name, partitions[0].partition))
    return CurrentTopic(
        partitions=len(partitions),
        replication_factor=len(partitions[0].replicas) - (0 if first is None else len(first.removing_replicas)),
        configs={entry.name: _current(entry) for entry in entries.values()},
        is_moving=moving is None or any(partition.topic == description.name for partition in moving),
    )


def _current(entry: ConfigEntry) -> CurrentConfig:
    inherited = [synonym for synonym in entry.synonyms if synonym.source is not ConfigSource.DYNAMIC_TOPIC_CONFIG]
    return CurrentConfig(
        value=entry.value,
        origin=entry.source.origin,
        is_own=entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG,
        inherited=inherited[0].value if inherited else None,
        inherited_origin=inherited[0].source.origin if inherited else "default",
    )


def carry_out(admin: AdminClient, plans: Sequence[TopicDiff], *, validate_only: bool) -> PlanOutcomes:
    """Send the differences, or only validate them.

    If adding partitions to a topic fails, its configs are left unchanged. The failure of one topic does not stop the
    others.
    """
    sound = [plan for plan in plans if not plan.problems]
    refused: dict[str, BaseException] = {}
    overrides: dict[str, PolicyOverride | None] = {}
    if new := [_new_topic(plan) for plan in sound if not plan.exists]:
        created, refused = _outcomes(admin.create_topics(new, validate_only=validate_only))
        overrides = {name: topic.override for name, topic in created.items()}
    growing = {
        plan.topic.name: NewPartitions(total_count=plan.topic.partitions)
        for plan in sound
        if plan.is_to_grow and plan.topic.partitions is not None
    }
    if growing:
        refused |= _outcomes(admin.create_partitions(growing, validate_only=validate_only))[1]
    alterations = {
        ConfigResource(ResourceType.TOPIC, plan.topic.name): _operations(plan)
        for plan in sound
        if plan.exists and plan.config_changes and plan.topic.name not in refused
    }
    if alterations:
        options = AlterConfigsOptions(validate_only=validate_only)
        altered, not_altered = _outcomes(admin.incremental_alter_configs(alterations, options))
        refused |= {resource.name: error for resource, error in not_altered.items()}
        overrides |= {resource.name: override for resource, override in altered.items()}
    changed = {name: override for name, override in overrides.items() if override is not None}
    return PlanOutcomes(refused=refused, overrides=changed)


def _outcomes(result: PerKeyResult[Key, Value]) -> tuple[dict[Key, Value], dict[Key, BaseException]]:
    """Return the values of the keys that succeeded, and the errors of the others."""
    errors = {key: error for key, future in result.values().items() if (error := future.exception()) is not None}
    return {key: future.result() for key, future in result.values().items() if key not in errors}, errors


def _new_topic(plan: TopicDiff) -> NewTopic:
    return NewTopic(
        name=plan.topic.name,
        num_partitions=plan.topic.partitions or -1,
        replication_factor=plan.topic.replication_factor or -1,
        configs=dict(plan.topic.configs),
    )


def _operations(plan: TopicDiff) -> list[AlterConfigOp]:
    return [
        AlterConfigOp(ConfigEntry(change.key, None), OpType.DELETE)
        if change.mark is Mark.REMOVE
        else AlterConfigOp(ConfigEntry(change.key, change.new), OpType.SET)
        for change in plan.config_changes
    ]
