"""Pure functions that compute the operations a flow needs on its target from the state of both clusters.

Rules for one config of a source topic. "Set" means set on the topic itself; everything else is a default, including
broker-level values.

===================================  ============================  =================================================
config on the source                 IncrementalAlterConfigs       complete set (CreateTopics, AlterConfigs)
===================================  ============================  =================================================
excluded, read-only or sensitive     no operation                  left out
set                                  SET                           included
default, use.defaults.from=source    SET                           included
default, use.defaults.from=target    DELETE                        left out
without a value                      DELETE                        left out
===================================  ============================  =================================================

AlterConfigs resets every config that is left out of the complete set.
"""

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
    """Changes that the topics of a flow need on the target."""

    create: tuple[str, ...]
    """Source names of the topics whose remote topic is missing."""
    grow: Mapping[str, int]
    """New partition counts by remote topic, for remote topics with fewer partitions than their source topic."""


def selected_topics(source: Mapping[str, TopicSummary], selection: TopicSelection) -> tuple[TopicSummary, ...]:
    """Return the source topics that a flow mirrors, sorted by name."""
    return tuple(source[name] for name in sorted(source) if selection.includes(name))


def plan_topics(
    selected: Iterable[TopicSummary],
    target: Mapping[str, TopicSummary],
    remote_topic: Callable[[str], str],
) -> TopicPlan:
    """Compare the selected source topics with the topics of the target.

    Nothing is ever deleted: if a topic was deleted on the source, or created again with fewer partitions, its
    remote topic does not change.
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
    """Return the remote topic to create for a source topic.

    It includes the configs, so that they are in effect before the first record arrives.
    """
    return NewRemoteTopic(
        name=remote_name,
        partition_count=topic.partition_count,
        replication_factor=replication_factor,
        configs=complete_configs(entries, config_filter),
    )


def complete_configs(entries: Iterable[TopicConfigEntry], config_filter: ConfigPropertyFilter) -> dict[str, str]:
    """Return the complete set of configs that AlterConfigs (which replaces all) and CreateTopics send.

    Excluded, read-only and sensitive configs are left out. So are defaults of the source, unless source defaults
    are wanted. AlterConfigs resets everything that is not in the set.
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
    """Return the IncrementalAlterConfigs operations for one topic.

    Args:
        entries: Configs of the source topic.
        config_filter: Filter for configs. Excluded configs get no operation, with either value of
            ``use.defaults.from``.
        target: Configs of the remote topic. Only operations that change one of them are returned. None means that
            they cannot be described: all operations are returned, as in MirrorMaker 2.
    """
    planned = (_operation(entry, config_filter) for entry in _syncable(entries, config_filter))
    if target is None:
        return tuple(planned)
    own = {entry.name: entry.value for entry in target if not entry.is_default}
    return tuple(_with_old_value(operation, own) for operation in planned if _changes(operation, own))


def plan_replacement(
    entries: Iterable[TopicConfigEntry], config_filter: ConfigPropertyFilter, *, target: Iterable[TopicConfigEntry]
) -> tuple[TopicConfigOperation, ...]:
    """Return the changes that AlterConfigs makes on a remote topic, including the configs that it resets.

    Args:
        entries: Configs of the source topic.
        config_filter: Filter for configs. Excluded configs are not in the complete set, so they are reset.
        target: Configs of the remote topic.
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
