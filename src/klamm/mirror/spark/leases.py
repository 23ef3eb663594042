"""Who copies what, for how long: leases that the driver deals out and tasks serve.

A lease is one micro-batch. Its groups are the parts of the assignment, one per task; a group has a share of the
partitions of every flow. Between leases a group may keep its connections and what it has fetched, in the worker process
that served it last: ``session`` says which copier the driver saw finish, and only that one may go on.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from klamm.client.fetch import FetchLimits
from klamm.client.security import Security
from klamm.client.transport import ConnectionSettings
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.copy.settings import CopySettings
from klamm.mirror.copy.transactions import ShardSettings
from klamm.mirror.groups.offset_sync_writer import SyncSettings
from klamm.mirror.source_offsets import shard_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


PARTITIONS_PER_TASK: Final = 8
"""One task copies hundreds of MB/s; two with half of the partitions each take up to twice the requests for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The partitions of one flow in one group."""

    settings: CopySettings
    partitions: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What one task copies."""

    number: int
    shares: tuple[Share, ...]
    session: str = ""
    """The copier that served this group in the lease before and ended it in order; empty: none."""


def deal(shares: Sequence[Share], *, slots: int, tasks_max: Mapping[str, int]) -> tuple[Group, ...]:
    """Deal the partitions of all flows to at most ``slots`` groups.

    Partitions go round, so that those of one topic are spread. A flow with a bound in ``tasks_max`` is dealt to so many
    groups, others to groups of some partitions each: a request takes one batch of each partition, and with few
    partitions it is all overhead. With more flows than slots a group serves several of them. A flow that writes in
    transactions is dealt by whole shards: what a shard writes is one transaction.
    """
    hands: list[list[Share]] = [[] for _ in range(slots)]
    first = 0
    for share in shares:
        parts = _parts(share)
        own_width = math.ceil(len(share.partitions) / PARTITIONS_PER_TASK)
        wanted = tasks_max.get(share.settings.flow, slots if parts else own_width)
        width = min(slots, len(parts) or len(share.partitions), wanted)
        if not parts:
            parts = [replace(share, partitions=share.partitions[at::width]) for at in range(width)]
        for at, part in enumerate(parts):
            hands[(first + at % width) % slots].append(part)
        first += width
    return tuple(Group(number=number, shares=tuple(hand)) for number, hand in enumerate(hands) if hand)


def _parts(share: Share) -> list[Share]:
    """Return the shards of a flow that writes in transactions, those that have partitions; none for other flows."""
    transactions = share.settings.transactions
    if transactions is None:
        return []
    hands: dict[int, list[PartitionId]] = {}
    for partition_id in share.partitions:
        shard = shard_of(partition_id.topic, partition_id.partition, transactions.shards)
        hands.setdefault(shard, []).append(partition_id)
    return [
        Share(
            settings=replace(share.settings, transactions=replace(transactions, shard=shard)),
            partitions=tuple(hands[shard]),
        )
        for shard in sorted(hands)
    ]


def to_json(group: Group) -> dict[str, Any]:
    """Return a group as plain values, to travel."""
    return asdict(group)


def from_json(plain: Mapping[str, Any]) -> Group:
    """Make a group of plain values."""
    shares = tuple(
        Share(settings=_settings(share["settings"]), partitions=tuple(PartitionId(*p) for p in share["partitions"]))
        for share in plain["shares"]
    )
    return Group(number=plain["number"], shares=shares, session=plain["session"])


def _settings(plain: Mapping[str, Any]) -> CopySettings:
    values = dict(plain)
    for side in ("source", "target"):
        values[side] = _connection(values[side])
    if (syncs := values["syncs"]) is not None:
        values["syncs"] = SyncSettings(**{**syncs, "connection": _connection(syncs["connection"])})
    if values["transactions"] is not None:
        values["transactions"] = ShardSettings(**values["transactions"])
    values["fetch_limits"] = FetchLimits(*values["fetch_limits"])
    return CopySettings(**values)


def _connection(plain: Mapping[str, Any]) -> ConnectionSettings:
    values = dict(plain)
    values["bootstrap_servers"] = tuple(values["bootstrap_servers"])
    values["security"] = Security(**values["security"])
    return ConnectionSettings(**values)
