"""Cluster access of ``plan`` and ``apply``: reading the present topics and sending the differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

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
)
from klamm.cli.configs.plan_diff import CurrentConfig, CurrentTopic, Mark

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from klamm.admin import AdminClient, PerKeyResult
    from klamm.cli.configs.plan_diff import TopicDiff
    from klamm.cli.configs.plan_file import DeclaredTopic

Key = TypeVar("Key")


def current_topics(admin: AdminClient, declared: Iterable[DeclaredTopic]) -> dict[str, CurrentTopic]:
    """Return the declared topics that exist in the cluster."""
    everything = admin.list_topics(include_internal=True).result()
    names = [topic.name for topic in declared if topic.name in everything]
    described = admin.describe_topics(names).all().result()
    resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in names}
    configs = admin.describe_configs(list(resources.values()), include_synonyms=True).all().result()
    return {
        name: CurrentTopic(
            partitions=len(described[name].partitions),
            replication_factor=len(described[name].partitions[0].replicas),
            configs={entry.name: _current(entry) for entry in configs[resources[name]].values()},
        )
        for name in names
    }


def _current(entry: ConfigEntry) -> CurrentConfig:
    inherited = [synonym for synonym in entry.synonyms if synonym.source is not ConfigSource.DYNAMIC_TOPIC_CONFIG]
    return CurrentConfig(
        value=entry.value,
        origin=entry.source.origin,
        is_own=entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG,
        inherited=inherited[0].value if inherited else None,
        inherited_origin=inherited[0].source.origin if inherited else "default",
    )


def carry_out(admin: AdminClient, plans: Sequence[TopicDiff], *, validate_only: bool) -> dict[str, BaseException]:
    """Send the differences, or only validate them, and return the errors by topic.

    If adding partitions to a topic fails, its configs are left unchanged. The failure of one topic does not stop the
    others.
    """
    sound = [plan for plan in plans if not plan.problems]
    refused: dict[str, BaseException] = {}
    if new := [_new_topic(plan) for plan in sound if not plan.exists]:
        refused |= _refusals(admin.create_topics(new, validate_only=validate_only))
    growing = {
        plan.topic.name: NewPartitions(total_count=plan.topic.partitions)
        for plan in sound
        if plan.is_to_grow and plan.topic.partitions is not None
    }
    if growing:
        refused |= _refusals(admin.create_partitions(growing, validate_only=validate_only))
    alterations = {
        ConfigResource(ResourceType.TOPIC, plan.topic.name): _operations(plan)
        for plan in sound
        if plan.exists and plan.config_changes and plan.topic.name not in refused
    }
    if alterations:
        altered = admin.incremental_alter_configs(alterations, AlterConfigsOptions(validate_only=validate_only))
        refused |= {resource.name: error for resource, error in _refusals(altered).items()}
    return refused


def _refusals(result: PerKeyResult[Key, Any]) -> dict[Key, BaseException]:
    return {key: error for key, future in result.values().items() if (error := future.exception()) is not None}


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
