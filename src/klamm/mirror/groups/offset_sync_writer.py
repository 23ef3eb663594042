"""Writes offset syncs while partitions are copied: which source offset became which target offset."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.client.cluster import Cluster
from klamm.client.transport import ConnectionSettings  # noqa: TC001 - a field of a dataclass that is read at runtime
from klamm.mirror.formats import OffsetSync
from klamm.mirror.groups.copied_runs import RunSync, RunTracker
from klamm.mirror.groups.offset_translation import SyncPair, SyncRule
from klamm.mirror.own_records import write_records
from klamm.mirror.reasons import LoggedReasons
from klamm.protocol.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.client.buffers import BufferPool
    from klamm.mirror.copy.batch import Outgoing
    from klamm.mirror.copy.partition import PartitionId

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 5.0
_MANY_DUE: Final = 500
"""So many syncs are written at once; more only where they can not be written as fast as they become due."""
_MOST_PER_PARTITION: Final = 1_000
"""Beyond that the syncs of a partition are thinned out, oldest and newest stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSettings:
    """Where offset syncs go, and how far apart they may be. Travels to Spark's tasks."""

    topic: str
    connection: ConnectionSettings
    """To the cluster that holds the topic: the source, unless the file says target."""
    lag_max: int
    """``offset.lag.max``."""


class SyncWriter:
    """The offset syncs of one copier. Confined to its thread, but for ``send``, which blocks and may run beside."""

    def __init__(self, settings: SyncSettings, pool: BufferPool, *, flow: str) -> None:
        self._settings = settings
        self._flow = flow
        self._cluster = Cluster(settings.connection, pool)
        self._rules: dict[tuple[str, int], SyncRule] = {}
        self._runs: dict[tuple[str, int], RunTracker] = {}
        self._due: dict[tuple[str, int], list[RunSync]] = {}
        self._taken: dict[tuple[str, int], list[RunSync]] = {}
        """What is being written."""
        self._due_count = 0
        self._logged = LoggedReasons()

    def acknowledged(self, partition_id: PartitionId, outgoing: Outgoing, base_offset: int) -> None:
        """Take a batch that the target has at ``base_offset`` (-1: it does not say)."""
        if base_offset < 0 or outgoing.last_offset < 0:
            return  # the next batch does not follow its predecessor then, which makes it due
        key = (partition_id.topic, partition_id.partition)
        rule = self._rules.get(key)
        if rule is None:
            rule = self._rules[key] = SyncRule(self._settings.lag_max)
            self._runs[key] = RunTracker()
        runs = self._runs[key]
        count = outgoing.record_count
        if outgoing.is_dense:
            first = SyncPair(outgoing.last_offset - count + 1, base_offset)
            runs.extend(first, count)
            due = rule.note_batch(first, count)
        else:
            runs.end()
            if len(outgoing.offsets) == count:
                pairs = [SyncPair(upstream, base_offset + at) for at, upstream in enumerate(outgoing.offsets)]
            else:
                # What was left out is not known record by record; the last one is at most here.
                pairs = [SyncPair(outgoing.last_offset, base_offset + count - 1)]
            due = [pair for pair in pairs if rule.note(pair)]
        if due:
            self._keep(key, due)

    def _keep(self, key: tuple[str, int], pairs: Sequence[SyncPair]) -> None:
        """Keep pairs until they are written."""
        runs = self._runs[key]
        due = self._due.setdefault(key, [])
        before = len(due)
        due += runs.take_ended()
        due += map(runs.sync, pairs)
        _thin_out(due)
        self._due_count += len(due) - before

    @property
    def is_full(self) -> bool:
        """Return whether so many syncs are due that they should be written before the interval is over."""
        return self._due_count >= _MANY_DUE and not self._logged.has_any

    def take(self) -> list[Record]:
        """Return the records of what is due and of what waits, to be sent; ``settle`` follows."""
        for key, rule in self._rules.items():
            if (pair := rule.flush()) is not None:
                self._keep(key, [pair])
        self._taken, self._due, self._due_count = self._due, {}, 0
        now_ms = int(time.time() * 1000)
        records: list[Record] = []
        for (topic, partition), due in self._taken.items():
            for run in due:
                upstream, downstream = run.pair
                sync = OffsetSync(
                    topic=topic, partition=partition, upstream_offset=upstream, downstream_offset=downstream
                )
                records.append(Record(key=sync.key(), value=sync.value(), headers=run.headers(), timestamp=now_ms))
        return records

    def send(self, records: Sequence[Record]) -> None:
        """Write records that were taken; blocks.

        Raises:
            ConnectionLostError: they can not be written now; so do ``ApiMissingError`` and ``ProtocolError`` tell.
        """
        write_records(self._cluster, self._settings.topic, {0: records}, timeout_s=_TIMEOUT_S)

    def settle(self, error: Exception | None) -> None:
        """Hear what became of what was taken; what could not be written is tried again, with newer pairs."""
        taken, self._taken = self._taken, {}
        if error is None:
            if taken:
                self._logged.clear()
            return
        for key, due in taken.items():
            self._due[key] = kept = [*due, *self._due.get(key, ())]
            _thin_out(kept)
        if self._logged.is_new(str(error)):
            logger.warning("%s: offset syncs could not be written: %s", self._flow, error)

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()


def _thin_out(due: list[RunSync]) -> None:
    """Leave out every second sync of a list that is too long, but for the first and the last one."""
    if len(due) > _MOST_PER_PARTITION:
        del due[1:-1:2]
