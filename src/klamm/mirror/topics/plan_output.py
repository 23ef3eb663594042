"""Output of ``klamm mirror --plan``: the changes that the next round would make, without making them."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from klamm.admin import KafkaApiError, OpType, PolicyOverride
from klamm.configs.durations import with_duration
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_text
from klamm.mirror.cluster_admin import (
    admin_client,
    alter_topic_configs,
    check_reachable,
    create_partitions,
    internal_topic,
    missing_topics,
    partition_counts,
    shared_topics,
    topic_configs,
    validate_topics,
)
from klamm.mirror.filters import DEFAULT_TOPICS, DefaultTopicFilter
from klamm.mirror.naming import HEARTBEATS_TOPIC
from klamm.mirror.progress.flow_progress import FlowFailedError
from klamm.mirror.records.requested_states import RequestedState, RequestedStates
from klamm.mirror.records.worker_offsets import first_cluster, mirrored_topics
from klamm.mirror.settings.definitions import (
    OFFSETS_BY,
    REPLICA_EXPERIMENTAL,
    REPLICA_LISTENERS,
    REPLICA_NODE_ID,
    TOPIC_DELETIONS,
    OffsetsBy,
    SyncsLocation,
    TopicDeletions,
)
from klamm.mirror.topics.config_sync import AclSync, ConfigSync, in_words, overridden
from klamm.mirror.topics.deletions import plan_deletions
from klamm.mirror.topics.plans import (
    check_loops,
    conflicts,
    doubled_aliases,
    plan_new_topic,
    plan_topics,
    selected_topics,
)
from klamm.policy.answers import PARTITIONS, REPLICATION_FACTOR
from klamm.protocol.errors import InvalidConfigError, TopicAlreadyExistsError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from klamm.admin import AdminClient, ConfigEntry, NewTopic
    from klamm.mirror.cluster_admin import TopicConfigOperation
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.settings.mirror import MirrorSettings

    Obstacles = Callable[[FlowSettings, Mapping[str, int], Mapping[str, Mapping[str, ConfigEntry]]], Mapping[str, str]]
    """Returns why offsets cannot be kept, by remote topic. Called with a flow, the partition counts of its source
    topics, and the configs of remote topics.
    """
    Requested = Callable[[FlowSettings], RequestedStates]
    """Returns the requested states of a flow, read from its offsets topic on the target."""

logger = logging.getLogger(__name__)

_OK: Final = 0
_FAILED: Final = 1
NO_CHANGE: Final = "!"
"""Prefix of a line for a difference that the mirror leaves unchanged or that a cluster would reject."""
_REJECTED: Final = "would be rejected: "


def no_obstacles(
    _flow: FlowSettings, _selected: Mapping[str, int], _configs: Mapping[str, Mapping[str, ConfigEntry]]
) -> dict[str, str]:
    """Return no obstacle."""
    return {}


def none_requested(_flow: FlowSettings) -> RequestedStates:
    """Return states that are all RUNNING."""
    return RequestedStates()


def print_plan(
    settings: MirrorSettings,
    out: TextIO,
    *,
    obstacles: Obstacles = no_obstacles,
    requested: Requested = none_requested,
) -> int:
    """Write the planned changes of each flow (``+`` new, ``~`` changed, ``-`` removed, ``!`` left out or rejected).

    Args:
        settings: Settings of the mirror.
        out: Output.
        obstacles: Check of the flows that keep offsets.
        requested: Reader of the states that operators requested.

    Returns:
        0, or 1 if a flow cannot be planned or a cluster would reject a change.
    """
    code = _OK
    for flow in settings.flows:
        source, target = admin_client(flow, "source"), admin_client(flow, "target")
        try:
            check_reachable(source, flow.source.alias)
            check_reachable(target, flow.target.alias)
            heartbeats_on = _heartbeats_on(settings, flow)
            lines = plan_flow(
                flow, source, target, heartbeats_on=heartbeats_on, obstacles=obstacles, requested=requested
            )
        except (*CLUSTER_ERRORS, FlowFailedError) as error:
            out.write(f"{flow.name}: cannot be planned: {error_text(error)}\n")
            code = _FAILED
        except Exception as error:  # for example from a user's own filter or replication policy
            logger.debug("%s cannot be planned", flow.name, exc_info=True)
            out.write(f"{flow.name}: cannot be planned: {type(error).__name__}: {error}\n")
            code = _FAILED
        else:
            changes = sum(not line.startswith(NO_CHANGE) for line in lines)
            out.write(f"{flow.name}: {changes} change{'s' * (changes != 1)}\n")
            if flow.preserves_offsets:
                out.write("".join(f"  {line}\n" for line in _equal_offsets(flow)))
            out.write("".join(f"  {line}\n" for line in lines))
            if any(line.startswith(NO_CHANGE) and _REJECTED in line for line in lines):
                code = _FAILED
        finally:
            source.close()
            target.close()
    return code


def _heartbeats_on(settings: MirrorSettings, flow: FlowSettings) -> dict[str, int]:
    """Return the replication factor of the heartbeats topic, by alias of each cluster where this flow plans it.

    If the mirror also has the flow in the opposite direction, that flow plans the topic of this flow's source.
    """
    written = {pair.target.alias: pair.replication_factor for pair in settings.heartbeats}
    is_both_ways = any((other.source, other.target) == (flow.target, flow.source) for other in settings.flows)
    here = {flow.target.alias} if is_both_ways else {flow.target.alias, flow.source.alias}
    return {alias: factor for alias, factor in written.items() if alias in here}


def plan_flow(
    flow: FlowSettings,
    source: AdminClient,
    target: AdminClient,
    *,
    heartbeats_on: Mapping[str, int] = MappingProxyType({}),
    obstacles: Obstacles = no_obstacles,
    requested: Requested = none_requested,
) -> list[str]:
    """Return one line for each change that a round of a flow would make, and for each that would be rejected.

    The clusters validate each change (``validate_only``) without making it.

    Args:
        flow: Settings of the flow.
        source: Admin client of the source cluster.
        target: Admin client of the target cluster.
        heartbeats_on: Replication factor of the heartbeats topic, by alias of each cluster where it is created if
            it is missing.
        obstacles: Check of flows that keep offsets.
        requested: Reader of the states that operators requested.

    Raises:
        ConnectionError, TimeoutError: A cluster is unavailable.
        FlowFailedError: The round would fail.
    """
    check_loops(flow, shared_topics(source, target))
    here, there = partition_counts(source), partition_counts(target)
    states = requested(flow) if flow.source_offsets_topic in there else RequestedStates()
    if states.flow is RequestedState.STOPPED:
        return [f"{NO_CHANGE} {flow.name}: STOPPED by klamm mirror stop: no topic changes before klamm mirror resume"]
    promoted = {topic for topic, state in states.topics.items() if state.is_promoted}
    unsynced = promoted.union(topic for topic, state in states.topics.items() if state is RequestedState.STOPPED)
    selected = selected_topics(here, flow.selection)
    mirrored = {name: count for name, count in selected.items() if name not in promoted}
    plan = plan_topics(mirrored, there, flow.remote_topic)
    described: dict[str, Mapping[str, ConfigEntry]] = {}
    denied = []
    for name, entries in topic_configs(source, mirrored).items():
        if isinstance(entries, KafkaApiError):
            denied.append(f"! topic {name}: cannot be described on cluster {flow.source.alias}: {error_text(entries)}")
        else:
            described[name] = entries
    checks = _Checks()
    sides = _Side(flow.source.alias, source, here), _Side(flow.target.alias, target, there)
    lines = _internal_topics(flow, sides, heartbeats_on, checks)
    new = {name: _new_topic(flow, name, mirrored[name], described[name]) for name in plan.create if name in described}
    checks.create(sides[1], list(new.values()), f"replication.factor={flow.replication_factor}")
    lines += [_new_line(topic) + _not_before_4_1(name) for name, topic in new.items()]
    if flow.replica is None:
        lines += [f"~ topic {name}: {there[name]} -> {count} partitions" for name, count in plan.grow.items()]
        checks.grow(flow.target.alias, target, plan.grow)
    if flow.sync_topic_configs_enabled:
        # Topics that would be created get their configs in CreateTopics.
        synced = {name: entries for name, entries in described.items() if name not in unsynced.union(plan.create)}
        lines += _configs(flow, ConfigSync(flow, source, target), synced, target, checks)
    lines += _deletions(flow, source, here, there, kept=promoted)
    if flow.sync_topic_acls_enabled:
        missing = AclSync(flow, source, target).missing(unsynced)
        lines += [f"+ topic {acl.resource_name}: ACL {in_words(acl)}: on the source topic" for acl in missing]
    alias = flow.source.alias
    doubled = [
        f"! topic {flow.remote_topic(name)}: topic {name} of cluster {alias} already has the alias {alias}: does "
        "another mirror use it for another cluster?"
        for name in doubled_aliases(flow, selected)
    ]
    lines += _offset_obstacles(flow, selected, target, there, obstacles)
    lines += [f"{NO_CHANGE} {conflict}" for conflict in conflicts(flow, selected)]
    return lines + doubled + denied + _filter_lines(flow, here, selected, there) + checks.overridden + checks.rejected


def _equal_offsets(flow: FlowSettings) -> list[str]:
    """Return lines that name the way in which offsets are kept, its reason, and the rights it needs on the target."""
    alias, prefix = flow.target.alias, flow.transactional_id_prefix
    if (broker := flow.replica) is not None:
        return [
            f"offsets are kept by a replica: klamm leads the remote partitions as broker {broker.node_id} of cluster "
            f"{alias}, and its other brokers fetch the batches of the source",
            f"reason: {OFFSETS_BY.key}={flow.offsets_by}: no other way is tried",
            f"rights on cluster {alias}: CLUSTER_ACTION, ALTER and DESCRIBE_CONFIGS on the cluster; CREATE and "
            "DESCRIBE on remote topics, and READ to promote them",
        ]
    is_auto = flow.offsets_by is OffsetsBy.AUTO
    why = "replica is experimental, so auto never chooses it" if is_auto else "no other way is tried"
    needed = ", ".join(setting.key for setting in (REPLICA_NODE_ID, REPLICA_LISTENERS))
    replica = (
        f"a replica would need {OFFSETS_BY.key}=replica, {REPLICA_EXPERIMENTAL.key}=true, {needed}, "
        f"{alias}.bootstrap.controllers, CLUSTER_ACTION on the cluster, and metadata.version 4.3 or more"
    )
    return [
        "offsets are kept by replay: records are produced at their source offsets, and gaps are filled with markers",
        f"reason: {OFFSETS_BY.key}={flow.offsets_by}: {why}",
        *([replica] if is_auto else []),
        f"rights on cluster {alias}: ALTER on the cluster; DESCRIBE and WRITE on transactional ids {prefix}-*; on "
        "remote topics also READ, and DELETE if the beginning of a source topic was purged",
    ]


def _offset_obstacles(
    flow: FlowSettings,
    selected: Mapping[str, int],
    target: AdminClient,
    there: Collection[str],
    obstacles: Obstacles,
) -> list[str]:
    """Return lines for what keeps records from getting their source offsets (``klamm.offsets=preserve``)."""
    if not flow.preserves_offsets:
        return []
    remote = [name for name in map(flow.remote_topic, selected) if name in there]
    configs = {
        name: entries
        for name, entries in topic_configs(target, remote).items()
        if not isinstance(entries, KafkaApiError)
    }
    return [
        f"{NO_CHANGE} {f'topic {name}' if name else flow.name}: keeping offsets {_REJECTED}{reason}"
        for name, reason in obstacles(flow, selected, configs).items()
    ]


def _deletions(
    flow: FlowSettings,
    source: AdminClient,
    here: Collection[str],
    there: Collection[str],
    *,
    kept: Collection[str],
) -> list[str]:
    """Return lines for the remote topics of deleted source topics (``klamm.sync.topic.deletions``)."""
    mode, grace_s = flow.deletions.mode, flow.deletions.grace.total_seconds()
    if mode is TopicDeletions.OFF or flow.source_offsets_topic not in there:
        return []
    cluster_id = source.describe_cluster().result().cluster_id or ""
    if (first := first_cluster(flow, cluster_id, stores=False)) != cluster_id:
        return [
            f"{NO_CHANGE} {flow.name}: no remote topic is deleted, because {flow.source.alias} is cluster {cluster_id} "
            f"and was {first} before"
        ]
    planned = plan_deletions(flow, mirrored_topics(flow).difference(kept), here, there)
    missing = missing_topics(source, planned)
    is_on = mode is TopicDeletions.ON
    start, verb = ("-", "deleted") if is_on else (NO_CHANGE, "would be deleted")
    remedy = "" if is_on else f" with {TOPIC_DELETIONS.key}=on"
    return [
        f"{start} topic {remote_topic}: {verb}{remedy}, {grace_s:g} s after the start of the mirror or later: "
        f"topic {topic} is gone on cluster {flow.source.alias}"
        for topic, remote_topic in planned.items()
        if topic in missing
    ]


def _not_before_4_1(topic: str) -> str:
    """Return a note for a topic that a MirrorMaker before Kafka 4.1 takes for an internal topic (KAFKA-17200)."""
    is_new = topic.endswith((".internal", "-internal"))
    return "; MirrorMaker before 4.1 does not mirror it" if is_new else ""


def _filter_lines(
    flow: FlowSettings, here: Collection[str], selected: Collection[str], there: Collection[str]
) -> list[str]:
    """Return lines for what the lists of topics probably should not do.

    These are elements of ``topics`` that select no topic, and topics that a MirrorMaker of Kafka 4.0 or later mirrored
    because it ignores ``topics.blacklist``.
    """
    topic_filter, source = flow.selection.topic_filter, flow.source.alias
    if not isinstance(topic_filter, DefaultTopicFilter):
        return []
    include, exclude = topic_filter.include, topic_filter.exclude
    unmatched = include.without_match(selected) if include.expressions != DEFAULT_TOPICS else ()
    blacklisted = [
        name
        for name in sorted(here)
        if exclude.key.endswith(".blacklist") and exclude.matches(name) and flow.remote_topic(name) in there
    ]
    return [f"{NO_CHANGE} topics: {expression} selects no topic of cluster {source}" for expression in unmatched] + [
        f"{NO_CHANGE} topic {flow.remote_topic(name)}: not mirrored, {exclude.key} excludes {name}; "
        "MirrorMaker 4.0 and later ignore this key"
        for name in blacklisted
    ]


class _Side(NamedTuple):
    """One cluster of a flow, with its topics."""

    alias: str
    admin: AdminClient
    topics: Mapping[str, int]
    """Partition counts by topic."""


class _Checks:
    """Collector of the changes that a cluster would reject. Each change is sent with ``validate_only``."""

    def __init__(self) -> None:
        self.rejected: list[str] = []
        self.overridden: list[str] = []
        """Lines about new topics for which policies would store other values."""

    def create(self, side: _Side, topics: Sequence[NewTopic], setting: str) -> None:
        """Validate topics that would be created. ``setting`` is the key and value of their replication factor."""
        if not topics:
            return
        outcomes = validate_topics(side.admin, topics)
        invalid = [topic for topic in topics if isinstance(outcomes[topic.name], InvalidConfigError)]
        if invalid:
            outcomes |= validate_topics(side.admin, _with_known_configs(side, invalid))
        for topic in topics:
            if isinstance(override := outcomes[topic.name], PolicyOverride):
                self.overridden += _overridden(topic, override, side.alias)
        self._note(outcomes, f"its creation on cluster {side.alias} with {setting}")

    def grow(self, alias: str, admin: AdminClient, counts: Mapping[str, int]) -> None:
        """Validate partitions that would be added."""
        if counts:
            outcomes = create_partitions(admin, counts, validate_only=True)
            self._note(outcomes, f"more partitions on cluster {alias}")

    def alter(
        self, alias: str, admin: AdminClient, planned: Mapping[str, Sequence[TopicConfigOperation]]
    ) -> dict[str, PolicyOverride]:
        """Validate config changes. Return what policies of the target would store in place of the values, by topic."""
        outcomes = alter_topic_configs(admin, planned, validate_only=True) if planned else {}
        self.altered(alias, outcomes)
        return {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, PolicyOverride)}

    def altered(self, alias: str, outcomes: Mapping[str, KafkaApiError | PolicyOverride | None]) -> None:
        """Note the outcomes of config changes that were validated."""
        self._note(outcomes, f"the change of its configs on cluster {alias}")

    def _note(self, outcomes: Mapping[str, KafkaApiError | PolicyOverride | None], what: str) -> None:
        self.rejected += [
            f"{NO_CHANGE} topic {name}: {what} {_REJECTED}{error_text(rejected)}"
            for name, rejected in outcomes.items()
            if isinstance(rejected, KafkaApiError) and not isinstance(rejected, TopicAlreadyExistsError)
        ]


def _overridden(topic: NewTopic, override: PolicyOverride, alias: str) -> list[str]:
    """Return a line for each value of a new topic in whose place a policy stores another one."""
    requested = {
        **topic.configs,
        PARTITIONS: str(topic.num_partitions),
        REPLICATION_FACTOR: str(topic.replication_factor),
    }
    return [
        f"{NO_CHANGE} topic {topic.name}: {overridden(name, requested.get(name), override, alias)}"
        for name, stored in override.values.items()
        if stored != requested.get(name)
    ]


def _with_known_configs(side: _Side, topics: Sequence[NewTopic]) -> list[NewTopic]:
    """Return topics without the configs that a cluster does not know. The mirror leaves these out as well."""
    names = list(side.topics)[:1]
    supported = topic_configs(side.admin, names)[names[0]] if names else None
    if supported is None or isinstance(supported, KafkaApiError):
        return [replace(topic, configs={}) for topic in topics]  # it is not known which configs the cluster knows
    return [
        replace(topic, configs={name: value for name, value in topic.configs.items() if name in supported})
        for topic in topics
    ]


def _internal_topics(
    flow: FlowSettings, sides: tuple[_Side, _Side], heartbeats_on: Mapping[str, int], checks: _Checks
) -> list[str]:
    """Return lines for the mirror's internal topics that are missing, and validate their creation."""
    source, target = sides
    source_offsets = internal_topic(
        flow.source_offsets_topic,
        replication_factor=flow.source_offsets_replication_factor,
        partition_count=flow.source_offsets_partitions,
        configs=flow.source_offsets_topic_configs,
    )
    wanted = [(target, source_offsets, "offset.storage.replication.factor")]
    if flow.syncs_topic is not None:
        side = source if flow.syncs_location is SyncsLocation.SOURCE else target
        topic = internal_topic(flow.syncs_topic, replication_factor=flow.syncs_replication_factor)
        wanted.append((side, topic, "offset-syncs.topic.replication.factor"))
    if flow.groups is not None:
        factor = flow.groups.checkpoints_replication_factor
        topic = internal_topic(flow.groups.checkpoints_topic, replication_factor=factor)
        wanted.append((target, topic, "checkpoints.topic.replication.factor"))
    for side in sides:
        if (factor := heartbeats_on.get(side.alias, 0)) and HEARTBEATS_TOPIC not in side.topics:
            topic = internal_topic(HEARTBEATS_TOPIC, replication_factor=factor)
            wanted.append((side, topic, "heartbeats.topic.replication.factor"))
    if (
        source.alias in heartbeats_on
        and flow.selection.includes(HEARTBEATS_TOPIC)
        and HEARTBEATS_TOPIC not in source.topics
    ):
        # The round creates the heartbeats topic before it lists the source topics, so it also mirrors that topic.
        topic = internal_topic(flow.remote_topic(HEARTBEATS_TOPIC), replication_factor=flow.replication_factor)
        wanted.append((target, topic, "replication.factor"))
    missing = [(side, topic, key) for side, topic, key in wanted if topic.name not in side.topics]
    for side, topic, key in missing:
        checks.create(side, [topic], f"{key}={topic.replication_factor}")
    return [
        f"+ internal topic {topic.name} on cluster {side.alias}: {_partitions(topic.num_partitions)}"
        for side, topic, _ in missing
    ]


