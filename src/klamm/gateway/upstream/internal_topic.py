"""Internal topics of the gateways on the upstream cluster, with one partition each: creation, reads and writes."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from klamm.admin import ConfigResource, NewTopic, ResourceType
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.data.cluster import EARLIEST, LATEST, Cluster
from klamm.kafka_client.data.records import RecordsRejectedError, read_records, write_batches
from klamm.kafka_client.data.transactions import TransactionManager
from klamm.kafka_client.errors import (
    INVALID_RECORDS_CODES,
    ConnectionLostError,
    DeniedError,
    TransactionLostError,
    api_error,
    is_denial,
)
from klamm.kafka_client.internal_topic import RETENTION, PartitionWriter, check_retention, read_partition
from klamm.protocol.errors import (
    ErrorCode,
    KafkaApiError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    UnsupportedVersionError,
    error_name,
)
from klamm.protocol.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from klamm.admin import AdminClient
    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.kafka_client.data.batches import ProducerStamp
    from klamm.protocol.records import Record
    from klamm.protocol.types import PartitionTuple

logger = logging.getLogger(__name__)

PARTITION: Final = 0
_MAX_REPLICAS: Final = 3
_TIMEOUT_S: Final = 10.0
_POLL_MS: Final = 500
"""Time that the broker waits for a new record. The stop of a gateway waits for this response."""
_READ_MS: Final = 50
_READ_ATTEMPTS: Final = 200
"""Number of fetches in a row without progress, over about 10 seconds."""
_TRANSACTION_TIMEOUT_MS: Final = 10_000
"""Time after which the upstream aborts the transaction of a gateway that died, unless another one writes before."""
_OPEN_TRANSACTION_S: Final = 0.5
_OPEN_PAUSE_S: Final = 0.02
_FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})


class InternalTopicGoneError(Exception):
    """The topic does not exist, or is not the one that was read before. Its image must be loaded again."""


class InternalTopic:
    """One internal topic of the upstream. Thread-confined; calls block for some seconds at most.

    Calls may raise one of ``CLUSTER_ERRORS`` if the upstream does not respond, and may then be repeated.

    Args:
        settings: Settings of connections to the upstream.
        name: Name of the topic.
    """

    def __init__(self, settings: ConnectionSettings, name: str) -> None:
        self.name = name
        self._partition: PartitionTuple = (name, PARTITION)
        self._topic_id: object = None
        self.cluster = Cluster(settings, BufferPool(max_free_bytes=0))

    def first_offset(self) -> int:
        """Return the offset at which the topic begins: above 0 if retention has deleted records.

        Raises:
            InternalTopicGoneError: The topic does not exist.
        """
        self.cluster.topics.pop(self.name, None)
        self._refresh()
        self._topic_id = self.cluster.topic_id(self.name)
        return self._offset(EARLIEST)

    def load(self) -> tuple[list[Record], int]:
        """Return all records, and the position after them.

        Raises:
            InternalTopicGoneError: The topic does not exist.
        """
        return self.read_to_end(self.first_offset())

    def read_all(self) -> Iterator[list[Record]]:
        """Yield all records up to the present end, some at a time.

        Raises:
            InternalTopicGoneError: The topic does not exist.
        """
        for records, _ in self._read_on(self.first_offset()):
            yield records

    def read_to_end(self, position: int) -> tuple[list[Record], int]:
        """Return the records from a position to the present end, and the position after them."""
        all_records: list[Record] = []
        for records, after in self._read_on(position):
            all_records += records
            position = after
        return all_records, position

    def poll(self, position: int) -> tuple[list[Record], int]:
        """Return records from a position on, and the position after them. Waits a moment for the first one.

        Raises:
            InternalTopicGoneError: The topic was deleted, created again, or truncated.
        """
        try:
            records, after = read_records(
                self.cluster, *self._partition, position, timeout_s=_TIMEOUT_S, max_wait_ms=_POLL_MS
            )
        except ConnectionLostError:
            self.cluster.topics.pop(self.name, None)
            self._refresh()
            is_same = self.cluster.topic_id(self.name) == self._topic_id
            if not is_same or not self._offset(EARLIEST) <= position <= self._offset(LATEST):
                raise InternalTopicGoneError(f"{self.name} has no offset {position} any more") from None
            raise
        return [record for record in records if record.offset >= position], after

    def append(self, records: Sequence[Record]) -> None:
        """Write a batch of records.

        Raises:
            InternalTopicGoneError: The topic does not exist.
            RecordsRejectedError: The upstream rejected the batch.
        """
        self._refresh()
        write_batches(self.cluster, self.name, {PARTITION: encode_batch(records)}, timeout_s=_TIMEOUT_S)

    def has_open_transaction(self) -> bool:
        """Return whether a transaction on the topic is open."""
        self._refresh()
        return self._offset(LATEST) != self._offset(LATEST, read_committed=True)

    def close(self) -> None:
        """Close the connections."""
        self.cluster.close()

    def _read_on(self, position: int) -> Iterator[tuple[list[Record], int]]:
        """Read from a position to the present end: yield some records and the position after them, again and again."""
        self._refresh()
        end = self._offset(LATEST)
        fetches = read_partition(
            self.cluster,
            self._partition,
            range(position, end),
            timeout_s=_TIMEOUT_S,
            max_wait_ms=_READ_MS,
            attempts=_READ_ATTEMPTS,
        )
        try:
            for records, after in fetches:
                position = after
                yield records, position
        except ConnectionLostError:
            self.cluster.topics.pop(self.name, None)
            raise
        if position < end:
            raise ConnectionLostError(f"{self.name} cannot be read up to offset {end}: it ends at {position}")

    def _refresh(self) -> None:
        if self.name not in self.cluster.topics:
            self.cluster.refresh([self.name])
        if self.name not in self.cluster.topics:
            raise InternalTopicGoneError(f"{self.name} does not exist")

    def _offset(self, timestamp: int, *, read_committed: bool = False) -> int:
        offsets = self.cluster.list_offsets([self._partition], timestamp, read_committed=read_committed)
        if self._partition not in offsets:
            self.cluster.topics.pop(self.name, None)
            raise ConnectionLostError(f"{self.name} has no leader at present")
        return offsets[self._partition]


class TransactionalTopic:
    """Writer of an internal topic, in transactions that fence the writers of other processes. Thread-confined.

    Its transactions may contain records of further topics.

    Args:
        settings: Settings of connections to the upstream.
        name: Name of the topic, and transactional id of all its writers.
    """

    def __init__(self, settings: ConnectionSettings, name: str) -> None:
        self._name = name
        self._topic = InternalTopic(settings, name)
        self._transactions = TransactionManager(self._topic.cluster, name)
        self._stamp: ProducerStamp | None = None
        self._sequences: Counter[str] = Counter()
        """Number of records written by the present epoch, by topic."""

    def take_over(self, position: int) -> tuple[list[Record], int]:
        """Fence all other writers. Return what they committed after a position, and the position after it.

        A transaction that is open has a moment to end, so that gateways do not abort each other's changes.
        """
        deadline = time.monotonic() + _OPEN_TRANSACTION_S
        while self._topic.has_open_transaction() and time.monotonic() < deadline:
            time.sleep(_OPEN_PAUSE_S)
        self._stamp = self._transactions.init(timeout_ms=_TRANSACTION_TIMEOUT_MS)
        self._sequences.clear()
        return self._topic.read_to_end(position)

    def commit(self, records: Mapping[str, Sequence[Record]]) -> None:
        """Write records in one transaction.

        The outcome after an error is known by ``take_over`` only, except after records that are invalid, such as too
        large ones: the transaction is aborted then, and the next one may follow.

        Args:
            records: Records by topic.

        Raises:
            TransactionLostError: Another writer has fenced this one.
            InternalTopicGoneError: A topic does not exist.
            DeniedError: The principal lacks a required ACL.
            RecordsRejectedError: The upstream rejected records. See ``final_code``.
        """
        stamp = self._stamp
        if stamp is None:
            raise ConnectionLostError("take_over was not called")
        if rejected := self._transactions.add(stamp, [(topic, PARTITION) for topic in records]):
            gone = [topic for (topic, _), code in rejected.items() if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
            if gone:
                raise InternalTopicGoneError(f"{', '.join(gone)} does not exist")
            reasons = (f"{topic} ({error_name(code)})" for (topic, _), code in rejected.items())
            is_denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED in rejected.values()
            kind = DeniedError if is_denied else ConnectionLostError
            raise kind(f"Topics cannot be written: {', '.join(reasons)}")
        try:
            for topic, some in records.items():
                self._write(topic, some, stamp)
        except RecordsRejectedError as error:
            if error.codes & INVALID_RECORDS_CODES:
                self._transactions.abort(stamp)
            raise
        self._transactions.commit(stamp)

    def _write(self, topic: str, records: Sequence[Record], stamp: ProducerStamp) -> None:
        def encode(_partition: int, some: Sequence[Record]) -> bytearray:
            return encode_batch(
                some,
                producer_id=stamp.producer_id,
                producer_epoch=stamp.producer_epoch,
                base_sequence=self._sequences[topic],
                is_transactional=True,
            )

        def count(_partition: int, written: int) -> None:
            self._sequences[topic] += written

        writer = PartitionWriter({PARTITION: records}, encode, count)
        try:
            writer.write(self._topic.cluster, topic, timeout_s=_TIMEOUT_S, transactional_id=self._name)
        except RecordsRejectedError as error:
            if error.codes & _FENCED:
                raise TransactionLostError(str(error)) from error
            raise

    def close(self) -> None:
        """Close the connections."""
        self._topic.close()


def final_code(error: Exception) -> ErrorCode | None:
    """Return the error code for a client whose records cannot be written. None: a later attempt may succeed.

    Args:
        error: Error of a write to an internal topic, or of its creation.
    """
    if isinstance(error, RecordsRejectedError) and (invalid := error.codes & INVALID_RECORDS_CODES):
        return ErrorCode(min(invalid))
    is_denied = isinstance(error, RecordsRejectedError) and ErrorCode.TOPIC_AUTHORIZATION_FAILED in error.codes
    if is_denied or is_denial(error) or isinstance(error, DeniedError | PolicyViolationError | UnsupportedVersionError):
        return ErrorCode.UNKNOWN_SERVER_ERROR  # the gateway lacks the right, not the client
    return None


async def create_internal_topics(
    admin: AdminClient, topics: Mapping[str, Mapping[str, str]], *, validate_only: bool = False
) -> None:
    """Create the internal topics that do not exist, and check that the others keep their records.

    The upstream may have created a topic automatically, with a retention of some days. A topic whose own configs limit
    its records is not checked.

    Args:
        admin: Admin client with the gateway's own credentials.
        topics: Configs of each topic.
        validate_only: Whether the cluster only checks that they could be created.

    Raises:
        KafkaApiError: A topic does not exist and cannot be created, or it exists and its retention removes records.
        ConnectionError: The upstream does not respond.
    """
    missing = topics.keys() - await admin.list_topics(include_internal=True)
    await _check_retention(admin, {name: topics[name] for name in topics if name not in missing})
    if not missing:
        return
    replicas = min(len((await admin.describe_cluster()).nodes), _MAX_REPLICAS)
    created = admin.create_topics(
        [NewTopic(name, 1, replicas, configs=dict(topics[name])) for name in missing], validate_only=validate_only
    )
    for name, outcome in created.values().items():
        try:
            await outcome
        except TopicAlreadyExistsError:  # another gateway was faster
            continue
        except KafkaApiError as error:
            advice = ". Let the policies allow it" if error.error_code is ErrorCode.POLICY_VIOLATION else ""
            raise api_error(error.error_code, f"{name} cannot be created: {error}{advice}") from error
        if not validate_only:
            logger.info("Internal topic %s was created", name)


async def _check_retention(admin: AdminClient, topics: Mapping[str, Mapping[str, str]]) -> None:
    """Check that existing topics keep their records, as far as the principal may describe their configs.

    Raises:
        KafkaApiError: The retention of a topic removes records, or its configs cannot be described at present.
    """
    resources = {
        ConfigResource(ResourceType.TOPIC, name): RETENTION
        for name, wanted in topics.items()
        if wanted["cleanup.policy"] == "compact" or wanted["retention.bytes"] == "-1"
    }
    for resource, outcome in admin.describe_configs(resources).values().items() if resources else ():
        try:
            configs = await outcome
        except KafkaApiError as error:
            if not is_denial(error):
                raise
            logger.warning("Whether %s keeps its records cannot be read: %s", resource.name, error)
        else:
            present = {key: entry.value for key, entry in configs.items()}
            check_retention(resource.name, present, topics[resource.name])
