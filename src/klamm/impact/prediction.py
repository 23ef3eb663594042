"""Predictions for any set of changes: the facts that they need, and the findings that follow from the facts."""

from __future__ import annotations

from collections import defaultdict
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from klamm.impact import config_rules
from klamm.impact.changes import (
    AclsRemoved,
    ClientConfigAltered,
    ConfigAltered,
    CredentialsRemoved,
    DenyAclsAdded,
    PartitionsAdded,
    QuotaAltered,
    RecordsDeleted,
    ReplicationFactorAltered,
    TopicDeleted,
)
from klamm.impact.client_rules import (
    acls_removed,
    client_config_altered,
    credentials_removed,
    deny_acls_added,
    quota_altered,
)
from klamm.impact.effective import (
    CLUSTER_DEFAULT,
    REMOTE_STORAGE,
    TopicConfigs,
    effective_configs,
    has_remote_log,
    topic_keys,
)
from klamm.impact.facts import NO_NEED, Need
from klamm.impact.findings import MAX_NAMES, Finding, Impact, ImpactLevel, Names, counted, size
from klamm.impact.topic_rules import partitions_added, records_deleted, replication_factor_altered, topic_deleted
from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from klamm.impact.changes import Change
    from klamm.impact.facts import ClusterFacts

ConfigEffects: TypeAlias = "Mapping[str, Sequence[TopicConfigs]]"
"""Effective configs of topics before and after changes, one for each group of brokers that have the same."""
_RETENTION: Final = Need.OFFSETS | Need.GROUPS
_SAMPLED: Final = Need.OFFSETS | Need.BATCHES | Need.PRODUCERS
_CONFIG_NEEDS: Final = {
    "retention.ms": _RETENTION,
    "retention.bytes": _RETENTION,
    "cleanup.policy": _RETENTION | _SAMPLED,
    "min.compaction.lag.ms": _RETENTION | Need.BATCHES,
    "max.message.bytes": _SAMPLED,
    "message.timestamp.type": NO_NEED,
    "message.timestamp.before.max.ms": _SAMPLED,
    "message.timestamp.after.max.ms": _SAMPLED,
    "min.insync.replicas": Need.PRODUCERS,
    "unclean.leader.election.enable": NO_NEED,
    "compression.type": Need.OFFSETS | Need.BATCHES,
    "segment.bytes": Need.OFFSETS,
    "segment.index.bytes": Need.OFFSETS,
    "segment.ms": Need.OFFSETS | Need.BATCHES,
    REMOTE_STORAGE: Need.OFFSETS,
}
"""Facts that a change of the effective value of a topic config needs."""
TOPIC_CONFIGS: Final = (*_CONFIG_NEEDS, "index.interval.bytes")
"""Topic configs that the rules read."""
LOSSY_CONFIGS: Final = (
    "retention.ms",
    "retention.bytes",
    "cleanup.policy",
    "min.compaction.lag.ms",
    "unclean.leader.election.enable",
    REMOTE_STORAGE,
)
"""Topic configs whose change may have a finding of level LOSS."""
BROKER_CONFIGS: Final = ("replica.fetch.max.bytes",)
"""Broker configs that the rules read."""
_TOPIC_NEEDS: Final = {
    PartitionsAdded: Need.OFFSETS | Need.GROUPS | Need.BATCHES,
    TopicDeleted: Need.OFFSETS | Need.GROUPS | Need.PRODUCERS,
    RecordsDeleted: Need.OFFSETS | Need.GROUPS,
}
_CONFIG_RULES: Final = (
    config_rules.retention,
    config_rules.remote_log,
    config_rules.compaction,
    config_rules.batch_size,
    config_rules.timestamps,
    config_rules.in_sync_replicas,
    config_rules.unclean_election,
    config_rules.compression,
    config_rules.segments,
)
UNSEEN_REMOTE_LOGS: Final = (
    "the sizes of logs in remote storage, which Kafka's protocol does not report, so that bytes are those of local logs"
    " only: {names}."
)
_CHANGE_RULES: Final[Mapping[type, Callable[[Any, ClusterFacts], Iterator[Finding]]]] = {
    PartitionsAdded: partitions_added,
    ReplicationFactorAltered: replication_factor_altered,
    TopicDeleted: topic_deleted,
    RecordsDeleted: records_deleted,
    QuotaAltered: quota_altered,
    ClientConfigAltered: client_config_altered,
    AclsRemoved: acls_removed,
    DenyAclsAdded: deny_acls_added,
    CredentialsRemoved: credentials_removed,
}
"""Rules of single changes. Those of configs follow from all changes together."""
UNSEEN_RATES: Final = (
    "the present rates of clients, which Kafka's protocol does not report: clients above the new quota cannot be named."
)


