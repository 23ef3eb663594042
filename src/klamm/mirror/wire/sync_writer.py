"""Writes offset syncs while partitions are copied: which source offset became which target offset."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.mirror.formats import OffsetSync
from klamm.mirror.offset_translation import SyncPair, SyncRule
from klamm.mirror.wire.cluster import Cluster
from klamm.mirror.wire.connection import ApiMissingError, ConnectionLostError
from klamm.mirror.wire.small_topics import write_records
from klamm.mirror.wire.transport import ConnectionSettings  # noqa: TC001 - a field of a dataclass that is read at runtime
from klamm.protocol.errors import ProtocolError
from klamm.protocol.records import Record

if TYPE_CHECKING:
    from klamm.mirror.wire.buffers import BufferPool
    from klamm.mirror.wire.partition_copy import Outgoing, PartitionId

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSettings:
    """Where offset syncs go, and how far apart they may be. Travels to Spark's tasks."""

    topic: str
    connection: ConnectionSettings
    """To the cluster that holds the topic: the source, unless the file says target."""
    lag_max: int
    """``offset.lag.max``."""


class SyncWriter:
    """The offset syncs of one copier. Thread-confined to it; ``write`` blocks."""

    def __init__(self, settings: SyncSettings, pool: BufferPool, *, flow: str) -> None:
        self._settings = settings
        self._flow = flow
        self._cluster = Cluster(settings.connection, pool)
        self._rules: dict[tuple[str, int], SyncRule] = {}
        self._due: dict[tuple[str, int], SyncPair] = {}
        self._told = ""

    def acknowledged(self, partition_id: PartitionId, outgoing: Outgoing, base_offset: int) -> None:
        """Take a batch that the target has at ``base_offset`` (-1: it does not say)."""
        if base_offset < 0 or outgoing.last_offset < 0:
            return  # the next batch does not follow its predecessor then, which makes it due
        key = (partition_id.topic, partition_id.partition)
        rule = self._rules.get(key)
        if rule is None:
            rule = self._rules[key] = SyncRule(self._settings.lag_max)
        count = outgoing.record_count
        if outgoing.is_dense:
            due = rule.note_batch(SyncPair(outgoing.last_offset - count + 1, base_offset), count)
        else:
            # What was left out is not known record by record; the last one is at most here.
            last = SyncPair(outgoing.last_offset, base_offset + count - 1)
            due = last if rule.note(last) else None
        if due is not None:
            self._due[key] = due

    def write(self) -> None:
        """Write what is due and what waits; what can not be written now is tried again with newer pairs."""
        for key, rule in self._rules.items():
            if (pair := rule.flush()) is not None:
                self._due[key] = pair
        if not self._due:
            return
        now_ms = int(time.time() * 1000)
        records = []
        for at, ((topic, partition), pair) in enumerate(self._due.items()):
            sync = OffsetSync(
                topic=topic, partition=partition, upstream_offset=pair.upstream, downstream_offset=pair.downstream
            )
            records.append(Record(key=sync.key(), value=sync.value(), timestamp=now_ms, offset=at))
        try:
            write_records(self._cluster, self._settings.topic, {0: records}, timeout_s=_TIMEOUT_S)
        except (ConnectionLostError, ApiMissingError, ProtocolError) as error:
            self._tell(str(error))
        else:
            self._due.clear()
            self._told = ""

    def _tell(self, reason: str) -> None:
        if reason != self._told:
            logger.warning("%s: offset syncs could not be written: %s", self._flow, reason)
            self._told = reason

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()
