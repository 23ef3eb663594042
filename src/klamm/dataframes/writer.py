"""Writer of records: collects them in batches and retries each until it is acknowledged."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from klamm.client.batches import ProducerStamp
from klamm.client.buffers import BufferPool
from klamm.client.cluster import Cluster
from klamm.client.errors import ConnectionLostError, DeniedError, TransactionLostError
from klamm.client.partitioner import partition_for_key
from klamm.client.records import RecordsRefusedError, write_batches
from klamm.dataframes.errors import WritingError
from klamm.protocol.errors import ErrorCode, UnsupportedVersionError, error_name
from klamm.protocol.records import encode_batch
from klamm.protocol.types import MAX_SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from klamm.dataframes.rows import OutgoingRecord
    from klamm.dataframes.write_options import WriteOptions
    from klamm.protocol.records import Record
    from klamm.protocol.types import PartitionTuple

Value = TypeVar("Value")

_BATCH_BYTES: Final = 900 * 1024
"""Size of a batch before compression, below the default of ``max.message.bytes``."""
_HELD_BYTES: Final = 16 * 1024 * 1024
_RECORD_OVERHEAD: Final = 32
_TIMEOUT_S: Final = 30.0
_RETRY_S: Final = 0.2
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_PASSING: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_HINTS: Final[Mapping[int, str]] = {
    ErrorCode.INVALID_RECORD: "a compacted topic takes no record without a key",
    ErrorCode.INVALID_TIMESTAMP: "a timestamp is further away from now than the topic allows",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "no right to write to it",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "no right to write idempotently",
    ErrorCode.INVALID_PRODUCER_EPOCH: "somebody else writes for this task now, or it took longer than "
    "kafka.transaction.timeout.ms",
    ErrorCode.INVALID_TXN_STATE: "the batch took longer than kafka.transaction.timeout.ms",
}


class OpenTransaction(Protocol):
    """Transaction that written records belong to."""

    transactional_id: str

    @property
    def identity(self) -> ProducerStamp:
        """Return producer id and epoch."""
        ...

    def add(self, partitions: Collection[PartitionTuple]) -> None:
        """Add partitions before their first records are sent."""
        ...


@dataclass(slots=True)
class _Pending:
    records: list[Record] = field(default_factory=list)
    bytes: int = 0


class TargetCluster:
    """Connections to the cluster that is written to. Confined to one thread; its calls block."""

    def __init__(self, options: WriteOptions) -> None:
        self.wire = Cluster(options.connection, BufferPool(max_free_bytes=0))
        self._servers = ",".join(options.connection.bootstrap_servers)
        self._patience_s = options.patience_s

    def partitions(self, topic: str) -> tuple[int, ...]:
        """Return the partitions of a topic.

        Raises:
            WritingError: The topic does not exist, or the cluster cannot be reached in time.
        """
        if topic not in self.wire.topics:
            self.insist(lambda: self.wire.refresh([topic]))
        state = self.wire.topics.get(topic)
        if state is None:
            raise WritingError(f"{topic}: no such topic on {self._servers}, or it may not be described")
        return state.partitions

    def insist(self, work: Callable[[], Value]) -> Value:
        """Repeat an action until the cluster answers.

        Raises:
            WritingError: The cluster does not answer in time, or refuses for good.
        """
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return work()
            except (DeniedError, TransactionLostError, UnsupportedVersionError) as error:
                raise WritingError(str(error)) from error
            except RecordsRefusedError as error:
                if error.codes - _PASSING:
                    raise
                self._wait(error, deadline)
            except ConnectionLostError as error:
                self._wait(error, deadline)

    def _wait(self, error: Exception, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise WritingError(f"Not within {self._patience_s:g} s (kafka.delivery.timeout.ms): {error}") from error
        time.sleep(_RETRY_S)

    def close(self) -> None:
        """Close the connections."""
        self.wire.close()


class RecordWriter:
    """Writer of one task's records. A record counts as written only after ``flush`` has returned."""

    def __init__(
        self,
        target: TargetCluster,
        options: WriteOptions,
        *,
        transaction: OpenTransaction | None = None,
        spread: int = 0,
    ) -> None:
        """Create a writer. Without a transaction it requests a producer id with its first records.

        Args:
            target: Cluster to write to.
            options: Options of the query.
            transaction: OpenTransaction of all records; None writes them outside of transactions.
            spread: Number that selects the first partition of records without key and partition. They stay on one
                partition for a whole batch.
        """
        self._target = target
        self._options = options
        self._transaction = transaction
        self._identity = transaction.identity if transaction is not None else None
        self._spread = spread
        self._pending: dict[PartitionTuple, _Pending] = {}
        self._held_bytes = 0
        self._sequences: dict[PartitionTuple, int] = {}
        self._added: set[PartitionTuple] = set()

    def write(self, outgoing: OutgoingRecord) -> PartitionTuple:
        """Queue a record and return its partition.

        Raises:
            WritingError: This record, or an earlier one, cannot be written.
        """
        record = outgoing.record
        where = (outgoing.topic, self._partition(outgoing))
        size = len(record.key or b"") + len(record.value or b"") + _RECORD_OVERHEAD
        size += sum(len(name) + len(value or b"") for name, value in record.headers)
        pending = self._pending.get(where)
        if (pending is not None and pending.bytes + size > _BATCH_BYTES) or self._held_bytes + size > _HELD_BYTES:
            self.flush()
        pending = self._pending.setdefault(where, _Pending())
        pending.records.append(record._replace(offset=len(pending.records)))
        pending.bytes += size
        self._held_bytes += size
        return where

    def _partition(self, outgoing: OutgoingRecord) -> int:
        partitions = self._target.partitions(outgoing.topic)
        if outgoing.partition is not None:
            if outgoing.partition not in partitions:
                raise WritingError(f"{outgoing.topic} has no partition {outgoing.partition}, only {len(partitions)}")
            return outgoing.partition
        key = outgoing.record.key
        return self._spread % len(partitions) if key is None else partition_for_key(key, len(partitions))

    def flush(self) -> None:
        """Send all queued records and wait for their acknowledgements.

        Raises:
            WritingError: Some records cannot be written.
        """
        pending, self._pending, self._held_bytes = self._pending, {}, 0
        self._spread += 1
        if not pending:
            return
        if self._transaction is not None and (new := set(pending) - self._added):
            self._transaction.add(sorted(new))
            self._added |= new
        by_topic: dict[str, dict[int, list[Record]]] = {}
        for (topic, partition), some in pending.items():
            by_topic.setdefault(topic, {})[partition] = some.records
        for topic, records in by_topic.items():
            self._send_together(topic, records)

    def _ask_for_identity(self) -> ProducerStamp:
        return ProducerStamp(*self._target.wire.init_producer_id())

    def _send_together(self, topic: str, records: Mapping[int, Sequence[Record]]) -> None:
        """Send one batch per partition. Where a batch is too large, send the partitions one by one and in parts."""
        try:
            self._send(topic, records)
        except RecordsRefusedError as error:
            if not error.codes & _TOO_LARGE:
                raise self._refused(topic, error) from error
            # Batches that were already accepted are not duplicated, thanks to their sequence numbers.
            for partition, some in records.items():
                self._send_in_parts(topic, partition, some)

    def _send_in_parts(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        try:
            self._send(topic, {partition: records})
        except RecordsRefusedError as error:
            if not error.codes & _TOO_LARGE:
                raise self._refused(topic, error) from error
            if len(records) == 1:
                size = len(records[0].key or b"") + len(records[0].value or b"")
                raise WritingError(
                    f"{topic}-{partition}: a record of {size:,} bytes is more than the topic takes (max.message.bytes)"
                ) from error
            middle = len(records) // 2
            for part in (records[:middle], records[middle:]):
                numbered = [record._replace(offset=at) for at, record in enumerate(part)]
                self._send_in_parts(topic, partition, numbered)

    def _send(self, topic: str, records: Mapping[int, Sequence[Record]]) -> None:
        identity = self._identity = self._identity or self._target.insist(self._ask_for_identity)
        batches = {}
        for partition, some in records.items():
            batches[partition] = encode_batch(
                some,
                codec=self._options.codec,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                base_sequence=self._sequences.get((topic, partition), 0),
                is_transactional=self._transaction is not None,
            )
        transactional_id = None if self._transaction is None else self._transaction.transactional_id
        self._target.insist(
            lambda: write_batches(
                self._target.wire, topic, batches, timeout_s=_TIMEOUT_S, transactional_id=transactional_id
            )
        )
        for partition, some in records.items():
            before = self._sequences.get((topic, partition), 0)
            self._sequences[topic, partition] = before + len(some) & MAX_SEQUENCE

    def _refused(self, topic: str, error: RecordsRefusedError) -> WritingError:
        parts = []
        for code in sorted(error.codes):
            hint = _HINTS.get(code)
            parts.append(f"{error_name(code)}: {hint}" if hint else error_name(code))
        return WritingError(f"{topic}: records were refused: {'; '.join(parts)}")