def _partitions(count: int) -> str:
    return "default number of partitions" if count < 0 else f"{count} partition{'s' * (count != 1)}"


def _new_topic(flow: FlowSettings, name: str, partition_count: int, entries: Mapping[str, ConfigEntry]) -> NewTopic:
    return plan_new_topic(
        flow.remote_topic(name),
        partition_count,
        entries.values(),
        replication_factor=flow.replication_factor,
        config_filter=flow.config_filter,
    )


def _new_line(new: NewTopic) -> str:
    configs = "".join(f" {key}={with_duration(key, value or '')}" for key, value in new.configs.items())
    return (
        f"+ topic {new.name}: {_partitions(new.num_partitions)}, replication factor {new.replication_factor}{configs}"
    )


def _configs(
    flow: FlowSettings,
    sync: ConfigSync,
    described: Mapping[str, Mapping[str, ConfigEntry]],
    target: AdminClient,
    checks: _Checks,
) -> list[str]:
    """Return lines for config changes, and validate them."""
    if not described:
        return []
    if not sync.writes_single_configs(next(iter(described))):
        replaced = sync.plan_replacement(described)
        checks.altered(flow.target.alias, sync.replace(described, validate_only=True))
        unseen = [name for name in map(flow.remote_topic, described) if name not in replaced]
        return [
            *(config_line(name, operation) for name, operations in replaced.items() for operation in operations),
            *(f"~ topic {name}: ? -> the complete set, which AlterConfigs writes; {_unseen(flow)}" for name in unseen),
        ]
    lines, alias = [], flow.target.alias
    planned = sync.plan(described)
    overrides = checks.alter(flow.target.alias, target, sync.without_unknown(planned))
    for name, operations in planned.items():
        if not sync.is_described(name):
            lines += _unseen_lines(name, operations, _unseen(flow))
            continue
        for operation in operations:
            override = overrides.get(name)
            if override is not None and operation.name in override.values:
                if override.values[operation.name] != operation.old_value:
                    lines.append(config_line(name, operation))
                stored = overridden(operation.name, operation.value, override, alias)
                lines.append(f"{NO_CHANGE} topic {name}: {stored}")
            elif sync.is_known(name, operation.name):
                lines.append(config_line(name, operation))
            else:
                lines.append(f"! topic {name}: skipping {operation.name}: cluster {alias} does not know it")
    return lines


