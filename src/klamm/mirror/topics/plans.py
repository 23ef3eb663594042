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

Drift is computed by the same rules (``config_differences``). Each config of the source topic falls under the first
matching rule:

============================================================  ========  ===============================================
config                                                        listed    drift
============================================================  ========  ===============================================
read-only or sensitive                                        no
the next sync changes it                                      yes       yes, with the rule above
same value on both sides                                      no
default of the source, not known to the target                no
excluded by ``config.properties.exclude``                     yes       no: meant to differ
set on the source, not known to the target                    yes       no: it cannot be synced
any other difference                                          yes       no: the target's default applies
                                                                        (``use.defaults.from=target``)
============================================================  ========  ===============================================

A config that is set on the source is drift if the remote topic only has the same value by default: the sync sets it
there. With AlterConfigs, an excluded config that is set on the remote topic is drift, because the sync resets it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.admin import ConfigSource, NewTopic, OpType
from klamm.lazy_dataclass import dataclass
from klamm.mirror.cluster_admin import TopicConfigOperation
from klamm.mirror.filters import source_defaults_wanted
from klamm.mirror.naming import is_heartbeats_topic
from klamm.mirror.progress.flow_progress import ConfigDifference, FlowFailedError
from klamm.mirror.records.requested_states import RequestedState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from klamm.admin import ConfigEntry
    from klamm.mirror.filters import ConfigPropertyFilter, TopicSelection
    from klamm.mirror.records.requested_states import RequestedStates
    from klamm.mirror.settings.flow import FlowSettings

_MAX_NAMES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """Changes that the topics of a flow need on the target."""

    create: tuple[str, ...]
    """Source names of the topics whose remote topic is missing."""
    grow: Mapping[str, int]
    """New partition counts by remote topic, for remote topics with fewer partitions than their source topic."""


def is_default(entry: ConfigEntry) -> bool:
    """Return whether the value is a default, not set on the topic itself (KIP-894)."""
    return entry.source is not ConfigSource.DYNAMIC_TOPIC_CONFIG


def selected_topics(source: Mapping[str, int], selection: TopicSelection) -> dict[str, int]:
    """Return the source topics that a flow mirrors with their partition counts, sorted by name."""
    return {name: source[name] for name in sorted(source) if selection.includes(name)}


def unselected_topics(
    flow: FlowSettings, target: Collection[str], states: RequestedStates, kept: Iterable[str]
) -> dict[str, str]:
    """Return the remote topics that stay as they are because the flow no longer selects their topics, with this reason.

    Args:
        flow: Settings of the flow.
        target: Topics of the target.
        states: Requested states: klamm was to take DEMOTED topics back, before they were no longer selected.
        kept: Source topics whose remote topics klamm leads without mirroring them.
    """
    demoted = [topic for topic, own in states.topics.items() if own is RequestedState.DEMOTED]
    return {
        flow.remote_topic(topic): f"{topic} is not among topics: it is not mirrored. Select, promote or delete it"
        for topic in {*demoted, *kept}
        if not (flow.selection.includes(topic) or states.of(topic).is_promoted) and flow.remote_topic(topic) in target
    }


def _syncs_configs(flow: FlowSettings) -> bool:
    return flow.sync_topic_configs_enabled


def _syncs_group_offsets(flow: FlowSettings) -> bool:
    return flow.groups is not None and flow.groups.sync_enabled


_CONFLICTS: Final = (
    (_syncs_configs, "topic configs", "each sets those of its source again", "sync.topic.configs.enabled"),
    (
        _syncs_group_offsets,
        "offsets of groups",
        "a group that reads on both sources skips records",
        "sync.group.offsets.enabled",
    ),
)
"""Syncs that two flows must not both do to one topic: whether a flow does it, its object, the effect and the key."""


def conflicts(flow: FlowSettings, selected: Iterable[str]) -> list[str]:
    """Return warnings about flows that would undo this flow's changes of the remote topics that they share.

    Args:
        flow: Settings of the flow.
        selected: Selected topics of the source.
    """
    shared: dict[str, list[str]] = {}
    for topic in selected:
        for other in flow.flows_sharing(topic):
            shared.setdefault(other.name, []).append(topic)
    out = []
    for other in flow.flows_in_same_topics:
        if not (topics := sorted(shared.get(other.name, ()))):
            continue
        more = f" and {len(topics) - _MAX_NAMES} more" if len(topics) > _MAX_NAMES else ""
        names = ", ".join(topics[:_MAX_NAMES]) + more
        out += [
            f"{other.name} also selects {names}, and both flows sync {kind}: if cluster {other.source.alias} has such "
            f"a topic, {effect}. Expected {key}=true for one of the two flows, or different topics"
            for is_synced, kind, effect, key in _CONFLICTS
            if is_synced(flow) and is_synced(other)
        ]
    return out


