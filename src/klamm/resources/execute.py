"""Sending of the differences to a cluster, kind by kind in the order of their dependencies."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, field, replace
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from klamm.admin import (
    AlterConfigOp,
    AlterConfigsOptions,
    ClientConfigOp,
    ClientQuotaEntity,
    ClientQuotaOp,
    ConfigEntry,
    CreatedTopic,
    NewPartitions,
    NewTopic,
    OpType,
    PolicyOverride,
    ScramCredentialInfo,
    ScramMechanism,
    TopicPartition,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from klamm.client_configs.entities import parse_entity
from klamm.configs.quotas import parse_quota_resource
from klamm.kafka_client.errors import CLUSTER_ERRORS
from klamm.lazy_dataclass import dataclass
from klamm.policy.answers import PARTITIONS, REPLICATION_FACTOR
from klamm.properties import SettingsError
from klamm.resources.cluster import config_resource
from klamm.resources.diff import inherited_from
from klamm.resources.equality import acl_of
from klamm.resources.model import ANY_ITERATIONS, Kind, Mark, ResourceKey
from klamm.resources.replicas import NoPlacementError, new_replicas
from klamm.security.acls import AclFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from klamm.admin import AdminClient, PerKeyResult
    from klamm.resources.model import Existing, KeyChange, ResourceDiff
    from klamm.resources.throttle import MoveThrottle

DEFAULT_ITERATIONS: Final = 4096
_BATCH: Final = 500
"""Resources in one request, so that a cluster with small requests or slow disks answers in time."""
Errors: TypeAlias = "dict[ResourceKey, BaseException]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOutcomes:
    """ChangeOutcomes of the resources that were sent or validated."""

    errors: Mapping[ResourceKey, BaseException] = field(default_factory=lambda: MappingProxyType({}))
    overrides: Mapping[ResourceKey, PolicyOverride] = field(default_factory=lambda: MappingProxyType({}))
    """What a policy of klamm stores in place of requested values."""
    skipped: frozenset[ResourceKey] = frozenset()
    """Resources that were not sent because one of an earlier kind failed, or one that inherits from them."""
    moves: tuple[TopicPartition, ...] = ()
    """Partitions whose replicas are being moved."""
    created: Mapping[ResourceKey, CreatedTopic] = field(default_factory=lambda: MappingProxyType({}))
    """New topics as the cluster creates them."""


@dataclass(slots=True)
class _Run:
    """State of one pass over all kinds."""

    admin: AdminClient
    existing: Mapping[ResourceKey, Existing]
    validate_only: bool
    errors: Errors = field(default_factory=dict)
    overrides: dict[ResourceKey, PolicyOverride] = field(default_factory=dict)
    throttle: MoveThrottle | None = None
    moves: list[TopicPartition] = field(default_factory=list)
    created: dict[ResourceKey, CreatedTopic] = field(default_factory=dict)

    def collect(self, result: PerKeyResult[Any, Any], keys: Mapping[Any, ResourceKey]) -> None:
        """Wait for a result and keep the first error of each resource, and the overrides."""
        for item, outcome in result.values().items():
            key = keys[item]
            error = outcome.exception()
            if error is not None:
                self.errors.setdefault(key, error)
                continue
            value = outcome.result()
            if isinstance(value, CreatedTopic):
                self.created[key] = value
            override = value.override if isinstance(value, CreatedTopic) else value
            if isinstance(override, PolicyOverride):
                self.overrides[key] = override

    def open(self, diffs: Sequence[ResourceDiff]) -> list[ResourceDiff]:
        """Return the diffs that have not failed."""
        return [diff for diff in diffs if diff.key not in self.errors]


def carry_out(
    admin: AdminClient,
    diffs: Sequence[ResourceDiff],
    existing: Mapping[ResourceKey, Existing],
    *,
    validate_only: bool,
    keep_going: bool = True,
    failed_before: Collection[ResourceKey] = (),
    throttle: MoveThrottle | None = None,
) -> ChangeOutcomes:
    """Send the differences, or only validate them.

    The changes of one resource are sent together, as far as Kafka has a request for that. If adding partitions to a
    topic fails, its configs are left unchanged. Resources of one kind do not depend on each other; deletions come last,
    in the opposite order of kinds. Declared values that are inherited from a broker config are set before it changes.
    If that fails, the broker config is left unchanged: other values would hold for the resource, and could delete its
    records.

    Args:
        admin: Connection to the cluster.
        diffs: Differences. Those with problems, those without changes, and those that have failed are left out.
        existing: What the differences were computed from.
        validate_only: Whether to change nothing. Credentials, ACLs and deletions are only checked locally.
        keep_going: Whether later kinds are sent although a resource of an earlier kind failed.
        failed_before: Resources that have failed already.
        throttle: Limit of the traffic of moved replicas. It is set here; the caller ends it after the moves.
    """
    run = _Run(admin=admin, existing=existing, validate_only=validate_only, throttle=throttle)
    sound = [diff for diff in diffs if not (diff.problems or diff.is_in_line or diff.key in failed_before)]
    if not validate_only:
        _keep_inherited(run, sound)
    unkept = [diff for diff in diffs if diff.problems or diff.key in failed_before or diff.key in run.errors]
    needed = {name for diff in unkept if diff.exists for name in inherited_from(diff.declared, existing.get(diff.key))}
    open_diffs = [diff for diff in run.open(sound) if validate_only or not _is_kept(diff)]
    skipped = {
        diff.key
        for diff in open_diffs
        if diff.key.kind is Kind.BROKER and any(change.key in needed for change in diff.changes)
    }
    is_stopped = False
    for is_deletion, kinds in ((False, list(Kind)), (True, list(reversed(Kind)))):
        for kind in kinds:
            due = [
                diff
                for diff in run.open(open_diffs)
                if diff.key.kind is kind and diff.is_deletion is is_deletion and diff.key not in skipped
            ]
            if is_stopped:
                skipped |= {diff.key for diff in due}
            elif due:
                _send(run, kind, due)
            is_stopped = is_stopped or (
                not keep_going and any(key.kind is kind for key in (*failed_before, *run.errors))
            )
    return ChangeOutcomes(
        errors=run.errors,
        overrides=run.overrides,
        skipped=frozenset(skipped),
        moves=tuple(run.moves),
        created=run.created,
    )


def _is_kept(diff: ResourceDiff) -> bool:
    """Return whether ``_keep_inherited`` makes all changes of a resource."""
    return bool(diff.changes) and all(change.inherited_from for change in diff.changes)


def _keep_inherited(run: _Run, diffs: Sequence[ResourceDiff]) -> None:
    """Set the values that resources would lose by a change of the broker config from which they inherit them."""
    kept = [replace(diff, changes=tuple(change for change in diff.changes if change.inherited_from)) for diff in diffs]
    for kind in Kind:
        if due := [diff for diff in kept if diff.changes and diff.key.kind is kind]:
            _send(run, kind, due)


def _send(run: _Run, kind: Kind, diffs: Sequence[ResourceDiff]) -> None:
    for start in range(0, len(diffs), _BATCH):
        part = diffs[start : start + _BATCH]
        try:
            _SENDERS.get(kind, _alter_configs)(run, part)
        except CLUSTER_ERRORS as error:
            for diff in part:
                run.errors.setdefault(diff.key, error)


def _alter_configs(run: _Run, diffs: Sequence[ResourceDiff]) -> None:
    alterations, keys = {}, {}
    for diff in diffs:
        if not diff.config_changes:
            continue
        try:
            alterations[config_resource(diff.key)] = [_operation(diff, change) for change in diff.config_changes]
        except SettingsError as error:
            run.errors[diff.key] = error
            continue
        keys[config_resource(diff.key)] = diff.key
    if alterations:
        options = AlterConfigsOptions(validate_only=run.validate_only)
        run.collect(run.admin.incremental_alter_configs(alterations, options), keys)


def _operation(diff: ResourceDiff, change: KeyChange) -> AlterConfigOp:
    if change.mark is Mark.REMOVE:
        return AlterConfigOp(ConfigEntry(change.key, None), OpType.DELETE)
    secret = diff.declared.secrets.get(change.key)
    return AlterConfigOp(ConfigEntry(change.key, change.new if secret is None else secret.read()), OpType.SET)


def _alter_topics(run: _Run, diffs: Sequence[ResourceDiff]) -> None:
    keys = {diff.key.name: diff.key for diff in diffs}
    if doomed := [diff.key.name for diff in diffs if diff.is_deletion]:
        if not run.validate_only:  # Kafka cannot validate a deletion
            run.collect(run.admin.delete_topics(doomed), keys)
        return
    if new := [_new_topic(diff) for diff in diffs if not diff.exists]:
        run.collect(run.admin.create_topics(new, validate_only=run.validate_only), keys)
    present = [diff for diff in diffs if diff.exists]
    resized = [diff for diff in present if diff.change_of(REPLICATION_FACTOR) is not None]
    _moves(run, resized)  # a factor without a placement is rejected before anything changes
    growing = {
        diff.key.name: NewPartitions(total_count=int(change.new or 0))
        for diff in run.open(present)
        if (change := diff.change_of(PARTITIONS)) is not None
    }
    if growing:
        run.collect(run.admin.create_partitions(growing, validate_only=run.validate_only), keys)
    _alter_configs(run, run.open(present))
    if run.validate_only:
        return
    _see_added(run, [diff for diff in run.open(resized) if diff.key.name in growing])
    if due := _moves(run, run.open(resized)):
        if run.throttle is not None:
            run.throttle.begin({p: (run.existing[keys[p.topic]].replicas[p.partition], due[p]) for p in due})
        run.moves += due
        run.collect(run.admin.alter_partition_reassignments(due), {p: keys[p.topic] for p in due})


def _new_topic(diff: ResourceDiff) -> NewTopic:
    values = {change.key: change.new for change in diff.changes}
    return NewTopic(
        name=diff.key.name,
        num_partitions=int(values.pop(PARTITIONS, None) or -1),
        replication_factor=int(values.pop(REPLICATION_FACTOR, None) or -1),
        configs=values,
    )


def _see_added(run: _Run, diffs: Sequence[ResourceDiff]) -> None:
    """Read the replicas of added partitions. Kafka gives them as many as partition 0 has until its replicas move."""
    keys = {diff.key.name: diff.key for diff in diffs}
    for name, described in run.admin.describe_topics(keys, is_current=True).values().items():
        try:
            partitions = described.result().partitions
        except CLUSTER_ERRORS as error:
            run.errors[keys[name]] = error
            continue
        before = run.existing[keys[name]]
        added = tuple(partition.replicas for partition in partitions[len(before.replicas) :])
        run.existing = {**run.existing, keys[name]: replace(before, replicas=(*before.replicas, *added))}


def _moves(run: _Run, diffs: Sequence[ResourceDiff]) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the new replicas of the partitions whose number of replicas changes.

    All topics of the cluster count for the load of a broker, also those that the files do not declare.
    """
    if not diffs:
        return {}
    racks = {node.id: node.rack for node in run.admin.describe_cluster().result().nodes}
    loads = Counter(dict.fromkeys(racks, 0))
    described = run.admin.describe_topics(run.admin.list_topics(include_internal=True).result())
    for outcome in described.values().values():
        if outcome.exception() is None:  # a topic may have been deleted since it was listed
            loads.update(broker for partition in outcome.result().partitions for broker in partition.replicas)
    moves = {}
    for diff in diffs:
        change = diff.change_of(REPLICATION_FACTOR)
        factor = int((change and change.new) or 0)
        for partition, replicas in enumerate(run.existing[diff.key].replicas):
            try:
                moves[TopicPartition(diff.key.name, partition)] = new_replicas(replicas, factor, racks, loads)
            except NoPlacementError as error:
                run.errors[diff.key] = SettingsError(f"{REPLICATION_FACTOR}: {factor}: {error}")
    return {
        p: replicas
        for p, replicas in moves.items()
        if (key := ResourceKey(Kind.TOPIC, p.topic)) not in run.errors
        and replicas != run.existing[key].replicas[p.partition]
    }


