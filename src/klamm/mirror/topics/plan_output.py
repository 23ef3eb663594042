"""``klamm mirror --plan``: what the next round would change, without changing it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TextIO

from klamm.mirror.admin import KafkaAdmin
from klamm.mirror.errors import FlowFailedError
from klamm.mirror.model import AdminIncompatibleError, AdminRefusedError, ClusterAwayError, OperationType
from klamm.mirror.naming import HEARTBEATS_TOPIC
from klamm.mirror.settings.keys import SyncsLocation
from klamm.mirror.topics.acl_sync import AclSync, in_words
from klamm.mirror.topics.config_sync import ConfigSync
from klamm.mirror.topics.plans import plan_new_topic, plan_topics, selected_topics

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from klamm.mirror.model import ConfigEntry, ConfigOperation, MirrorAdmin, TopicDescription
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.settings.mirror import MirrorSettings

logger = logging.getLogger(__name__)

_OK: Final = 0
_FAILED: Final = 1
NO_CHANGE: Final = "!"
"""How a line begins that tells of something that is left as it is, although the source says otherwise."""


def print_plan(settings: MirrorSettings, out: TextIO) -> int:
    """Write what each flow would do (``+`` new, ``~`` changed, ``-`` removed, ``!`` left); returns the exit code."""
    code = _OK
    for flow in settings.flows:
        source, target = KafkaAdmin.of(flow, "source"), KafkaAdmin.of(flow, "target")
        try:
            source.check_reachable()
            target.check_reachable()
            lines = plan_flow(flow, source, target, heartbeats_on=_heartbeats_on(settings, flow))
        except (ClusterAwayError, AdminRefusedError, AdminIncompatibleError, FlowFailedError) as error:
            out.write(f"{flow.name}: can not be planned: {error}\n")
            code = _FAILED
        except Exception as error:  # such as what filters and policies of the user's own raise
            logger.debug("%s can not be planned", flow.name, exc_info=True)
            out.write(f"{flow.name}: can not be planned: {type(error).__name__}: {error}\n")
            code = _FAILED
        else:
            changes = sum(not line.startswith(NO_CHANGE) for line in lines)
            out.write(f"{flow.name}: {changes} change{'s' * (changes != 1)}\n")
            out.write("".join(f"  {line}\n" for line in lines))
        finally:
            source.close()
            target.close()
    return code


def _heartbeats_on(settings: MirrorSettings, flow: FlowSettings) -> frozenset[str]:
    """Return the aliases whose topic of heartbeats is told with this flow; that of a source with the flow back."""
    written = {pair.target.alias for pair in settings.heartbeats}
    is_both_ways = any((other.source, other.target) == (flow.target, flow.source) for other in settings.flows)
    return frozenset(written & ({flow.target.alias} if is_both_ways else {flow.target.alias, flow.source.alias}))


def plan_flow(
    flow: FlowSettings, source: MirrorAdmin, target: MirrorAdmin, *, heartbeats_on: Collection[str] = ()
) -> list[str]:
    """Return one line for each change that a round of a flow would make.

    Args:
        flow: the flow.
        source: of its source.
        target: of its target.
        heartbeats_on: aliases of the clusters whose topic of heartbeats is created where it is missing.

    Raises:
        ClusterAwayError: a cluster is away.
        FlowFailedError: the round would fail.
    """
    here, there = source.list_topics(), target.list_topics()
    selected = {topic.name: topic for topic in selected_topics(here, flow.selection)}
    plan = plan_topics(selected.values(), there, flow.remote_topic)
    described: dict[str, tuple[ConfigEntry, ...]] = {}
    denied = []
    for name, entries in source.describe_topic_configs(list(selected)).items():
        if isinstance(entries, AdminRefusedError):
            denied.append(f"! topic {name}: can not be described on cluster {flow.source.alias}: {entries}")
        else:
            described[name] = entries
    lines = _internal_topics(flow, here, there, heartbeats_on)
    lines += [_new_topic(flow, selected[name], described[name]) for name in plan.create if name in described]
    lines += [
        f"~ topic {name}: {there[name].partition_count} -> {count} partitions" for name, count in plan.grow.items()
    ]
    if flow.sync_topic_configs_enabled:
        # Topics that would be created get their configs with it.
        synced = {name: entries for name, entries in described.items() if name not in plan.create}
        lines += _configs(flow, ConfigSync(flow, source, target), synced)
    if flow.sync_topic_acls_enabled:
        missing = AclSync(flow, source, target).missing(list(selected))
        lines += [f"+ topic {acl.resource_name}: ACL {in_words(acl)}: on the source topic" for acl in missing]
    return lines + denied


def _internal_topics(
    flow: FlowSettings,
    here: Mapping[str, TopicDescription],
    there: Mapping[str, TopicDescription],
    heartbeats_on: Collection[str],
) -> list[str]:
    """Return lines for the topics of the mirror's own that are missing."""
    wanted = [(flow.target.alias, there, flow.positions_topic, flow.positions_partitions)]
    if flow.syncs_topic is not None:
        on_source = flow.syncs_location is SyncsLocation.SOURCE
        side = (flow.source.alias, here) if on_source else (flow.target.alias, there)
        wanted.append((*side, flow.syncs_topic, 1))
    if flow.groups is not None:
        wanted.append((flow.target.alias, there, flow.groups.checkpoints_topic, 1))
    sides = {flow.source.alias: here, flow.target.alias: there}
    wanted += [(alias, topics, HEARTBEATS_TOPIC, 1) for alias, topics in sides.items() if alias in heartbeats_on]
    if (
        flow.source.alias in heartbeats_on
        and flow.selection.includes(HEARTBEATS_TOPIC)
        and HEARTBEATS_TOPIC not in here
    ):
        # It is there when the topics are looked at.
        wanted.append((flow.target.alias, there, flow.remote_topic(HEARTBEATS_TOPIC), 1))
    return [
        f"+ topic {name} of the mirror's own on cluster {alias}: {count} partition{'s' * (count != 1)}"
        for alias, topics, name, count in wanted
        if name not in topics
    ]