def topics_of(changes: Iterable[Change]) -> frozenset[str]:
    """Return the names of the topics that changes name."""
    names = set[str]()
    for change in changes:
        if isinstance(change, PartitionsAdded | TopicDeleted | RecordsDeleted):
            names.add(change.topic)
        elif isinstance(change, ConfigAltered) and change.resource_type == ResourceType.TOPIC:
            names.add(change.resource_name)
    return frozenset(names)


def concerns_inheriting_topics(changes: Iterable[Change]) -> bool:
    """Return whether changes may concern any topic, because they change a default that topics inherit."""
    return any(
        isinstance(change, ConfigAltered) and change.resource_type == ResourceType.BROKER and topic_keys(change)
        for change in changes
    )


def needs(changes: Sequence[Change], effects: ConfigEffects) -> dict[str, Need]:
    """Return the facts that are needed per topic.

    Args:
        changes: The changes.
        effects: Effective configs of each topic before and after the changes.
    """
    needs: dict[str, Need] = defaultdict(lambda: NO_NEED)
    for change in changes:
        if isinstance(change, PartitionsAdded | TopicDeleted | RecordsDeleted):
            needs[change.topic] |= _TOPIC_NEEDS[type(change)]
    for name in effects:
        for key, need in _CONFIG_NEEDS.items():
            if is_changed(effects, name, key):
                needs[name] |= need
    return dict(needs)


def config_effects(changes: Iterable[Change], facts: ClusterFacts) -> ConfigEffects:
    """Return the effective configs of the topics on which they differ, one for each group of brokers."""
    altered = [change for change in changes if isinstance(change, ConfigAltered) and topic_keys(change)]
    if not altered:
        return {}
    effects = {
        name: [
            values
            for values in effective_configs(topic, altered, f"topic {name}", facts.inherited)
            if values.is_changed(*TOPIC_CONFIGS)
        ]
        for name, topic in facts.topics.items()
    }
    return {name: several for name, several in effects.items() if several}


def is_changed(effects: ConfigEffects, topic: str, *names: str) -> bool:
    """Return whether the effective value of one of the configs of a topic differs on a broker."""
    return any(values.is_changed(*names) for values in effects.get(topic, ()))


def cutoffs(effects: ConfigEffects, topic: str, now_ms: int) -> list[int]:
    """Return the times before which retention deletes the records of a topic, in milliseconds since the epoch."""
    limits = {values.number("retention.ms") for values in effects.get(topic, ())}
    return [now_ms - limit for limit in sorted(limits) if limit >= 0]


def may_delete_records(changes: Iterable[Change]) -> bool:
    """Return whether changes are of a kind that may have a finding of level LOSS."""
    return _may_concern(changes, LOSSY_CONFIGS, (TopicDeleted, RecordsDeleted))


def may_have_impact(changes: Iterable[Change]) -> bool:
    """Return whether a rule reads changes of this kind."""
    return _may_concern(changes, TOPIC_CONFIGS, (TopicDeleted, RecordsDeleted, PartitionsAdded))


def _may_concern(changes: Iterable[Change], names: Collection[str], others: tuple[type[Change], ...]) -> bool:
    return any(
        not set(names).isdisjoint(topic_keys(change))
        if isinstance(change, ConfigAltered)
        else isinstance(change, others)
        for change in changes
    )


def predict(changes: Sequence[Change], facts: ClusterFacts, *, sums_up: bool = True) -> Impact:
    """Return the impact of changes that are made together. The worst findings come first.

    Args:
        changes: The changes.
        facts: Facts of the cluster before the changes.
        sums_up: Whether findings of one kind and level beyond ten are summed up in one.
    """
    findings = [finding for change in changes for finding in _of_change(change, facts)]
    effects = config_effects(changes, facts)
    deleted = {change.topic for change in changes if isinstance(change, TopicDeleted)}
    for name, several in effects.items():
        if name not in deleted:
            for rule in _CONFIG_RULES:
                findings += max(([*rule(values, facts)] for values in several), key=_severity)
    findings += _inherited(changes, effects, facts)
    unknown, missing = list(facts.unknown), facts.missing
    kept = {name: several for name, several in effects.items() if name not in deleted}
    if remote := _unseen_remote_logs(findings, kept, facts):
        unknown.append(UNSEEN_REMOTE_LOGS.format(names=Names.of(remote)))
        missing |= reduce(or_, remote.values())
    knows_rates = any(client.rates for client in facts.clients or ())
    if not knows_rates and any(isinstance(change, QuotaAltered) for change in changes):
        unknown.append(UNSEEN_RATES)
    return Impact(
        findings=tuple(_condensed(findings, MAX_NAMES if sums_up else None)),
        unknown=tuple(unknown),
        missing=missing,
    )


