"""Leases: the partitions that each task copies during one micro-batch of Spark.

A lease is one micro-batch. It consists of groups, one per task. A group holds a share of the partitions of one or more
flows. ``coordinator`` describes the life cycle of a lease.

A worker process may keep its connections and fetched records from one lease to the next. This is safe only for the task
that ended the previous lease of the same group in order. ``PartitionGroup.session`` names that task's session. A worker
that finds another session, partitions that its copiers cannot take over, or a flow that was taken over since, closes
what it kept and starts from the source offsets on the target. So does a task that Spark retries.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.kafka_client.connection.security import Security
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.fetch import FetchLimits
from klamm.kraft.image import BrokerEndpoint
from klamm.lazy_dataclass import dataclass
from klamm.mirror.copy.equal_offsets import ReplaySettings, ReplicaSettings
from klamm.mirror.copy.offset_sync_writer import SyncSettings
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.copy.settings import CopySettings
from klamm.mirror.copy.transactions import ShardSettings
from klamm.mirror.records.source_offsets import shard_of
from klamm.server.listeners import Address

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from klamm.mirror.records.requested_states import RequestedState


PARTITIONS_PER_TASK: Final = 8
"""Target number of partitions per task, for flows without a limit. One task copies hundreds of MB/s. Splitting the same
partitions over two tasks takes up to twice as many requests.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowShare:
    """Partitions of one flow that one task copies, with the settings of the flow."""

    settings: CopySettings
    partitions: tuple[PartitionId, ...]
    times_taken: int = 0
    """See ``FlowClaim.times_taken``. A session from before another process mirrored the flow must not be resumed."""