def _new_topic(flow: FlowSettings, topic: TopicDescription, entries: tuple[ConfigEntry, ...]) -> str:
    new = plan_new_topic(
        topic,
        entries,
        remote_name=flow.remote_topic(topic.name),
        replication_factor=flow.replication_factor,
        config_filter=flow.config_filter,
    )
    configs = "".join(f" {key}={value}" for key, value in new.configs.items())
    factor = new.replication_factor
    return f"+ topic {new.name}: {new.partition_count} partitions, replication factor {factor}{configs}"


def _configs(flow: FlowSettings, sync: ConfigSync, described: Mapping[str, tuple[ConfigEntry, ...]]) -> list[str]:
    if not described:
        return []
    if not sync.writes_single_configs(next(iter(described))):
        replaced = sync.plan_replacement(described)
        unseen = [name for name in map(flow.remote_topic, described) if name not in replaced]
        return [
            *(_config_line(name, operation) for name, operations in replaced.items() for operation in operations),
            *(f"~ topic {name}: ? -> the complete set, which AlterConfigs writes; {_unseen(flow)}" for name in unseen),
        ]
    lines = []
    for name, operations in sync.plan(described).items():
        if not sync.is_described(name):
            lines += _unseen_lines(name, operations, _unseen(flow))
            continue
        for operation in operations:
            if sync.is_known(name, operation.name):
                lines.append(_config_line(name, operation))
            else:
                alias = flow.target.alias
                lines.append(f"! topic {name}: {operation.name} is left out: cluster {alias} does not know it")
    return lines


def _unseen(flow: FlowSettings) -> str:
    return f"cluster {flow.target.alias} does not let them be described"


def _unseen_lines(remote_name: str, operations: Sequence[ConfigOperation], why: str) -> list[str]:
    """Return lines for what is sent to a topic whose configs may not be described."""
    set_to = [each for each in operations if each.operation is OperationType.SET]
    lines = [f"~ topic {remote_name}: {each.name}: ? -> {each.value}: {each.rule}; {why}" for each in set_to]
    if reset := len(operations) - len(set_to):
        lines.append(f"- topic {remote_name}: {reset} configs: ? -> (default): not set on the source topic; {why}")
    return lines


def _config_line(remote_name: str, operation: ConfigOperation) -> str:
    old = "" if operation.old_value is None else operation.old_value
    if operation.operation is OperationType.DELETE:
        return f"- topic {remote_name}: {operation.name}: {old} -> (default): {operation.rule}"
    sign, change = ("~", f"{old} -> {operation.value}") if old else ("+", f"{operation.value}")
    return f"{sign} topic {remote_name}: {operation.name}: {change}: {operation.rule}"