def _unseen(flow: FlowSettings) -> str:
    return f"cluster {flow.target.alias} does not allow describing the configs"


def _unseen_lines(remote_name: str, operations: Sequence[TopicConfigOperation], why: str) -> list[str]:
    """Return lines for configs that are sent to a topic whose current configs cannot be described."""
    set_to = [each for each in operations if each.operation is OpType.SET]
    lines = [
        f"~ topic {remote_name}: {each.name}: ? -> {with_duration(each.name, each.value or '')}: {each.rule}; {why}"
        for each in set_to
    ]
    if reset := len(operations) - len(set_to):
        lines.append(f"- topic {remote_name}: {reset} configs: ? -> (default): not set on the source topic; {why}")
    return lines


def config_line(remote_name: str, operation: TopicConfigOperation) -> str:
    """Return the line of a config change: its key, old value and new value."""
    old = "" if operation.old_value is None else with_duration(operation.name, operation.old_value)
    new = with_duration(operation.name, operation.value or "")
    if operation.operation is OpType.DELETE:
        return f"- topic {remote_name}: {operation.name}: {old} -> (default): {operation.rule}"
    sign, change = ("~", f"{old} -> {new}") if old else ("+", new)
    return f"{sign} topic {remote_name}: {operation.name}: {change}: {operation.rule}"