class LiveValues(NamedTuple):
    """Values of a share that may change during a lease."""

    limit: int | None = None
    """Bytes per second. None: no limit."""
    states: tuple[tuple[str, str], ...] = ()
    """Source topics that an operator paused, stopped, promoted or demoted, with their ``RequestedState``."""
    restarts: tuple[tuple[str, int], ...] = ()
    """Source topics whose STOPPED partitions are started again when the number changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionGroup:
    """Work of one task in a lease."""

    number: int
    shares: tuple[FlowShare, ...]
    session: str = ""
    """Session that ended the previous lease of this group in order and may be resumed. Empty: none."""
    live: tuple[LiveValues, ...] = ()
    """Live values of each share, in the order of ``shares``."""


def partition_groups(
    shares: Sequence[FlowShare], *, slots: int, tasks_max: Mapping[str, int], replicas: Sequence[str] = ()
) -> tuple[PartitionGroup, ...]:
    """Distribute the partitions of all flows over at most ``slots`` groups.

    The number of groups of a flow is the smallest of: ``slots``, its number of partitions (of shards, with exactly-once
    delivery), and its limit.

    - The limit is the entry in ``tasks_max``, if there is one. Otherwise it gives each group about
      ``PARTITIONS_PER_TASK`` partitions: a fetch request covers many partitions, so groups with few partitions
      mostly add overhead. Shards have no such limit.
    - Partitions are assigned round-robin, so the partitions of one topic are spread over the groups.
    - A flow starts at the slot after the last slot of the previous flow. With more flows than slots, a group serves
      several flows.
    - The flows that are brokers of their targets come first, each in one group, whose number does not depend on which
      other flows have partitions now. So a flow that stops or resumes ends no session of another flow's broker.
    - The unit of a flow with exactly-once delivery is the shard, because the writes of a shard form one
      transaction. Each shard that has partitions goes to one group as a whole.

    Args:
        shares: All partitions of each flow.
        slots: Number of tasks that can run at the same time, at least 1.
        tasks_max: ``tasks.max`` by flow name. Flows without an entry have no limit.
        replicas: Names of all flows that are brokers of their targets, also of those without partitions.
    """
    by_group: list[list[FlowShare]] = [[] for _ in range(slots)]
    first = len(replicas)
    for share in shares:
        if share.settings.flow in replicas:
            by_group[replicas.index(share.settings.flow) % slots].append(share)
            continue
        parts = _parts(share)
        own_width = math.ceil(len(share.partitions) / PARTITIONS_PER_TASK)
        wanted = tasks_max.get(share.settings.flow, slots if parts else own_width)
        width = min(slots, len(parts) or len(share.partitions), wanted)
        if not parts:
            parts = [replace(share, partitions=share.partitions[at::width]) for at in range(width)]
        for at, part in enumerate(parts):
            by_group[(first + at % width) % slots].append(part)
        first += width
    return tuple(PartitionGroup(number=number, shares=tuple(own)) for number, own in enumerate(by_group) if own)


def place_tasks(sessions: Mapping[int, str], tasks: Mapping[int, Collection[str]], *, is_final: bool) -> dict[int, int]:
    """Return the group of each task, by number. A task without an entry waits until more tasks have started.

    A task gets the group whose session its worker process keeps. The other tasks get the remaining groups, but only
    when no task that has yet to start can have the session of one.

    Args:
        sessions: Session that may be resumed by group number. Empty: none.
        tasks: Sessions that the worker process of each task keeps, by task number.
        is_final: Whether not to wait for more tasks.
    """
    holders = {session: task for task, kept in tasks.items() for session in kept}
    placed = {holders[session]: group for group, session in sessions.items() if session in holders}
    rest = [group for group in sessions if group not in placed.values()]
    if is_final or len(tasks) == len(sessions) or not any(sessions[group] for group in rest):
        # Stable: those that have the number of a group first.
        for task in sorted(tasks.keys() - placed.keys(), key=lambda task: task not in rest):
            placed[task] = task if task in rest else rest[0]
            rest.remove(placed[task])
    return placed


def _parts(share: FlowShare) -> list[FlowShare]:
    """Return one share per shard that has partitions, or an empty list for a flow without transactions."""
    transactions = share.settings.transactions
    if share.settings.replica is not None:
        return [share]  # one broker id has one address
    if transactions is None:
        return []
    by_group: dict[int, list[PartitionId]] = {}
    for partition_id in share.partitions:
        shard = shard_of(partition_id.topic, partition_id.partition, transactions.shards)
        by_group.setdefault(shard, []).append(partition_id)
    return [
        FlowShare(
            settings=replace(share.settings, transactions=replace(transactions, shard=shard)),
            partitions=tuple(by_group[shard]),
            times_taken=share.times_taken,
        )
        for shard in sorted(by_group)
    ]


def with_live_values(
    groups: Sequence[PartitionGroup],
    limits: Mapping[str, int],
    states: Mapping[str, Mapping[str, RequestedState]],
    restarts: Mapping[str, Mapping[str, int]],
) -> tuple[PartitionGroup, ...]:
    """Return the groups with their live values. Each partition of a flow gets the same part of the flow's limit.

    Args:
        groups: All groups of a lease.
        limits: Bytes per second by flow name (``klamm.max.bytes.per.second``). Flows without an entry have no limit.
        states: Requested states of source topics by flow name.
        restarts: Number of restarts of each source topic by flow name.
    """
    totals: dict[str, int] = {}
    for share in (share for group in groups for share in group.shares):
        totals[share.settings.flow] = totals.get(share.settings.flow, 0) + len(share.partitions)

    def part(share: FlowShare) -> int | None:
        flow = share.settings.flow
        return max(1, limits[flow] * len(share.partitions) // totals[flow]) if flow in limits else None

    def live(share: FlowShare) -> LiveValues:
        flow = share.settings.flow
        return LiveValues(part(share), tuple(states.get(flow, {}).items()), tuple(restarts.get(flow, {}).items()))

    return tuple(replace(group, live=tuple(map(live, group.shares))) for group in groups)


def to_json(group: PartitionGroup) -> dict[str, Any]:
    """Return a group as plain JSON values for the side channel."""
    return asdict(group)


def from_json(plain: Mapping[str, Any]) -> PartitionGroup:
    """Return the group that ``to_json`` encoded."""
    shares = tuple(
        FlowShare(
            settings=_settings(share["settings"]),
            partitions=tuple(PartitionId(*p) for p in share["partitions"]),
            times_taken=share["times_taken"],
        )
        for share in plain["shares"]
    )
    live = tuple(LiveValues(*values) for values in plain["live"])
    return PartitionGroup(number=plain["number"], shares=shares, session=plain["session"], live=live)


def _settings(plain: Mapping[str, Any]) -> CopySettings:
    values = {**plain, "shared_topics": tuple(plain["shared_topics"])}
    for side in ("source", "target"):
        values[side] = _connection(values[side])
    if (syncs := values["syncs"]) is not None:
        values["syncs"] = SyncSettings(**{**syncs, "connection": _connection(syncs["connection"])})
    if values["transactions"] is not None:
        values["transactions"] = ShardSettings(**values["transactions"])
    if values["replay"] is not None:
        values["replay"] = ReplaySettings(**values["replay"])
    if (replica := values["replica"]) is not None:
        values["replica"] = ReplicaSettings(
            **{
                **replica,
                "controllers": _connection(replica["controllers"]),
                "listeners": tuple(BrokerEndpoint(**each) for each in replica["listeners"]),
                "bind": tuple(Address(**each) for each in replica["bind"]),
            }
        )
    values["fetch_limits"] = FetchLimits(*values["fetch_limits"])
    return CopySettings(**values)


def _connection(plain: Mapping[str, Any]) -> ConnectionSettings:
    values = dict(plain)
    values["bootstrap_servers"] = tuple(values["bootstrap_servers"])
    values["security"] = Security(**values["security"])
    values["socket_options"] = tuple(values["socket_options"])
    return ConnectionSettings(**values)
