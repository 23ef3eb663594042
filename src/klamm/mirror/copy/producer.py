"""Producing half of a copier: sends queued batches, many requests in flight, one batch per partition in each request.

**Lanes.** A broker processes the requests of one connection one after the other. With two connections ("lanes") to each
leader, it receives the request of one lane while it appends that of the other.

======================================  ==============================================================================
Partition                               Lane
======================================  ==============================================================================
average batch of 64 KiB or more         partition number modulo 2
smaller batches                         0: one request for many of them costs less than two requests
no batch acknowledged in the open       0, whatever the batch size (see below)
transaction yet
any batch is in flight                  unchanged: changing lanes could reorder the batches
======================================  ==============================================================================

For the first batch of a partition in a transaction, the leader asks the transaction coordinator whether the partition
was added (KIP-890). It has one such request in flight per transactional id. If the other lane brought a second
unverified partition, the leader would reject the batch that waits and each transaction would lose time to a retry.

**Answers per partition.**

==========================================  ==========================================================================
Answer                                      Effect
==========================================  ==========================================================================
NONE, DUPLICATE_SEQUENCE_NUMBER             The batch is acknowledged.
MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE    The batch is split once nothing is in flight. A single record that is too
                                            large stops the partition.
retriable code, no answer, broken           The batch is resent with the same sequence after a backoff. If the leader
connection                                  may have moved, the metadata are refreshed first.
any error behind a failed batch             As above: the error is a consequence of the first failure.
producer state lost or fenced               At least once: resent with a new producer id once nothing is in flight.
                                            Exactly once: ``TransactionLostError``.
any other error                             The partition stops.
any error of a STOPPED partition            The batch is dropped. If the target may have appended it at any attempt, the
                                            transaction is lost.
==========================================  ==========================================================================
"""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.data.batches import ProducerStamp
from klamm.kafka_client.data.produce import (
    LAST_IN_TRANSACTION,
    TOPIC_IDS_FROM,
    PartitionRecords,
    TopicName,
    produce_body,
)
from klamm.kafka_client.errors import (
    RETRIABLE_PRODUCE_CODES,
    STALE_METADATA_CODES,
    ConnectionLostError,
    TransactionLostError,
)
from klamm.mirror.copy.partition import PartitionCopy, TopicRefreshes, stop_and_log
from klamm.mirror.progress.partition_progress import CopyState
from klamm.protocol.errors import CorruptBatchError, ErrorCode, error_name
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.data.cluster import Cluster
    from klamm.mirror.copy.batch import Outgoing
    from klamm.mirror.copy.partition import PartitionId
    from klamm.mirror.copy.settings import CopySettings
    from klamm.mirror.copy.transactions import ShardTransactions

logger = logging.getLogger(__name__)

_LANES: Final = 2
"""Connections per leader. With more, each request holds fewer batches, which costs more than it gains."""
_SPREAD_FROM: Final = 64 * 1024
"""Average batch size in bytes from which on a few batches are worth a request."""
_MAX_REQUESTS: Final = 8
"""Most requests in flight on one lane."""
_MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024
_MIN_IN_FLIGHT_BYTES: Final = 256 * 1024
_MAX_IN_FLIGHT_BYTES: Final = 128 * 1024 * 1024
_GROWTH: Final = 1.05
_LAST_VERSION: Final = 32767

