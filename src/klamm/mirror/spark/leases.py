"""Who copies what, for how long: leases that the driver deals out and tasks serve.

A lease is one micro-batch. Its groups are the parts of the assignment, one per task; a group has a share of the
partitions of every flow. Between leases a group may keep its connections and what it has fetched, in the worker process
that served it last: ``session`` says which copier the driver saw finish, and only that one may go on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from klamm.mirror.security import Security
from klamm.mirror.wire.copier import CopySettings
from klamm.mirror.wire.fetch_frames import FetchLimits
from klamm.mirror.wire.partition_copy import PartitionId
from klamm.mirror.wire.sync_writer import SyncSettings
from klamm.mirror.wire.transport import ConnectionSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One micro-batch."""

    number: int
    groups: tuple[Group, ...] = field(default=())
    seconds: float
    """How long tasks go on; the driver may end it early."""


def deal(shares: Sequence[Share], *, slots: int, tasks_max: Mapping[str, int]) -> tuple[Group, ...]:
    """Deal the partitions of all flows to at most ``slots`` groups.

    Partitions go round, so that those of one topic are spread. A flow with a bound in ``tasks_max`` is dealt to no
    more groups than that. With more flows than slots a group serves several of them.
    """
    hands: list[list[Share]] = [[] for _ in range(slots)]
    first = 0
    for share in shares:
        width = min(slots, len(share.partitions), tasks_max.get(share.settings.flow, slots))
        for at in range(width):
            part = share.partitions[at::width]
            hands[(first + at) % slots].append(Share(settings=share.settings, partitions=part))
        first += width
    return tuple(Group(number=number, shares=tuple(hand)) for number, hand in enumerate(hands) if hand)


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
    values["fetch_limits"] = FetchLimits(*values["fetch_limits"])
    return CopySettings(**values)


def _connection(plain: Mapping[str, Any]) -> ConnectionSettings:
    values = dict(plain)
    values["bootstrap_servers"] = tuple(values["bootstrap_servers"])
    values["security"] = Security(**values["security"])
    return ConnectionSettings(**values)
