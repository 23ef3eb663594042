"""What a flow has to do on its target: pure functions from what is and what should be to operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from klamm.mirror.filters import source_defaults_wanted
from klamm.mirror.model import NewRemoteTopic, OperationType, TopicConfigOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from klamm.mirror.filters import ConfigPropertyFilter, TopicSelection
    from klamm.mirror.model import TopicConfigEntry, TopicSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """What topics need on the target, by remote name."""

    create: tuple[str, ...]
    """Source names of topics whose remote topic is missing."""
    grow: Mapping[str, int]
    """Remote topics with fewer partitions than their source, and the number to reach."""


def selected_topics(source: Mapping[str, TopicSummary], selection: TopicSelection) -> tuple[TopicSummary, ...]:
    """Return the source topics that a flow mirrors, by name."""
    return tuple(source[name] for name in sorted(source) if selection.includes(name))


def plan_topics(
    selected: Iterable[TopicSummary],
    target: Mapping[str, TopicSummary],
    remote_topic: Callable[[str], str],
) -> TopicPlan:
    """Compare source topics with the target's.

    A topic that lost partitions or went away on the source changes nothing on the target.
    """
    create = []
    grow = {}
    for topic in selected:
        remote = target.get(remote_topic(topic.name))
        if remote is None:
            create.append(topic.name)
        elif remote.partition_count < topic.partition_count:
            grow[remote.name] = topic.partition_count
    return TopicPlan(create=tuple(create), grow=grow)


def plan_new_topic(
    topic: TopicSummary,
    entries: Iterable[TopicConfigEntry],
    *,
    remote_name: str,
    replication_factor: int,
    config_filter: ConfigPropertyFilter,
) -> NewRemoteTopic:
    """Describe the remote topic of a source topic, with its final configs before any record arrives."""
    return NewRemoteTopic(
        name=remote_name,
        partition_count=topic.partition_count,
        replication_factor=replication_factor,
        configs=complete_configs(entries, config_filter),
    )


def complete_configs(entries: Iterable[TopicConfigEntry], config_filter: ConfigPropertyFilter) -> dict[str, str]:
    """Return the complete set that AlterConfigs (replace-all) and CreateTopics send.

    Configs that are defaults on the source are left out unless source defaults are wanted; so are excluded,
    read-only and sensitive ones. AlterConfigs then resets everything that is not in the set.
    """
    return {
        entry.name: entry.value
        for entry in _syncable(entries, config_filter)
        if entry.value is not None and (not entry.is_default or source_defaults_wanted(config_filter, entry.name))
    }


def plan_config_operations(
    entries: Iterable[TopicConfigEntry],
    config_filter: ConfigPropertyFilter,
    *,
    target: Iterable[TopicConfigEntry] | None = None,
) -> tuple[TopicConfigOperation, ...]:
    """Return the operations of one topic for IncrementalAlterConfigs.

    Args:
        entries: the source topic's configs.
        config_filter: excluded configs get no operation at all, whoever's defaults count.
        target: the remote topic's configs; with them only operations that change something are returned.
            None means: not known (describing is denied), so everything is sent, as MirrorMaker 2 does.
    """
    planned = (_operation(entry, config_filter) for entry in _syncable(entries, config_filter))
    if target is None:
        return tuple(planned)
    own = {entry.name: entry.value for entry in target if not entry.is_default}
    return tuple(_with_old_value(operation, own) for operation in planned if _changes(operation, own))


def plan_replacement(
    entries: Iterable[TopicConfigEntry], config_filter: ConfigPropertyFilter, *, target: Iterable[TopicConfigEntry]
) -> tuple[TopicConfigOperation, ...]:
    """Return what AlterConfigs changes on a remote topic: it also resets what the complete set does not hold.

    Args:
        entries: the source topic's configs.
        config_filter: excluded configs are not in the set, so they are reset as well.
        target: the remote topic's configs.
    """
    kept = [entry for entry in entries if entry.name in complete_configs([entry], config_filter)]
    own = {entry.name: entry.value for entry in target if not entry.is_default}
    written = (_with_old_value(_operation(entry, config_filter), own) for entry in kept)
    reset = (
        _with_old_value(_delete(name, "not in the complete set, which AlterConfigs writes"), own)
        for name in sorted(own.keys() - {entry.name for entry in kept})
    )
    return (*(operation for operation in written if _changes(operation, own)), *reset)


def _syncable(entries: Iterable[TopicConfigEntry], config_filter: ConfigPropertyFilter) -> Iterable[TopicConfigEntry]:
    for entry in entries:
        hidden = entry.read_only or entry.is_sensitive
        if not hidden and config_filter.should_replicate_config_property(entry.name):
            yield entry


def _operation(entry: TopicConfigEntry, config_filter: ConfigPropertyFilter) -> TopicConfigOperation:
    if not entry.is_default:
        rule = "set on the source topic"
    elif source_defaults_wanted(config_filter, entry.name):
        rule = "default of the source (use.defaults.from=source)"
    else:
        return _delete(entry.name, "not set on the source topic (use.defaults.from=target)")
    if entry.value is None:
        return _delete(entry.name, f"{rule}, without a value")
    return TopicConfigOperation(name=entry.name, operation=OperationType.SET, value=entry.value, rule=rule)


def _delete(name: str, rule: str) -> TopicConfigOperation:
    return TopicConfigOperation(name=name, operation=OperationType.DELETE, value=None, rule=rule)


def _changes(operation: TopicConfigOperation, own: Mapping[str, str | None]) -> bool:
    if operation.operation is OperationType.DELETE:
        return operation.name in own
    return operation.name not in own or own[operation.name] != operation.value


def _with_old_value(operation: TopicConfigOperation, own: Mapping[str, str | None]) -> TopicConfigOperation:
    return TopicConfigOperation(
        name=operation.name,
        operation=operation.operation,
        value=operation.value,
        old_value=own.get(operation.name),
        rule=operation.rule,
    )
