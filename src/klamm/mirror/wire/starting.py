"""Where the copying of a partition begins."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from klamm.mirror import positions
from klamm.mirror.wire import cluster as clusters
from klamm.mirror.wire.partition_copy import PartitionCopy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.mirror.wire.cluster import Cluster
    from klamm.mirror.wire.copier import CopySettings
    from klamm.mirror.wire.partition_copy import PartitionId
    from klamm.mirror.wire.position_store import PositionStore

logger = logging.getLogger(__name__)


class Start:
    """Finds the first offset of partitions. For one use."""

    def __init__(self, settings: CopySettings, source: Cluster, target: Cluster, store: PositionStore) -> None:
        self._settings = settings
        self._source = source
        self._target = target
        self._store = store
        self.reasons: dict[PartitionId, str] = {}
        """Why partitions could not be started yet."""

    def copies(self, partitions: Sequence[PartitionId]) -> list[PartitionCopy]:
        """Return the copies that can begin, some of them stopped from the start.

        A partition without a position begins where ``auto.offset.reset`` says, and its position is written before
        any record: a crash right after the first record must not look like a remote topic of unknown origin.

        Raises:
            ConnectionLostError: a cluster is away.
        """
        self._source.refresh(sorted({p.topic for p in partitions}))
        self._target.refresh(sorted({p.remote_topic for p in partitions}))
        ready = [partition for partition in partitions if self._has_leaders(partition)]
        if not ready:
            return []
        known = self._store.read()
        out = []
        fresh = []
        for partition_id in ready:
            last = known.get((partition_id.topic, partition_id.partition))
            if last is None:
                fresh.append(partition_id)
            else:
                resume = positions.resume_offset(last)
                out.append(PartitionCopy(partition_id, start_offset=resume, committed=True))
        return out + self._first_time(fresh)

    def _has_leaders(self, partition_id: PartitionId) -> bool:
        if self._source.leader(partition_id.topic, partition_id.partition) is None:
            self.reasons[partition_id] = f"{partition_id.topic}-{partition_id.partition} has no leader on the source"
        elif self._target.leader(partition_id.remote_topic, partition_id.partition) is None:
            self.reasons[partition_id] = (
                f"{partition_id.remote_topic}-{partition_id.partition} does not exist on the target yet, "
                "or has no leader"
            )
        else:
            return True
        return False

    def _first_time(self, partitions: Sequence[PartitionId]) -> list[PartitionCopy]:
        if not partitions:
            return []
        remote = [(p.remote_topic, p.partition) for p in partitions]
        first = self._target.list_offsets(remote, clusters.EARLIEST)
        end = self._target.list_offsets(remote, clusters.LATEST)
        where = clusters.LATEST if self._settings.start_at_latest else clusters.EARLIEST
        begin = self._source.list_offsets([(p.topic, p.partition) for p in partitions], where)
        out = []
        for partition_id in partitions:
            key = (partition_id.remote_topic, partition_id.partition)
            start = begin.get((partition_id.topic, partition_id.partition))
            if start is None or key not in first or key not in end:
                self.reasons[partition_id] = "the offsets of its leader are not known yet"
                continue
            copy = PartitionCopy(partition_id, start_offset=start, committed=True)
            if end[key] > first[key]:
                copy.stop(self._unknown_origin(partition_id))
                logger.error("%s: %s", self._settings.flow, copy.reason)
            out.append(copy)
        going = {copy.partition_id: copy.acked_offset for copy in out if not copy.reason}
        if going:
            self._store.write({(p.topic, p.partition): offset - 1 for p, offset in going.items()})
        return out

    def _unknown_origin(self, partition_id: PartitionId) -> str:
        return (
            f"{partition_id.remote_topic}-{partition_id.partition} holds records, but {self._settings.positions_topic} "
            f"has no position for it: copying would double them. Delete the remote topic, or write a position"
        )