def check_loops(flow: FlowSettings, shared: Collection[str]) -> None:
    """Check that a flow within one cluster does not mirror the topics that it writes.

    Args:
        flow: Settings of the flow.
        shared: Topics of the cluster that is both source and target. Empty: there are two clusters.

    Raises:
        FlowFailedError: A topic would be copied to itself, or its copies would be copied again and again.
    """
    includes = flow.selection.includes
    for topic in sorted(shared):
        remote = flow.remote_topic(topic)
        if includes(topic) and includes(remote):
            again = "itself" if remote == topic else f"{remote}, which would be mirrored again"
            off = ", or set heartbeats.replication.enabled=false" if is_heartbeats_topic(flow.policy, topic) else ""
            raise FlowFailedError(
                f"clusters {flow.source.alias} and {flow.target.alias} are the same cluster: topic {topic} would be "
                f"copied to {again}, endlessly. Correct bootstrap.servers, or exclude the topic{off}"
            )


def doubled_aliases(flow: FlowSettings, topics: Iterable[str]) -> list[str]:
    """Return the topics that already have the alias of their own cluster, so remote topics have it twice."""
    source = flow.source_alias
    return [
        topic for topic in topics if flow.policy.topic_source(topic) == source and flow.remote_topic(topic) != topic
    ]


def plan_topics(
    selected: Mapping[str, int], target: Mapping[str, int], remote_topic: Callable[[str], str]
) -> TopicPlan:
    """Compare the selected source topics with the topics of the target, both by name with their partition counts.

    Nothing is deleted here (see ``deletions``): if a topic was deleted on the source, or created again with fewer
    partitions, its remote topic does not change.
    """
    create = []
    grow = {}
    for name, count in selected.items():
        remote = remote_topic(name)
        if remote not in target:
            create.append(name)
        elif target[remote] < count:
            grow[remote] = count
    return TopicPlan(create=tuple(create), grow=grow)


def plan_new_topic(
    remote_name: str,
    partition_count: int,
    entries: Iterable[ConfigEntry],
    *,
    replication_factor: int,
    config_filter: ConfigPropertyFilter,
) -> NewTopic:
    """Return the remote topic to create for a source topic with these configs.

    It includes the configs, so that they are in effect before the first record arrives.
    """
    return NewTopic(
        name=remote_name,
        num_partitions=partition_count,
        replication_factor=replication_factor,
        configs=complete_configs(entries, config_filter),
    )


def complete_configs(entries: Iterable[ConfigEntry], config_filter: ConfigPropertyFilter) -> dict[str, str]:
    """Return the complete set of configs that AlterConfigs (which replaces all) and CreateTopics send.

    Excluded, read-only and sensitive configs are left out. So are defaults of the source, unless source defaults
    are wanted. AlterConfigs resets everything that is not in the set.
    """
    return {
        entry.name: entry.value
        for entry in _syncable(entries, config_filter)
        if entry.value is not None and (not is_default(entry) or source_defaults_wanted(config_filter, entry.name))
    }