RETRIABLE: Final = RETRIABLE_PRODUCE_CODES | {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}
"""Error codes after which a batch is sent again. A missing ACL may be granted."""
_IN_DOUBT: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Error codes after which the leader may have appended the batch."""
_TOPIC_GONE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""Error codes after which the remote topic may be another one: it was deleted and created again."""
_PRODUCER_LOST: Final = frozenset(
    {
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
"""Error codes after which a batch is split."""

_Lane = tuple[int, int]
"""Node id of a leader and index of a connection to it."""
_Key = tuple[str | bytes, int]
_Sent = dict[_Key, tuple[PartitionCopy, "Outgoing"]]
"""Batches of one request, by topic (name or id, as in the response) and partition number."""


class InFlightLimit:
    """Limit of the bytes in flight in transactions. It adapts to the speed of the link to the target.

    All batches in flight have to be acknowledged before ``transaction.timeout.ms`` has passed. How many bytes a slow
    link carries in that time is unknown. If each transaction sent more, each one would be lost.
    """

    def __init__(self) -> None:
        self.max_bytes: float = _MAX_IN_FLIGHT_BYTES
        """A connection without a request in flight may send one batch nevertheless."""
        self._reached_bytes = 0

    def reach(self, in_flight_bytes: int) -> None:
        """Record the bytes in flight after a request was sent."""
        self._reached_bytes = max(self._reached_bytes, in_flight_bytes)

    def shrink(self) -> None:
        """Allow half of the bytes that were in flight, after a transaction whose batches were not acknowledged."""
        self.max_bytes = max(_MIN_IN_FLIGHT_BYTES, min(self.max_bytes, self._reached_bytes) / 2)
        self._reached_bytes = 0

    def grow(self) -> None:
        """Raise the limit a little after a commit."""
        self._reached_bytes = 0
        self.max_bytes = min(_MAX_IN_FLIGHT_BYTES, self.max_bytes * _GROWTH)


class CopyProducer:
    """Sender of the batches that a copier has queued. Confined to the copier's thread."""

    def __init__(
        self,
        settings: CopySettings,
        target: Cluster,
        copies: Mapping[tuple[str, int], PartitionCopy],
        active: dict[tuple[str, int], PartitionCopy],
        clock: Callable[[], float],
        *,
        on_acknowledged: Callable[[PartitionId, Outgoing, int], None],
        transactions: ShardTransactions | None = None,
        limit: InFlightLimit | None = None,
    ) -> None:
        """Create a producer without requests in flight.

        Args:
            settings: Settings of the flow.
            target: Cluster to produce to.
            copies: Partitions by source topic and partition number. Owned by the copier.
            active: Partitions with batches to send or in flight. Shared with the fetcher; the producer removes idle
                partitions.
            clock: Monotonic clock in seconds.
            on_acknowledged: Called for each acknowledged batch with the target offset of its first record. -1: unknown.
                Not used in transactions.
            transactions: Transactions of the shard, which are notified instead. None: at least once.
            limit: Limit of the bytes in flight in transactions. The copier adapts it. None: the largest one.
        """
        self._transactions = transactions
        self._limit = limit or InFlightLimit()
        self._settings = settings
        self._target = target
        self._copies = copies
        self._active = active
        self._clock = clock
        self._on_acknowledged = on_acknowledged
        self._in_flight: dict[_Lane, tuple[Connection, deque[tuple[_Sent, int]]]] = {}
        """Requests without a response by lane, each with its size in bytes."""
        self._bytes_in_flight = 0
        self._fresh: ProducerStamp | None = None
        self._turn = 0
        self._refreshes = TopicRefreshes()

    @property
    def busy(self) -> bool:
        """Return whether any request is in flight."""
        return any(requests for _, requests in self._in_flight.values())

    def send(self, now: float) -> None:
        """Send the pending batches of all partitions that may send.

        Raises:
            ConnectionLostError: The target cluster is unavailable.
        """
        for key in [key for key, copy in self._active.items() if copy.is_idle]:
            del self._active[key]
        ready = [copy for copy in self._active.values() if self._can_send(copy, now)]
        if not ready:
            return
        self._refresh(now)
        by_lane: dict[_Lane, list[PartitionCopy]] = {}
        for copy in ready:
            leader = self._target.leader(copy.partition_id.remote_topic, copy.partition_id.partition)
            if leader is None:
                self._refreshes.want(copy.partition_id.remote_topic, copy.target_failed("no leader on the target", now))
            else:
                by_lane.setdefault((leader, self._lane(copy)), []).append(copy)
        for lane, copies in by_lane.items():
            try:
                self._send_on(lane, copies, now)
            except ConnectionLostError as error:
                # Only the partitions of this lane wait. Their leaders may have moved. The attempt to connect may have
                # blocked, so they wait from now on.
                failed_at = self._clock()
                for copy in copies:
                    retry_at = copy.target_failed(f"target: {error}", failed_at)
                    self._refreshes.want(copy.partition_id.remote_topic, retry_at)

    def _can_send(self, copy: PartitionCopy, now: float) -> bool:
        if self._transactions is None or not copy.can_send(now):
            return copy.can_send(now)
        # A partition that should change lanes does so once nothing is in flight.
        may_follow = not copy.in_flight or copy.lane == _wanted_lane(copy) or self._transactions.has_begun(copy)
        return may_follow and self._transactions.admits(copy)

    def _lane(self, copy: PartitionCopy) -> int:
        """Return the lane of a partition, after moving it to the wanted one if nothing is in flight."""
        if not copy.in_flight:
            is_verified = self._transactions is None or self._transactions.has_begun(copy)
            copy.lane = _wanted_lane(copy) if is_verified else 0
        return copy.lane

    def _refresh(self, now: float) -> None:
        if topics := self._refreshes.due((copy.partition_id.remote_topic for copy in self._copies.values()), now):
            self._target.refresh(topics)
            self._refreshes.done(topics, now)

    def _send_on(self, lane: _Lane, copies: list[PartitionCopy], now: float) -> None:
        connection = self._target.connection(*lane)
        used, requests = self._in_flight.setdefault(lane, (connection, deque()))
        if used is not connection:
            return  # requests in flight on the broken connection have to be requeued first (``sweep``)
        while (
            len(requests) < _MAX_REQUESTS
            and not (requests and self._room_bytes <= 0)
            and (ready := [copy for copy in copies if self._can_send(copy, now)])
        ):
            self._turn += 1
            self._send_one(connection, requests, ready)
        connection.write()

    @property
    def _room_bytes(self) -> float:
        """Bytes that may be sent in addition to those in flight. A lane without a request may send one batch."""
        return math.inf if self._transactions is None else self._limit.max_bytes - self._bytes_in_flight

    def _send_one(self, connection: Connection, requests: deque[tuple[_Sent, int]], ready: list[PartitionCopy]) -> None:
        records = []
        batches = []
        size = 0
        max_bytes = min(_MAX_REQUEST_BYTES, self._room_bytes)
        for at in range(len(ready)):
            copy = ready[(self._turn + at) % len(ready)]
            if size and size + len(copy.pending[0].view) > max_bytes:
                continue
            outgoing = copy.next_batch(self._identity())
            size += len(outgoing.view)
            batches.append((copy, outgoing))
            records.append(self._records(copy, outgoing))
        with_ids = all(entry.topic.topic_id != ZERO_UUID.bytes for entry in records)
        last = _LAST_VERSION if with_ids else TOPIC_IDS_FROM - 1
        if self._transactions is not None:
            last = LAST_IN_TRANSACTION
        version = connection.version_of(ProduceRequest, at_least=3, at_most=last)
        by_id = version >= TOPIC_IDS_FROM
        sent: _Sent = {
            (entry.topic.topic_id if by_id else entry.topic.name, entry.partition): batch
            for entry, batch in zip(records, batches, strict=True)
        }
        body = produce_body(
            version,
            records,
            timeout_ms=int(self._settings.target.request_timeout_s * 1000),
            transactional_id=None if self._transactions is None else self._transactions.transactional_id,
        )
        requests.append((sent, size))
        self._bytes_in_flight += size
        self._limit.reach(self._bytes_in_flight)

        def on_response(response: ProduceResponse, _: object) -> None:
            requests.remove((sent, size))
            self._bytes_in_flight -= size
            self._answered(sent, response, by_id=by_id)

        connection.submit(ProduceRequest, version, body, ProduceResponse, on_response)

    def _identity(self) -> ProducerStamp:
        if self._transactions is not None:
            return self._transactions.identity
        if self._fresh is None:
            self._fresh = ProducerStamp(*self._target.init_producer_id())
        return self._fresh

    def renew_identity(self) -> None:
        """Use another producer id, or another epoch of the shard, for partitions that start from now on.

        A new copy of a partition numbers its batches from 0 again. With the same identity, the target could take them
        for repeated ones: it would acknowledge them and append nothing. Call it while no transaction is open.
        """
        self._fresh = None
        if self._transactions is not None:
            self._transactions.renew_identity()

    def _records(self, copy: PartitionCopy, outgoing: Outgoing) -> PartitionRecords:
        name = copy.partition_id.remote_topic
        topic = TopicName(name, self._target.topic_id(name).bytes)
        return PartitionRecords(topic, copy.partition_id.partition, outgoing.view)

    def _answered(self, sent: _Sent, response: ProduceResponse, *, by_id: bool) -> None:
        now = self._clock()
        answers: dict[_Key, ProduceResponse.PartitionProduceResponse] = {
            (topic.topic_id.bytes if by_id else topic.name, partition.index): partition
            for topic in response.responses
            for partition in topic.partition_responses
        }
        for key, (copy, outgoing) in sent.items():
            answer = answers.get(key)
            if answer is None:
                self._retry(copy, outgoing, "the target answered without this partition", now, moved=True)
            elif answer.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                is_new = answer.error_code == ErrorCode.NONE
                self._note(copy, outgoing, answer.base_offset if is_new else -1)
                copy.acknowledge(outgoing)
            else:
                self._rejected(copy, outgoing, answer, now)

    def _note(self, copy: PartitionCopy, outgoing: Outgoing, base_offset: int) -> None:
        if self._transactions is None:
            self._on_acknowledged(copy.partition_id, outgoing, base_offset)
        else:
            self._transactions.acknowledged(copy, outgoing, base_offset)

    def _rejected(
        self, copy: PartitionCopy, outgoing: Outgoing, answer: ProduceResponse.PartitionProduceResponse, now: float
    ) -> None:
        code = answer.error_code
        first = not copy.retrying
        in_doubt = code in _IN_DOUBT
        detail = f": {answer.error_message}" if answer.error_message else ""
        reason = f"the target rejected records: {error_name(code)}{detail}"
        if code in _TOPIC_GONE:
            copy.doubt_producer()
        if copy.state is CopyState.STOPPED:
            copy.abandon(outgoing, in_doubt=in_doubt)
        elif code in TOO_LARGE and first:
            copy.put_back(outgoing, reason, retry_at=0.0, in_doubt=False)
            copy.too_large = True
        elif code in RETRIABLE or not first:
            self._retry(copy, outgoing, reason, now, moved=code in STALE_METADATA_CODES, in_doubt=in_doubt)
        elif code in _PRODUCER_LOST and self._transactions is not None:
            raise TransactionLostError(reason)
        elif code in _PRODUCER_LOST:
            self._retry(copy, outgoing, reason, now, moved=False, in_doubt=in_doubt)
            copy.producer_lost = True
        else:
            copy.put_back(outgoing, reason, retry_at=now, in_doubt=in_doubt)
            stop_and_log(copy, self._settings.flow, reason)
        if not copy.in_flight:
            self._mend(copy)

    def _mend(self, copy: PartitionCopy) -> None:
        """Renew the producer id or split the first batch if a rejection requires it. Nothing is in flight."""
        if copy.producer_lost:
            copy.producer_lost = False
            self._fresh = None
            copy.renew_producer()
        if copy.too_large:
            copy.too_large = False
            if copy.pending:  # the partition may have been stopped since
                self._split(copy)

    def _split(self, copy: PartitionCopy) -> None:
        """Split the first batch, which is too large for the target, or stop the partition."""
        offset = copy.pending[0].next_offset - 1
        try:
            reason = "" if copy.split_first() else f"the record at offset {offset}"
        except CorruptBatchError as error:
            reason = f"the batch that ends at offset {offset} cannot be split ({error}), and"
        if reason:
            stop_and_log(copy, self._settings.flow, f"{reason} is larger than the target's max.message.bytes")

    def _retry(
        self, copy: PartitionCopy, outgoing: Outgoing, reason: str, now: float, *, moved: bool, in_doubt: bool = True
    ) -> None:
        """Requeue a failed batch.

        Args:
            copy: Partition of the batch.
            outgoing: Failed batch.
            reason: Cause, shown in the status.
            now: Time of the copier's clock in seconds.
            moved: Whether the leader may have moved, so that the metadata are refreshed before the retry.
            in_doubt: Whether the target may have appended the batch.
        """
        retry_at = copy.target_failed(reason, now, outgoing, in_doubt=in_doubt)
        if moved:
            self._refreshes.want(copy.partition_id.remote_topic, retry_at)

    def sweep(self, now: float) -> None:
        """Requeue the requests of broken connections, and close those without progress (``request.timeout.ms``)."""
        limit_s = self._settings.target.max_silence_s
        for lane, (connection, requests) in list(self._in_flight.items()):
            reason = "the connection to the target broke"
            if not connection.closed and connection.silent_s(now) > limit_s:
                connection.close()
                reason = f"no byte to or from node {lane[0]} of the target for {limit_s:g} s"
                logger.warning("%s: %s; the records are sent again", self._settings.flow, reason)
            if not connection.closed:
                continue
            del self._in_flight[lane]
            for sent, size in requests:
                self._bytes_in_flight -= size
                for copy, outgoing in sent.values():
                    self._retry(copy, outgoing, reason, now, moved=True)
                    if not copy.in_flight:
                        self._mend(copy)


def _wanted_lane(copy: PartitionCopy) -> int:
    """Return the lane that suits the batch size of a partition."""
    batch_bytes = copy.batch_bytes or len(copy.pending[0].view)
    return copy.partition_id.partition % _LANES if batch_bytes >= _SPREAD_FROM else 0
