"""Writer of rows: assigns partitions, collects rows into batches, and retries until all are acknowledged."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import numpy as np

from klamm.dataframes.batches import BATCH_BYTES, RECORD_OVERHEAD, RowBatch, batches_of
from klamm.dataframes.delivery import BatchDelivery, SequencedBatch
from klamm.dataframes.errors import UnansweredError, WritingError
from klamm.dataframes.rows import NO_PARTITION, Rows, joined, lengths
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.data.batches import ProducerStamp
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.data.records import RecordsRejectedError, write_batches
from klamm.kafka_client.described import describe_configs_request, described_configs
from klamm.kafka_client.errors import (
    FATAL_ERRORS,
    RETRIABLE_PRODUCE_CODES,
    ConnectionLostError,
    DeniedError,
    TransactionLostError,
)
from klamm.protocol.errors import ErrorCode, UnsupportedVersionError, error_name
from klamm.protocol.frames import DEFAULT_MAX_FRAME_BYTES
from klamm.protocol.messages.describe_configs import DescribeConfigsResponse
from klamm.protocol.types import MAX_SEQUENCE, ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from klamm.dataframes.options import WriteOptions
    from klamm.protocol.types import PartitionTuple

_SEED: Final = np.uint32(0x9747B28C)
_M: Final = np.uint32(0x5BD1E995)
_WORD: Final = 4
_TO_POSITIVE: Final = np.uint32(0x7FFFFFFF)
Value = TypeVar("Value")

_HELD_BYTES: Final = 16 * 1024 * 1024
_TIMEOUT_S: Final = 30.0
_RETRY_S: Final = 0.2
_MAX_REQUEST: Final = "socket.request.max.bytes"
_ALWAYS_RECEIVED: Final = 1024 * 1024
"""Size of batches in bytes that no broker is expected to be too small for."""
_REQUEST_OVERHEAD: Final = 512
"""Bytes of a Produce request around a batch: names of at most 249 characters, and numbers."""
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_PASSING: Final = RETRIABLE_PRODUCE_CODES | {ErrorCode.CONCURRENT_TRANSACTIONS}
_HINTS: Final[Mapping[int, str]] = {
    ErrorCode.INVALID_RECORD: "a compacted topic rejects records without a key",
    ErrorCode.INVALID_TIMESTAMP: "a timestamp is further away from now than the topic allows",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "the principal may not write to the topic",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "the principal may not write idempotently",
    ErrorCode.INVALID_PRODUCER_EPOCH: "another attempt of this task writes now, or the batch took longer than "
    "kafka.transaction.timeout.ms",
    ErrorCode.INVALID_TXN_STATE: "the batch took longer than kafka.transaction.timeout.ms",
}


def partitions_of(keys: Any, partition_counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the partition that Kafka's Java producer selects for each key.

    Args:
        keys: A ``pyarrow.BinaryArray``. The result for a null is that of the empty key.
        partition_counts: Number of partitions of the topic of each key, at least 1.
    """
    return ((_murmur2(keys) & _TO_POSITIVE) % partition_counts).astype(np.int32)


def _murmur2(keys: Any) -> NDArray[np.uint32]:
    """Return the hashes of all keys. Each step of the algorithm runs over all keys that are long enough for it."""
    _, offsets, data = keys.buffers()
    starts = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys)].astype(np.int64)
    # Words are read past the end of the last key.
    content = np.concatenate([np.frombuffer(data or b"", np.uint8), np.zeros(_WORD, np.uint8)]).astype(np.uint32)
    sizes = lengths(keys)
    hashes = _SEED ^ sizes.astype(np.uint32)
    words = sizes // _WORD
    for at in range(int(words.max(initial=0))):
        some = np.flatnonzero(words > at)
        where = starts[some] + at * _WORD
        word = content[where] | content[where + 1] << 8 | content[where + 2] << 16 | content[where + 3] << 24
        word *= _M
        word ^= word >> 24
        word *= _M
        hashes[some] = hashes[some] * _M ^ word
    rest = sizes % _WORD
    for at in range(_WORD - 2, -1, -1):
        some = np.flatnonzero(rest > at)
        hashes[some] ^= content[starts[some] + words[some] * _WORD + at] << np.uint32(8 * at)
    some = np.flatnonzero(rest > 0)
    hashes[some] *= _M
    hashes ^= hashes >> 13
    hashes *= _M
    hashes ^= hashes >> 15
    return hashes


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