def _alter_quotas(run: _Run, diffs: Sequence[ResourceDiff]) -> None:
    keys = {ClientQuotaEntity(parse_quota_resource(diff.key.name)): diff.key for diff in diffs}
    ops = {
        entity: [
            ClientQuotaOp(change.key, None if change.mark is Mark.REMOVE else float(change.new or 0))
            for change in diff.changes
        ]
        for entity, diff in zip(keys, diffs, strict=True)
    }
    run.collect(run.admin.alter_client_quotas(ops, validate_only=run.validate_only), keys)


def _alter_acls(run: _Run, diffs: Sequence[ResourceDiff]) -> None:
    """Create ACLs, then delete others, so that no principal lacks a right in between."""
    if run.validate_only:
        return  # checked when the files were read; Kafka cannot validate ACLs
    created, deleted = {}, {}
    for diff in diffs:
        for change in diff.changes:
            acl = acl_of(diff.key.name, change.key)
            if change.mark is Mark.REMOVE:
                deleted[AclFilter(**asdict(acl))] = diff.key
            else:
                created[acl] = diff.key
    if created:
        run.collect(run.admin.create_acls(created), created)
    remaining = {acl_filter: key for acl_filter, key in deleted.items() if key not in run.errors}
    if remaining:
        run.collect(run.admin.delete_acls(remaining), remaining)


