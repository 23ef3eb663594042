"""``klamm mirror --plan``: what the next round would change, without changing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TextIO

from klamm.mirror.admin import KafkaAdmin
from klamm.mirror.config_sync import ConfigSync
from klamm.mirror.model import AdminIncompatibleError, AdminRefusedError, ClusterAwayError, OperationType
from klamm.mirror.plans import plan_new_topic, plan_topics, selected_topics

if TYPE_CHECKING:
    from klamm.mirror.flow_settings import FlowSettings
    from klamm.mirror.model import ConfigOperation, MirrorAdmin
    from klamm.mirror.settings import MirrorSettings

_OK: Final = 0
_FAILED: Final = 1


def print_plan(settings: MirrorSettings, out: TextIO) -> int:
    """Write what each flow would do (``+`` new, ``~`` changed, ``-`` removed); returns the exit code."""
    code = _OK
    for flow in settings.flows:
        source, target = KafkaAdmin.of(flow, "source"), KafkaAdmin.of(flow, "target")
        try:
            lines = plan_flow(flow, source, target)
        except (ClusterAwayError, AdminRefusedError, AdminIncompatibleError) as error:
            out.write(f"{flow.name}: can not be planned: {error}\n")
            code = _FAILED
        else:
            out.write(f"{flow.name}: {len(lines)} changes\n" + "".join(f"  {line}\n" for line in lines))
        finally:
            source.close()
            target.close()
    return code


def plan_flow(flow: FlowSettings, source: MirrorAdmin, target: MirrorAdmin) -> list[str]:
    """Return one line for each change that a round of a flow would make.

    Raises:
        ClusterAwayError: a cluster is away.
    """
    selected = {topic.name: topic for topic in selected_topics(source.list_topics(), flow.selection)}
    there = target.list_topics()
    plan = plan_topics(selected.values(), there, flow.remote_topic)
    described = {
        name: entries
        for name, entries in source.describe_topic_configs(list(selected)).items()
        if not isinstance(entries, AdminRefusedError)
    }
    lines = []
    for name in plan.create:
        new = plan_new_topic(
            selected[name],
            described.get(name, ()),
            remote_name=flow.remote_topic(name),
            replication_factor=flow.replication_factor,
            config_filter=flow.config_filter,
        )
        configs = "".join(f" {key}={value}" for key, value in new.configs.items())
        factor = new.replication_factor
        lines.append(f"+ topic {new.name}: {new.partition_count} partitions, replication factor {factor}{configs}")
    lines += [
        f"~ topic {name}: {there[name].partition_count} -> {count} partitions" for name, count in plan.grow.items()
    ]
    # Topics that would be created get their configs with it.
    synced = {name: entries for name, entries in described.items() if name not in plan.create}
    for remote_name, operations in ConfigSync(flow, source, target).plan(synced).items():
        lines += [_config_line(remote_name, operation) for operation in operations]
    return lines


def _config_line(remote_name: str, operation: ConfigOperation) -> str:
    old = "" if operation.old_value is None else operation.old_value
    if operation.operation is OperationType.DELETE:
        return f"- topic {remote_name}: {operation.name}: {old} -> (default): {operation.rule}"
    sign, change = ("~", f"{old} -> {operation.value}") if old else ("+", f"{operation.value}")
    return f"{sign} topic {remote_name}: {operation.name}: {change}: {operation.rule}"
