"""Writer of offset syncs, which pair source offsets with target offsets, during the copying."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from klamm.clock import wall_clock_ms
from klamm.kafka_client.connection.transport import ConnectionSettings  # noqa: TC001 - a field of a dataclass that is read at runtime
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.internal_topic import write_records
from klamm.lazy_dataclass import dataclass
from klamm.mirror.records.formats import OffsetSync
from klamm.mirror.records.offset_translation import RunSync, RunTracker, SyncPair, SyncRule
from klamm.protocol.records import Record
from klamm.retries import LoggedReasons

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.kafka_client.connection.buffers import BufferPool
    from klamm.mirror.copy.batch import Outgoing
    from klamm.mirror.copy.partition import PartitionId

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 5.0
_MANY_DUE: Final = 500
"""Number of due syncs that triggers a write before the interval has passed."""
_MAX_PER_PARTITION: Final = 1_000
"""Most syncs kept per partition while they cannot be written. Beyond it every second one is dropped; the oldest and the
newest stay.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSettings:
    """Topic of the offset syncs and the distance between them. Serialized to Spark's tasks."""

    topic: str
    connection: ConnectionSettings
    """Connection to the cluster with the topic: the source, unless ``offset-syncs.topic.location=target``."""
    lag_max: int
    """Most target offsets between two syncs (``offset.lag.max``)."""


class SyncWriter:
    """Offset syncs of one copier.

    Confined to the copier's thread, except ``send``: it blocks, and runs in the writer thread at the same time.
    """

    def __init__(self, settings: SyncSettings, pool: BufferPool, *, flow: str) -> None:
        self._settings = settings
        self._flow = flow
        self._cluster = Cluster(settings.connection, pool)
        self._rules: dict[tuple[str, int], SyncRule] = {}
        self._runs: dict[tuple[str, int], RunTracker] = {}
        self._due: dict[tuple[str, int], list[RunSync]] = {}
        self._taken: dict[tuple[str, int], list[RunSync]] = {}
        """Syncs that are being written."""
        self._due_count = 0
        self._logged = LoggedReasons()

    def acknowledged(self, partition_id: PartitionId, outgoing: Outgoing, base_offset: int) -> None:
        """Record an acknowledged batch.

        Args:
            partition_id: Partition of the batch.
            outgoing: Acknowledged batch.
            base_offset: Target offset of its first record. -1: the target did not return it.
        """
        if base_offset < 0 or outgoing.last_offset < 0:
            return  # the next batch does not follow its predecessor then, which makes a sync due
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
                # The offsets of single records are unknown, because some were left out. This is an upper bound for the
                # last one.
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
        """Return whether enough syncs are due to write them before the interval has passed."""
        return self._due_count >= _MANY_DUE and not self._logged.has_any

    def take(self) -> list[Record]:
        """Return the records of all due and waiting syncs. Call ``send`` with them, then ``settle``."""
        for key, rule in self._rules.items():
            if (pair := rule.flush()) is not None:
                self._keep(key, [pair])
        self._taken, self._due, self._due_count = self._due, {}, 0
        now_ms = wall_clock_ms()
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
        """Write the records that ``take`` returned. Blocks.

        Raises:
            ConnectionLostError, UnsupportedVersionError, ProtocolError: They cannot be written now.
        """
        write_records(self._cluster, self._settings.topic, {0: records}, timeout_s=_TIMEOUT_S)

    def settle(self, error: Exception | None) -> None:
        """Record the result of ``send``. Syncs that were not written are kept for the next attempt.

        Args:
            error: Error of ``send``. None: the syncs are written.
        """
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
    """Drop every second sync of a list that is too long, except the first and the last one."""
    if len(due) > _MAX_PER_PARTITION:
        del due[1:-1:2]
