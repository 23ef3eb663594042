"""Changes of a plan, in the form whose impact can be predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.configs.quotas import parse_quota_resource
from klamm.impact.changes import (
    AclsRemoved,
    Change,
    ClientConfigAltered,
    ConfigAltered,
    CredentialsRemoved,
    DenyAclsAdded,
    PartitionsAdded,
    QuotaAltered,
    ReplicationFactorAltered,
    TopicDeleted,
)
from klamm.policy.answers import PARTITIONS, REPLICATION_FACTOR
from klamm.resources.cluster import config_resource
from klamm.resources.equality import is_allowing
from klamm.resources.kinds import CONFIG_KINDS
from klamm.resources.model import HIDDEN, Kind, Mark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.resources.engine import Plan
    from klamm.resources.model import ResourceDiff


def planned_changes(plan: Plan) -> list[Change]:
    """Return the accepted changes. New topics, credentials and ACLs that allow something have no impact."""
    return [
        change
        for diff in plan.diffs
        if (diff.exists or diff.key.kind is not Kind.TOPIC) and diff.key not in plan.failed
        for change in (_deleted(diff) if diff.is_deletion and diff.key.kind is Kind.TOPIC else _changed(diff))
    ]


def _deleted(diff: ResourceDiff) -> Iterator[Change]:
    yield TopicDeleted(topic=diff.key.name)


def _changed(diff: ResourceDiff) -> Iterator[Change]:
    if (growth := diff.change_of(PARTITIONS)) is not None:
        yield PartitionsAdded(topic=diff.key.name, total_count=int(growth.new or 0))
    if (resized := diff.change_of(REPLICATION_FACTOR)) is not None:
        before = max(map(int, (resized.old or "0").split(" and ")))
        yield ReplicationFactorAltered(topic=diff.key.name, factor=int(resized.new or 0), factor_before=before)
    removed = tuple(change.key for change in diff.changes if change.mark is Mark.REMOVE)
    if diff.key.kind is Kind.ACLS:
        yield from _changed_acls(diff, removed)
    if diff.key.kind is Kind.SCRAM and removed:
        are_all = diff.is_deletion and not diff.declared.ignored
        yield CredentialsRemoved(user=diff.key.name, mechanisms=removed, are_all=are_all)
    for change in diff.config_changes:
        value = None if change.mark is Mark.REMOVE else change.new
        if value == HIDDEN or change.is_secret:
            continue
        if diff.key.kind in CONFIG_KINDS:
            resource = config_resource(diff.key)
            yield ConfigAltered(resource_type=resource.type, resource_name=resource.name, name=change.key, value=value)
        elif diff.key.kind is Kind.QUOTA:
            parts = parse_quota_resource(diff.key.name)
            yield QuotaAltered(entity=parts, name=change.key, value=None if value is None else float(value))
        elif diff.key.kind is Kind.CLIENT_CONFIGS:
            parts = parse_quota_resource(diff.key.name)
            yield ClientConfigAltered(entity=parts, name=change.key, value=value, value_before=change.old)


def _changed_acls(diff: ResourceDiff, removed: tuple[str, ...]) -> Iterator[Change]:
    if allowing := tuple(filter(is_allowing, removed)):
        yield AclsRemoved(principal=diff.key.name, acls=allowing)
    added = (change.key for change in diff.changes if change.mark is not Mark.REMOVE)
    if denying := tuple(text for text in added if not is_allowing(text)):
        yield DenyAclsAdded(principal=diff.key.name, acls=denying)
