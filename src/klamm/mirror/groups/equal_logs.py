"""Comparison of remote partitions with their source partitions, before offsets of groups are taken over unchanged.

The copying makes the same comparison and stops a partition that is not equal. But it may run in another process, be
paused, or not have started yet. A partition that was mirrored before ``klamm.offsets=preserve`` was set, or that
another producer wrote to, holds other records at the same offsets. A group that continues there skips records, and its
offset on the target never moves back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.mirror.copy.equal_offsets import ReplaySettings
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.replay.tails import CheckedPartition, TailCheck

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from klamm.mirror.cluster_admin import CommittedOffsets
    from klamm.mirror.records.internal_topic import ControlConnection, LogBounds
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.protocol.types import PartitionTuple


class EqualityCheck:
    """Check of the remote partitions of a flow that keeps offsets by replay. Confined to one thread.

    It compares the last records of both sides, as the copying does at its start, and later only records that came since
    then.
    """

    def __init__(self, flow: FlowSettings, source: ControlConnection, target: ControlConnection) -> None:
        self._flow = flow
        self._replay = ReplaySettings(id_prefix=flow.transactional_id_prefix)
        self._source, self._target = source, target
        self._equal_before: dict[tuple[PartitionTuple, UUID, UUID], int] = {}
        """Offsets before which both logs are equal, by source partition and topic ids."""

    def run(
        self,
        offsets: Iterable[CommittedOffsets],
        *,
        target: Mapping[PartitionTuple, LogBounds],
        source: Mapping[PartitionTuple, LogBounds],
    ) -> dict[PartitionTuple, str]:
        """Return the source partitions that are not equal, or may not be, each with the reason.

        Args:
            offsets: Offsets of groups on the source. A partition is left out if it is known to be equal before all of
                them.
            target: Bounds of the remote partitions, requested just before.
            source: Bounds of the source partitions, requested after ``target``.
        """
        unequal: dict[PartitionTuple, str] = {}
        checked: dict[PartitionTuple, CheckedPartition] = {}
        committed: dict[PartitionTuple, list[int]] = {}
        for of_group in offsets:
            for where, each in of_group.items():
                committed.setdefault(where, []).append(each.offset)
        for where in sorted(committed):
            remote = (self._flow.remote_topic(where[0]), where[1])
            if (there := target.get(remote)) is None:
                continue  # nothing is translated then
            equal_before = self._known(where, there)
            if not any(equal_before < offset <= there.end for offset in committed[where]):
                continue
            if (here := source.get(where)) is None:
                unequal[where] = f"{_name(where)} has no leader on cluster {self._flow.source.alias}"
            elif there.end > here.end:
                unequal[where] = (
                    f"{_name(remote)} ends at offset {there.end}, but the source ends at offset {here.end}: offsets "
                    "are not equal"
                )
            else:
                logs = range(max(there.first, equal_before), there.end)
                producer_id = self._replay.producer_id(PartitionId(*where, remote[0]))
                checked[remote] = CheckedPartition(where, here.first, logs, producer_id)
        return unequal | self._compare(checked)

    def _compare(self, checked: Mapping[PartitionTuple, CheckedPartition]) -> dict[PartitionTuple, str]:
        check = TailCheck(self._source.cluster, self._target.cluster)
        check.run(checked)
        unequal = {}
        for remote, each in checked.items():
            if (offset := check.foreign.get(remote)) is not None:
                unequal[each.source] = (
                    f"offset {offset} of {_name(remote)} was written by another producer: offsets are not equal"
                )
            elif (offset := check.differing.get(remote)) is not None:
                unequal[each.source] = (
                    f"offset {offset} of {_name(remote)} holds another record than the source: offsets are not equal"
                )
            elif (reason := check.unread.get(remote)) is not None:
                unequal[each.source] = f"it is not verified yet that offsets are equal: {reason}"
            else:
                self._equal_before[self._key(each.source)] = each.target_offsets.stop
        return unequal

    def _known(self, where: PartitionTuple, target: LogBounds) -> int:
        """Return the offset before which a partition is known to be equal. -1: nothing is known."""
        equal_before = self._equal_before.get(self._key(where), -1)
        return equal_before if equal_before <= target.end else -1

    def _key(self, where: PartitionTuple) -> tuple[PartitionTuple, UUID, UUID]:
        remote_topic = self._flow.remote_topic(where[0])
        return where, self._source.cluster.topic_id(where[0]), self._target.cluster.topic_id(remote_topic)


def _name(partition: PartitionTuple) -> str:
    return f"{partition[0]}-{partition[1]}"