def _alter_credentials(run: _Run, diffs: Sequence[ResourceDiff]) -> None:
    """Set credentials, then delete others, in rounds: Kafka rejects two credentials of one user in a request.

    After an error, the other changes of the user are left out.
    """
    keys = {diff.key.name: diff.key for diff in diffs}
    alterations = []
    for diff in diffs:
        changes = sorted(diff.changes, key=lambda change: change.mark is Mark.REMOVE)
        try:
            alterations.append([_credential(diff, change) for change in changes])
        except SettingsError as error:
            run.errors[diff.key] = error
    if run.validate_only:
        return  # Kafka cannot validate a credential
    for users in zip_longest(*alterations):
        due = [alteration for alteration in users if alteration and keys[alteration.user] not in run.errors]
        if due:
            run.collect(run.admin.alter_user_scram_credentials(due), keys)


def _credential(diff: ResourceDiff, change: KeyChange) -> UserScramCredentialUpsertion | UserScramCredentialDeletion:
    mechanism = ScramMechanism.from_name(change.key)
    if change.mark is Mark.REMOVE:
        return UserScramCredentialDeletion(diff.key.name, mechanism)
    iterations = diff.declared.values[change.key]
    info = ScramCredentialInfo(mechanism, DEFAULT_ITERATIONS if iterations == ANY_ITERATIONS else int(iterations))
    return UserScramCredentialUpsertion(diff.key.name, info, diff.declared.secrets[change.key].read())


def _alter_client_configs(run: _Run, diffs: Sequence[ResourceDiff]) -> None:
    keys = {parse_entity(parse_quota_resource(diff.key.name)): diff.key for diff in diffs}
    ops = {
        entity: [
            ClientConfigOp(change.key, None if change.mark is Mark.REMOVE else change.new) for change in diff.changes
        ]
        for entity, diff in zip(keys, diffs, strict=True)
    }
    run.collect(run.admin.alter_client_configs(ops, validate_only=run.validate_only), keys)


_SENDERS: Final[Mapping[Kind, Callable[[_Run, Sequence[ResourceDiff]], None]]] = MappingProxyType(
    {
        Kind.TOPIC: _alter_topics,
        Kind.QUOTA: _alter_quotas,
        Kind.ACLS: _alter_acls,
        Kind.SCRAM: _alter_credentials,
        Kind.CLIENT_CONFIGS: _alter_client_configs,
    }
)
"""Functions by kind. All other kinds consist of configs."""
