"""Comparison of the configs of a source topic and its remote topic. Pure.

Each config of the source topic falls under the first matching rule:

============================================================  ========  ===============================================
config                                                        listed    drift
============================================================  ========  ===============================================
read-only or sensitive                                        no
the next sync changes it                                      yes       yes, with the rule of ``klamm.mirror.topics``
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

from typing import TYPE_CHECKING

from klamm.mirror.progress.flow_progress import ConfigDifference
from klamm.mirror.topics.plans import is_default, plan_config_operations, plan_replacement

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from klamm.admin import ConfigEntry
    from klamm.mirror.filters import ConfigPropertyFilter

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
    return entry.value != other.value


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