def plan_config_operations(
    entries: Iterable[ConfigEntry],
    config_filter: ConfigPropertyFilter,
    *,
    target: Iterable[ConfigEntry] | None = None,
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
    own = {entry.name: entry.value for entry in target if not is_default(entry)}
    return tuple(_with_old_value(operation, own) for operation in planned if _changes(operation, own))


def plan_replacement(
    entries: Iterable[ConfigEntry], config_filter: ConfigPropertyFilter, *, target: Iterable[ConfigEntry]
) -> tuple[TopicConfigOperation, ...]:
    """Return the changes that AlterConfigs makes on a remote topic, including the configs that it resets.

    Args:
        entries: Configs of the source topic.
        config_filter: Filter for configs. Excluded configs are not in the complete set, so they are reset.
        target: Configs of the remote topic.
    """
    kept = [entry for entry in entries if entry.name in complete_configs([entry], config_filter)]
    own = {entry.name: entry.value for entry in target if not is_default(entry)}
    written = (_with_old_value(_operation(entry, config_filter), own) for entry in kept)
    reset = (
        _with_old_value(_delete(name, "not in the complete set, which AlterConfigs writes"), own)
        for name in sorted(own.keys() - {entry.name for entry in kept})
    )
    return (*(operation for operation in written if _changes(operation, own)), *reset)


def _syncable(entries: Iterable[ConfigEntry], config_filter: ConfigPropertyFilter) -> Iterable[ConfigEntry]:
    for entry in entries:
        hidden = entry.is_read_only or entry.is_sensitive
        if not hidden and config_filter.should_replicate_config_property(entry.name):
            yield entry


def _operation(entry: ConfigEntry, config_filter: ConfigPropertyFilter) -> TopicConfigOperation:
    if not is_default(entry):
        rule = "set on the source topic"
    elif source_defaults_wanted(config_filter, entry.name):
        rule = "default of the source (use.defaults.from=source)"
    else:
        return _delete(entry.name, "not set on the source topic (use.defaults.from=target)")
    if entry.value is None:
        return _delete(entry.name, f"{rule}, without a value")
    return TopicConfigOperation(name=entry.name, operation=OpType.SET, value=entry.value, rule=rule)


def _delete(name: str, rule: str) -> TopicConfigOperation:
    return TopicConfigOperation(name=name, operation=OpType.DELETE, value=None, rule=rule)


def _changes(operation: TopicConfigOperation, own: Mapping[str, str | None]) -> bool:
    if operation.operation is OpType.DELETE:
        return operation.name in own
    return operation.name not in own or not _same_value(own[operation.name], operation.value)


def _same_value(one: str | None, other: str | None) -> bool:
    """Return whether two values are equal apart from blanks around list elements, which klamm's broker removes."""
    return _without_blanks(one) == _without_blanks(other)


def _without_blanks(value: str | None) -> list[str] | None:
    return None if value is None else [part.strip() for part in value.split(",")]


def _with_old_value(operation: TopicConfigOperation, own: Mapping[str, str | None]) -> TopicConfigOperation:
    return TopicConfigOperation(
        name=operation.name,
        operation=operation.operation,
        value=operation.value,
        old_value=own.get(operation.name),
        rule=operation.rule,
    )


EXCLUDED = "excluded (config.properties.exclude)"
TARGET_DEFAULT = "default of the target (use.defaults.from=target)"
SOURCE_ONLY = "not known to the target"


def config_differences(
    remote_topic: str,
    source: Iterable[ConfigEntry],
    target: Iterable[ConfigEntry],
    config_filter: ConfigPropertyFilter,
    *,
    replaces: bool = False,
) -> tuple[ConfigDifference, ...]:
    """Compare a source topic with its remote topic, in the order of the source's configs.

    Args:
        remote_topic: Name of the remote topic.
        source: Configs of the source topic.
        target: Configs of the remote topic.
        config_filter: Filter of the configs that are synced.
        replaces: Whether the sync uses AlterConfigs, which resets all configs that are not in the complete set.
    """
    source, there = tuple(source), {entry.name: entry for entry in target}
    plan = plan_replacement if replaces else plan_config_operations
    planned = {
        operation.name: operation.rule for operation in plan(source, config_filter, target=tuple(there.values()))
    }
    out = []
    for entry in source:
        if entry.is_sensitive or entry.is_read_only:
            continue
        other = there.get(entry.name)
        if entry.name in planned or _differs(entry, other):
            out.append(_difference(remote_topic, entry, other, planned, config_filter))
    return tuple(out)


def _differs(entry: ConfigEntry, other: ConfigEntry | None) -> bool:
    if other is None:
        return not is_default(entry)
    return not _same_value(entry.value, other.value)


def _difference(
    remote_topic: str,
    entry: ConfigEntry,
    other: ConfigEntry | None,
    planned: Mapping[str, str],
    config_filter: ConfigPropertyFilter,
) -> ConfigDifference:
    """Return the difference of one config."""
    return ConfigDifference(
        topic=remote_topic,
        name=entry.name,
        source_value=entry.value,
        source_is_default=is_default(entry),
        target_value=None if other is None else other.value,
        target_is_default=other is None or is_default(other),
        rule=_rule(entry, other, planned, config_filter),
        is_drift=other is not None and entry.name in planned,
    )


def _rule(
    entry: ConfigEntry,
    other: ConfigEntry | None,
    planned: Mapping[str, str],
    config_filter: ConfigPropertyFilter,
) -> str:
    if other is not None and entry.name in planned:
        return planned[entry.name]
    if not config_filter.should_replicate_config_property(entry.name):
        return EXCLUDED
    return SOURCE_ONLY if other is None else TARGET_DEFAULT