class TargetCluster:
    """Connections to the cluster that is written to. Confined to one thread; its calls block."""

    def __init__(self, options: WriteOptions) -> None:
        self.wire = Cluster(options.connection, BufferPool(max_free_bytes=0))
        self._servers = ",".join(options.connection.bootstrap_servers)
        self._patience_s = options.patience_s
        self._max_request_bytes: dict[int, int] = {}
        """``socket.request.max.bytes`` by node."""

    def partitions(self, topic: str) -> tuple[int, ...]:
        """Return the partitions of a topic.

        Raises:
            WritingError: The topic does not exist, or the cluster cannot be reached in time.
        """
        if topic not in self.wire.topics:
            self.insist(lambda: self.wire.refresh([topic]))
        state = self.wire.topics.get(topic)
        if state is None:
            raise WritingError(f"{topic}: not a topic on {self._servers}, or the principal may not describe it")
        return state.partitions

    def check_size(self, topic: str, partition: int, size: int) -> None:
        """Reject a batch that the partition's leader would not receive. It closes the connection of such a request.

        Raises:
            RecordsRejectedError: The batch exceeds ``socket.request.max.bytes``, or Kafka's default if the principal
                may not describe it.
            ConnectionLostError: The leader is unavailable.
        """
        if size <= _ALWAYS_RECEIVED:
            return
        if topic not in self.wire.topics:
            self.wire.refresh([topic])
        if (leader := self.wire.leader(topic, partition)) is None:
            return
        if leader not in self._max_request_bytes:
            self._max_request_bytes[leader] = self._described_max_request_bytes(leader)
        if size + _REQUEST_OVERHEAD > self._max_request_bytes[leader]:
            raise RecordsRejectedError(topic, {ErrorCode.MESSAGE_TOO_LARGE})

    def _described_max_request_bytes(self, node_id: int) -> int:
        request = describe_configs_request(ResourceType.BROKER, [node_id], [_MAX_REQUEST])
        try:
            response = self.wire.connection(node_id).call(request, DescribeConfigsResponse, timeout_s=_TIMEOUT_S)
        except UnsupportedVersionError:
            return DEFAULT_MAX_FRAME_BYTES
        value = described_configs(response).get(str(node_id), {}).get(_MAX_REQUEST)
        return int(value) if value else DEFAULT_MAX_FRAME_BYTES

    def insist(self, work: Callable[[], Value]) -> Value:
        """Repeat an action until the cluster answers.

        Raises:
            UnansweredError: The cluster does not answer in time.
            WritingError: It rejects the action permanently. A rejected login is not repeated: some servers lock an
                account after a few.
        """
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return work()
            except (DeniedError, TransactionLostError, UnsupportedVersionError, *FATAL_ERRORS) as error:
                raise WritingError(str(error)) from error
            except RecordsRejectedError as error:
                if error.codes - _PASSING:
                    raise
                self._wait(error, deadline)
            except ConnectionLostError as error:
                self._wait(error, deadline)

    def _wait(self, error: Exception, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise UnansweredError(f"Not within {self._patience_s:g} s (kafka.delivery.timeout.ms): {error}") from error
        time.sleep(_RETRY_S)

    def close(self) -> None:
        """Close the connections."""
        self.wire.close()


class RecordWriter:
    """Writer of one task's rows. A row counts as written only after ``flush`` has returned."""

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
                partition for about a batch.
        """
        self._target = target
        self._options = options
        self._transaction = transaction
        self._identity = transaction.identity if transaction is not None else None
        self._spread = spread
        self._held: list[Rows] = []
        self._held_bytes = 0
        self._sequences: dict[PartitionTuple, int] = {}
        self._added: set[PartitionTuple] = set()
        self._numbers = count()
        self._delivery = BatchDelivery(
            target.wire,
            transactional_id=None if transaction is None else transaction.transactional_id,
            timeout_s=_TIMEOUT_S,
            resend=self._resend,
        )
        self.any_partition: PartitionTuple | None = None
        """One of the partitions that were written to; None before the first row."""

    def write(self, rows: Rows) -> None:
        """Queue rows.

        Raises:
            WritingError: One of them, or an earlier one, cannot be written.
        """
        if not len(rows):
            return
        placed = self._placed(rows)
        self._held.append(placed)
        self._held_bytes += int(placed.sizes.sum()) + len(placed) * RECORD_OVERHEAD
        if self._held_bytes > _HELD_BYTES:
            self._send_held()

    def _placed(self, rows: Rows) -> Rows:
        """Return the rows with a partition each."""
        counts = np.array([len(self._target.partitions(topic)) for topic in rows.topics], np.int64)[rows.topic_of]
        if (beyond := rows.partitions >= counts).any():
            at = int(beyond.argmax())
            topic = rows.topics[rows.topic_of[at]]
            raise WritingError(f"{topic} has no partition {rows.partitions[at]}, only {counts[at]}")
        is_free = rows.partitions == NO_PARTITION
        if not is_free.any():
            return rows
        is_keyless = rows.keys.is_null().to_numpy(zero_copy_only=False)
        # Rows without a key change the partition after each batch.
        turns = np.cumsum(np.where(is_free & is_keyless, rows.sizes + RECORD_OVERHEAD, 0)) // BATCH_BYTES
        spread = (self._spread + turns) % counts
        self._spread += int(turns[-1]) + 1
        by_key = partitions_of(rows.keys, counts)
        chosen = np.where(is_free, np.where(is_keyless, spread, by_key), rows.partitions).astype(np.int32)
        return replace(rows, partitions=chosen)

    def flush(self) -> None:
        """Send all queued rows and wait for the acknowledgements of all records.

        Raises:
            WritingError: Some records cannot be written.
        """
        self._send_held()
        self._delivery.finish()

    def is_answered(self) -> bool:
        """Wait for all responses after a failure, and return whether none is missing."""
        return self._delivery.is_answered()

    def _send_held(self) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        if not held:
            return
        batches = batches_of(joined(held))
        partitions = {(each.topic, each.partition) for each in batches}
        self.any_partition = min(partitions)
        if self._transaction is not None and (new := partitions - self._added):
            self._transaction.add(sorted(new))
            self._added |= new
        self._delivery.send(map(self._sequenced, batches))

    def _sequenced(self, batch: RowBatch) -> SequencedBatch:
        where = (batch.topic, batch.partition)
        sequence = self._sequences.get(where, 0)
        self._sequences[where] = sequence + len(batch) & MAX_SEQUENCE
        return self._encoded(batch, sequence)

    def _encoded(self, batch: RowBatch, sequence: int) -> SequencedBatch:
        identity = self._identity = self._identity or self._target.insist(self._ask_for_identity)
        data = batch.encode(identity, sequence, self._options.codec)
        return SequencedBatch(next(self._numbers), batch, sequence, data)

    def _ask_for_identity(self) -> ProducerStamp:
        return ProducerStamp(*self._target.wire.init_producer_id())

    def _resend(self, failed: Sequence[SequencedBatch]) -> None:
        """Send batches again, one after the other and in parts where one is too large for its topic.

        Raises:
            WritingError: One of them cannot be written.
        """
        for each in failed:
            topic, partition = each.where
            try:
                self._send_alone(topic, partition, each.data)
            except RecordsRejectedError as error:
                if not error.codes & _TOO_LARGE:
                    raise _rejected(topic, error) from error
                self._send_in_halves(each, error)

    def _send_in_halves(self, too_large: SequencedBatch, error: RecordsRejectedError) -> None:
        topic, partition = too_large.where
        rows, start = too_large.batch.rows, too_large.batch.start
        if len(too_large.batch) == 1:
            size = int((lengths(rows.keys[start : start + 1]) + lengths(rows.values[start : start + 1]))[0])
            raise WritingError(
                f"{topic}-{partition}: a record of {size:,} bytes exceeds max.message.bytes of the topic, or "
                f"{_MAX_REQUEST} of the broker"
            ) from error
        first, second = too_large.batch.halves()
        middle = too_large.sequence + len(first) & MAX_SEQUENCE
        self._resend([self._encoded(first, too_large.sequence), self._encoded(second, middle)])

    def _send_alone(self, topic: str, partition: int, data: bytearray) -> None:
        transactional_id = None if self._transaction is None else self._transaction.transactional_id
        target = self._target

        def send() -> None:
            target.check_size(topic, partition, len(data))
            write_batches(
                target.wire, topic, {partition: data}, timeout_s=_TIMEOUT_S, transactional_id=transactional_id
            )

        target.insist(send)


def _rejected(topic: str, error: RecordsRejectedError) -> WritingError:
    parts = []
    for code in sorted(error.codes):
        hint = _HINTS.get(code)
        parts.append(f"{error_name(code)}: {hint}" if hint else error_name(code))
    return WritingError(f"{topic}: records were rejected: {'; '.join(parts)}")