def _severity(findings: Iterable[Finding]) -> tuple[ImpactLevel, int | float]:
    """Return the level and the largest figure of the worst finding."""
    levels = ((each.level, max(_amounts(each).values(), default=0)) for each in findings)
    return max(levels, default=(ImpactLevel.NONE, 0))


def _unseen_remote_logs(findings: Iterable[Finding], effects: ConfigEffects, facts: ClusterFacts) -> dict[str, Need]:
    """Return the facts that are missing because of logs in remote storage, by topic.

    Offsets of a topic include those of remote records, but sizes do not. So what ``retention.bytes`` deletes is unknown
    altogether, and of other deletions the bytes.
    """
    needs = {
        name: Need.REMOTE_SIZES | Need.OFFSETS
        for name, several in effects.items()
        for values in several
        if has_remote_log(values.topic)
        and (values.is_remote_log_deleted() or config_rules.is_limit_lowered(values, "retention.bytes"))
        and any(partition.record_count for partition in values.topic.partitions)
    }
    shrinking = {finding.topic for finding in findings if "deleted_bytes" in finding.figures}
    others = [name for name, topic in facts.topics.items() if name in shrinking and has_remote_log(topic)]
    return {**dict.fromkeys(others, Need.REMOTE_SIZES), **needs}


def _of_change(change: Change, facts: ClusterFacts) -> Iterator[Finding]:
    rule = _CHANGE_RULES.get(type(change))
    return iter(()) if rule is None else rule(change, facts)


def _inherited(changes: Iterable[Change], effects: ConfigEffects, facts: ClusterFacts) -> Iterator[Finding]:
    """Report the topics that inherit each changed default."""
    for change in changes:
        if not isinstance(change, ConfigAltered) or change.resource_type != ResourceType.BROKER:
            continue
        names = Names.of(name for name in effects if is_changed(effects, name, *topic_keys(change)))
        if names.count:
            of = "cluster default" if change.resource_name == CLUSTER_DEFAULT else f"broker {change.resource_name}"
            share = f"{names.count:,} of {counted(len(facts.topics), 'topic')}"
            yield Finding(
                kind="inherited_by_topics",
                level=ImpactLevel.NOTICE,
                resource=of,
                message=f"{change.name} is inherited by {share}: {names}.",
                figures={"topics": names.count},
                names={"topics": names},
            )


def _condensed(findings: Iterable[Finding], limit: int | None) -> list[Finding]:
    """Return the findings, the worst first. Those of one kind and level beyond a limit are summed up."""
    by_kind: dict[tuple[ImpactLevel, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        by_kind[finding.level, finding.kind].append(finding)
    shown: list[Finding] = []
    for _, same in sorted(by_kind.items(), key=lambda item: (-item[0][0], item[0][1])):
        same.sort(key=lambda finding: (-max(_amounts(finding).values(), default=0), finding.resource))
        shown += same[:limit]
        if limit is not None and len(same) > limit:
            shown.append(_summed(same[limit:]))
    return shown


def _amounts(finding: Finding) -> dict[str, int | float]:
    """Return the figures that can be summed up: no times and no shares."""
    return {name: value for name, value in finding.figures.items() if not name.endswith(("_ms", "_percent"))}


def _summed(others: Sequence[Finding]) -> Finding:
    first = others[0]
    totals = {name: sum(finding.figures.get(name, 0) for finding in others) for name in _amounts(first)}
    deleted = f": {size(totals['deleted_bytes'])} at most" if "deleted_bytes" in totals else ""
    kinds = dict.fromkeys(kind for finding in others for kind in finding.names)
    return Finding(
        kind=first.kind,
        level=first.level,
        resource=f"{len(others):,} more",
        message=f"the same ({first.kind}) for {len(others):,} more{deleted}.",
        figures=totals,
        names={kind: Names.merged(f.names[kind] for f in others if kind in f.names) for kind in kinds},
    )
