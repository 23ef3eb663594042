"""Differences between declared and existing resources, key by key; the same rules for every kind."""

from __future__ import annotations

from dataclasses import field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.configs.definitions import MIN_INSYNC_REPLICAS, is_secret, topic_synonyms
from klamm.configs.layers import group_synonym
from klamm.lazy_dataclass import dataclass
from klamm.policy.answers import PARTITIONS
from klamm.resources.equality import is_same
from klamm.resources.model import (
    CLUSTER,
    DEFAULT_BROKER,
    FILE,
    GROUPED,
    HIDDEN,
    NUMBERS,
    POLICY,
    CurrentValue,
    Declared,
    Existing,
    KeyChange,
    Kind,
    Mark,
    ResourceDiff,
    ResourceKey,
)

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from klamm.policy.answers import PolicyOverride

_DEFAULT: Final = ResourceKey(Kind.BROKER, DEFAULT_BROKER)
_ABSENT = Existing(values=MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Resources and keys that a plan may remove, and whether it sends secrets again."""

    prune: Mapping[Kind, re.Pattern[str] | None] = field(default_factory=lambda: MappingProxyType({}))
    """Kinds of which undeclared resources are deleted. A pattern limits this to names that match as a whole."""
    prune_keys: bool = False
    """Whether undeclared keys of declared resources are removed."""
    send_secrets: bool = False
    """Whether secrets are sent although the cluster has some value: it does not show whether it is the same.
    This concerns references to secrets, and all values that the cluster hides."""

    def covers(self, key: ResourceKey) -> bool:
        """Return whether the kind is pruned, and the name matches."""
        pattern = self.prune.get(key.kind)
        return key.kind in self.prune and (pattern is None or pattern.fullmatch(key.name) is not None)

    def owns_keys_of(self, declared: Declared) -> bool:
        """Return whether undeclared keys of a declared resource are removed."""
        is_pruned = declared.kind in GROUPED and self.covers(declared.key)
        return self.prune_keys or declared.owns_all or is_pruned


def plan_resources(
    declared: Iterable[Declared],
    existing: Mapping[ResourceKey, Existing],
    ownership: Ownership = Ownership(),  # noqa: B008 - it is frozen
) -> tuple[ResourceDiff, ...]:
    """Compare declared with existing resources: in the order of the files, then deletions of undeclared ones.

    Args:
        declared: Resources of the files. Those that are not managed are left out, and not deleted either.
        existing: Existing resources. A declared one that is missing here is to be created.
        ownership: What may be removed.
    """
    resources = tuple(declared)
    keys = {resource.key for resource in resources}
    resources = tuple(resource for resource in resources if resource.is_managed)
    topics = {_metric_name(key.name): key.name for key in existing if key.kind is Kind.TOPIC}
    names = {_metric_name(r.name): r.name for r in resources if r.kind is Kind.TOPIC and r.key in existing}
    diffs = []
    for resource in resources:
        now = existing.get(resource.key)
        if now is not None and now.problem is not None:
            problem = f"{resource.place or resource.key}: {now.problem}"
            diffs.append(ResourceDiff(declared=resource, exists=True, changes=(), problems=(problem,)))
        elif resource.is_absent:
            diffs.append(_deletion(resource, now))
        elif now is None and resource.kind is Kind.TOPIC:
            metric_name = _metric_name(resource.name)
            other = names.setdefault(metric_name, topics.get(metric_name, resource.name))
            diffs.append(_new_topic(resource, other))
        else:
            diffs.append(_changed(resource, now, ownership))
    undeclared = (key for key in sorted(existing) if key not in keys and ownership.covers(key))
    pruned = (Declared(kind=key.kind, name=key.name, is_absent=True, place="--prune") for key in undeclared)
    deletions = (_deletion(resource, existing[resource.key]) for resource in pruned)
    diffs += [diff for diff in deletions if not diff.is_in_line]
    return tuple(_with_own_values(diffs, existing))


def _with_own_values(diffs: Sequence[ResourceDiff], existing: Mapping[ResourceKey, Existing]) -> Iterator[ResourceDiff]:
    """Yield diffs that also set declared values which are inherited from a broker config that the plan changes.

    Changes of inherited values are marked, so that they are made before that of the broker config.
    """
    of_brokers = [diff for diff in diffs if diff.key.kind is Kind.BROKER]
    changing = frozenset(change.key for diff in of_brokers for change in diff.changes)
    defaults = frozenset(change.key for diff in of_brokers if diff.key == _DEFAULT for change in diff.changes)
    for diff in diffs:
        now = existing.get(diff.key)
        if not changing or now is None or diff.is_deletion:
            yield diff
            continue
        ending = defaults if diff.key.kind is Kind.BROKER else changing
        sources = {key: ending & _sources_of(diff.declared, key, now) for key in diff.declared.values}
        changes = [replace(change, inherited_from=sources.get(change.key, frozenset())) for change in diff.changes]
        inherited = [
            KeyChange(
                mark=Mark.ADD,
                key=key,
                old=now.values[key].value,
                old_origin=now.values[key].origin,
                new=diff.declared.values[key],
                new_origin=FILE,
                inherited_from=of_key,
            )
            for key, of_key in sources.items()
            if of_key and key in now.values and diff.change_of(key) is None
        ]
        yield replace(diff, changes=(*changes, *inherited))


def inherited_from(declared: Declared, now: Existing | None) -> frozenset[str]:
    """Return the broker configs from which an existing resource may inherit values that a file declares for it.

    Args:
        declared: The resource.
        now: What is known of it. Values that are not known count as inherited.
    """
    return frozenset().union(*(_sources_of(declared, key, now) for key in declared.values))


def _sources_of(declared: Declared, key: str, now: Existing | None) -> frozenset[str]:
    """Return the broker configs from which a resource may inherit a declared value; none if it sets that itself."""
    current = None if now is None else now.values.get(key)
    is_own = current is not None and current.is_own
    if is_own or declared.ignores(key) or declared.key == _DEFAULT:
        return frozenset()
    return frozenset(_sources(declared.kind, key))


def _sources(kind: Kind, key: str) -> Iterable[str]:
    """Return the broker configs from which a key inherits its value."""
    if kind is Kind.BROKER:
        return (key,)
    if kind is Kind.GROUP:
        return filter(None, [group_synonym(key)])
    return [synonym.name for synonym in topic_synonyms().get(key, ())] if kind is Kind.TOPIC else ()


def after_override(diff: ResourceDiff, override: PolicyOverride, now: Existing | None) -> ResourceDiff:
    """Return a diff with the values that a policy stores in place of the declared ones."""
    changes = [change for change in diff.changes if change.key not in override.values]
    values = {} if now is None else now.values
    for key, value in override.values.items():
        current, planned = values.get(key), diff.change_of(key)
        if value is not None:
            change = _value_change(diff.declared.kind, key, value, current, POLICY)
            if planned is not None and planned.inherited_from:  # set also if it is what is inherited until then
                change = replace(change or replace(planned, new=value), inherited_from=planned.inherited_from)
        else:
            change = _removal(key, current) if current is not None and current.is_own else None
        changes += [] if change is None else [change]
    return replace(diff, changes=tuple(changes), override=override)


def _metric_name(topic: str) -> str:
    """Return the name of a topic in metrics. Kafka rejects a topic whose name there exists already."""
    return topic.replace(".", "_")


def _deletion(resource: Declared, now: Existing | None) -> ResourceDiff:
    if now is not None and now.problem is not None:
        problem = f"{resource.place}: {now.problem}"
        return ResourceDiff(declared=resource, exists=True, changes=(), problems=(problem,))
    if resource.kind is Kind.TOPIC:
        return ResourceDiff(declared=resource, exists=now is not None, changes=(), is_deletion=now is not None)
    changes = tuple(_removal(key, value) for key, value in _removable(resource, now).items())
    return ResourceDiff(declared=resource, exists=now is not None, changes=changes, is_deletion=bool(changes))


def _removable(resource: Declared, now: Existing | None) -> dict[str, CurrentValue]:
    """Return the values that may be removed from a resource.

    Kafka sets ``min.insync.replicas`` of the whole cluster itself and rejects its removal while it elects leaders from
    the eligible leader replicas (KIP-966).
    """
    keeps = {MIN_INSYNC_REPLICAS} if resource.key == _DEFAULT else set()
    return {key: value for key, value in (now or _ABSENT).own.items() if key not in keeps and not resource.ignores(key)}


def _new_topic(topic: Declared, same_metrics: str) -> ResourceDiff:
    changes = tuple(
        KeyChange(mark=Mark.ADD, key=key, old=None, old_origin=None, new=value, new_origin=FILE)
        for key, value in topic.values.items()
    )
    problem = (
        f"{topic.place}: the name collides with that of topic {same_metrics}: metrics do not distinguish '.' and '_';"
        " rename one of them"
    )
    problems = () if same_metrics == topic.name else (problem,)
    return ResourceDiff(declared=topic, exists=False, changes=changes, problems=problems)


def _changed(resource: Declared, now: Existing | None, ownership: Ownership) -> ResourceDiff:
    changes: list[KeyChange] = []
    problems: list[str] = []
    values = (now or _ABSENT).values
    for key, value in resource.values.items():
        current = values.get(key)
        is_hidden = current is not None and current.is_own and current.is_sensitive
        if resource.ignores(key) or (is_hidden and not ownership.send_secrets):
            continue
        if key == PARTITIONS and current is not None and int(value) < int(current.value or 0):
            problems.append(
                f"{resource.place}.{PARTITIONS}: {value}: expected at least {current.value}, partitions cannot be taken"
                " away"
            )
        elif (change := _value_change(resource.kind, key, value, current, FILE)) is not None:
            changes.append(change)
    changes += [
        _secret_change(key, values.get(key))
        for key in resource.secrets
        if not resource.ignores(key)
        and not any(change.key == key for change in changes)
        and (ownership.send_secrets or key not in values or not values[key].is_own)
    ]
    if ownership.owns_keys_of(resource):
        declared = {*resource.values, *resource.secrets}
        changes += [_removal(key, value) for key, value in _removable(resource, now).items() if key not in declared]
    if resource.kind is Kind.SCRAM:
        problems += _missing_secrets(resource, changes)
    if problems:
        changes = []
    return ResourceDiff(declared=resource, exists=now is not None, changes=tuple(changes), problems=tuple(problems))


def _missing_secrets(user: Declared, changes: Iterable[KeyChange]) -> Iterator[str]:
    for change in changes:
        if change.mark is not Mark.REMOVE and change.key not in user.secrets:
            yield (
                f"{user.place}: {change.key} cannot be set without a password: name the variable or the file that has"
                " it, as in password: {env: NAME} or password: {file: PATH}"
            )


def _value_change(kind: Kind, key: str, value: str, now: CurrentValue | None, origin: str) -> KeyChange | None:
    """Return the change that sets a value; None if the resource has it already."""
    is_hidden = kind is Kind.BROKER and (is_secret(key) if now is None else now.is_sensitive)
    if now is None:
        return KeyChange(
            mark=Mark.ADD, key=key, old=None, old_origin=None, new=value, new_origin=origin, is_secret=is_hidden
        )
    if is_same(kind, key, now.value, value, config_type=now.config_type):
        return None
    mark = Mark.CHANGE if now.is_own or key in NUMBERS else Mark.ADD
    old_origin = CLUSTER if key in NUMBERS else now.origin
    return KeyChange(
        mark=mark,
        key=key,
        old=HIDDEN if now.is_sensitive and now.is_own else now.value,
        old_origin=old_origin,
        new=value,
        new_origin=origin,
        is_secret=is_hidden,
    )


def _secret_change(key: str, now: CurrentValue | None) -> KeyChange:
    is_set = now is not None and now.is_own
    return KeyChange(
        mark=Mark.CHANGE if is_set else Mark.ADD,
        key=key,
        old=HIDDEN if is_set else None,
        old_origin=now.origin if now is not None and is_set else None,
        new=HIDDEN,
        new_origin=FILE,
    )


def _removal(key: str, now: CurrentValue) -> KeyChange:
    """Return the change that removes a value from a resource."""
    return KeyChange(
        mark=Mark.REMOVE,
        key=key,
        old=HIDDEN if now.is_sensitive else now.value,
        old_origin=now.origin,
        new=now.inherited,
        new_origin=now.inherited_origin,
    )
