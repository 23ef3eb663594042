"""Delivery of record batches to the leaders of their partitions, several requests at a time.

The normal case is pipelined: up to five Produce requests per leader are in flight, each with at most one batch per
partition. As soon as a batch fails, or a connection is lost, nothing more is sent until all requests are answered. Then
the failed batches are sent again in their order, one after the other. Sequence numbers make that safe: the
broker recognizes each of the last five batches of a partition.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.connection.connection import wait_for_events
from klamm.kafka_client.data.produce import LAST_IN_TRANSACTION, PartitionRecords, TopicName, produce_body
from klamm.kafka_client.errors import ConnectionLostError
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from klamm.dataframes.batches import RowBatch
    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.data.cluster import Cluster
    from klamm.protocol.types import PartitionTuple

_MAX_IN_FLIGHT: Final = 5
_REQUEST_BYTES: Final = 4 * 1024 * 1024
_LAST_VERSION: Final = 32767
_DONE: Final = frozenset({int(ErrorCode.NONE), int(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)})
_KNOWN_FOR_S: Final = 600.0
"""Time in seconds after an acknowledgement during which the broker surely knows the producer."""


@dataclass(frozen=True, slots=True)
class SequencedBatch:
    """A batch with its place in the sequence of its partition."""

    number: int
    """Place in the order in which all batches of the task were made."""
    batch: RowBatch
    sequence: int
    """Sequence number of the first record."""
    data: bytearray
    """The encoded record batch."""

    @property
    def where(self) -> PartitionTuple:
        """Topic and partition."""
        return self.batch.topic, self.batch.partition


class BatchDelivery:
    """Batches on their way. Confined to one thread; its calls block."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        transactional_id: str | None,
        timeout_s: float,
        resend: Callable[[list[SequencedBatch]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a delivery without batches.

        Args:
            cluster: Target, with the metadata of all topics that are written to.
            transactional_id: Transactional id; None outside of transactions.
            timeout_s: Time in seconds for the response to one request.
            resend: Called with batches whose first try failed, in their order. It returns when all of them are
                acknowledged, and raises an error if one of them cannot be.
            clock: Monotonic clock in seconds.
        """
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._timeout_s = timeout_s
        self._resend = resend
        self._clock = clock
        self._unsent: dict[PartitionTuple, deque[SequencedBatch]] = {}
        self._in_flight: dict[Connection, deque[list[SequencedBatch]]] = {}
        self._known_at: dict[PartitionTuple, float] = {}
        """Time of the last acknowledgement of each partition."""
        self._failed: list[SequencedBatch] = []
        self._has_lost = False
        """Whether a request of batches that failed had no response, so that it may still be appended."""

    def send(self, batches: Iterable[SequencedBatch]) -> None:
        """Send batches. Some of them may still be in flight when this returns."""
        for each in batches:
            self._unsent.setdefault(each.where, deque()).append(each)
        while self._unsent:
            if not self._send_some():
                self._wait()
            if self._failed:
                self._recover()

    def finish(self) -> None:
        """Wait until all batches are acknowledged."""
        while self._in_flight:
            self._wait()
        if self._failed:
            self._recover()

    def is_answered(self) -> bool:
        """Wait for all responses, and return whether none is missing. Nothing is sent again."""
        while self._in_flight:
            self._wait()
        return not self._has_lost

    def _send_some(self) -> bool:
        """Send at most one request to each leader. Return False if none could be sent."""
        busy = {each.where for sent in self._in_flight.values() for some in sent for each in some}
        by_leader: dict[int, list[SequencedBatch]] = defaultdict(list)
        sizes: dict[int, int] = defaultdict(int)
        for where, unsent in self._unsent.items():
            # A broker accepts any first sequence of an unknown producer, so the first batch has to be alone.
            if where in busy and self._clock() - self._known_at.get(where, float("-inf")) > _KNOWN_FOR_S:
                continue
            leader = self._cluster.leader(*where)
            if leader is None:
                self._failed.append(unsent.popleft())
            elif sizes[leader] < _REQUEST_BYTES:
                by_leader[leader].append(unsent[0])
                sizes[leader] += len(unsent[0].data)
        is_sent = [self._send_to(leader, some) for leader, some in by_leader.items()]
        self._unsent = {where: unsent for where, unsent in self._unsent.items() if unsent}
        return any(is_sent) or bool(self._failed)

    def _send_to(self, leader: int, some: list[SequencedBatch]) -> bool:
        try:
            connection = self._cluster.connection(leader)
        except ConnectionLostError:
            self._failed += some
        else:
            if len(self._in_flight.get(connection, ())) >= _MAX_IN_FLIGHT:
                return False
            self._submit(connection, some)
        for each in some:
            self._unsent[each.where].popleft()
        return True

    def _submit(self, connection: Connection, some: list[SequencedBatch]) -> None:
        last = _LAST_VERSION if self._transactional_id is None else LAST_IN_TRANSACTION
        version = connection.version_of(ProduceRequest, at_least=3, at_most=last)
        names = {
            topic: TopicName(topic, self._cluster.topic_id(topic).bytes) for topic in {one.where[0] for one in some}
        }
        records = [PartitionRecords(names[one.where[0]], one.where[1], memoryview(one.data)) for one in some]
        records.sort(key=lambda each: each.topic.name)
        timeout_ms = int(self._timeout_s * 1000)
        body = produce_body(version, records, timeout_ms=timeout_ms, transactional_id=self._transactional_id)
        by_id = {name.topic_id: name.name for name in names.values()}

        def on_response(response: ProduceResponse, _: object) -> None:
            self._answered(connection, some, _errors(response, by_id))

        self._in_flight.setdefault(connection, deque()).append(some)
        connection.submit(ProduceRequest, version, body, ProduceResponse, on_response)
        try:
            connection.write()
        except ConnectionLostError:
            self._lose(connection)

    def _answered(
        self, connection: Connection, some: list[SequencedBatch], errors: Mapping[PartitionTuple, int]
    ) -> None:
        if some not in self._in_flight.get(connection, ()):
            return  # counted as failed already
        self._in_flight[connection].remove(some)
        if not self._in_flight[connection]:
            del self._in_flight[connection]
        now = self._clock()
        for each in some:
            if errors.get(each.where, int(ErrorCode.UNKNOWN_SERVER_ERROR)) in _DONE:
                self._known_at[each.where] = now
            else:
                self._failed.append(each)

    def _wait(self) -> None:
        """Wait for responses. The batches of a connection that is lost have failed."""
        # Requests of others on the same connection may have closed it.
        if closed := [connection for connection in self._in_flight if connection.closed]:
            for connection in closed:
                self._lose(connection)
            return
        oldest = max((connection.oldest_wait_s(self._clock()) for connection in self._in_flight), default=0.0)
        for connection, events in wait_for_events(self._in_flight, max(0.0, self._timeout_s - oldest)):
            try:
                connection.drive(events)
            except ConnectionLostError:
                self._lose(connection)
        for connection in list(self._in_flight):
            if connection.oldest_wait_s(self._clock()) >= self._timeout_s:
                connection.close()
                self._lose(connection)

    def _lose(self, connection: Connection) -> None:
        for some in self._in_flight.pop(connection, ()):
            self._failed += some
            self._has_lost = True

    def _recover(self) -> None:
        """Wait for all other responses, then send what failed again."""
        while self._in_flight:
            self._wait()
        failed, self._failed = self._failed, []
        self._resend(sorted(failed, key=lambda each: each.number))
        self._has_lost = False  # a broker takes a late request for a duplicate
        self._known_at |= dict.fromkeys((each.where for each in failed), self._clock())


def _errors(response: ProduceResponse, names: Mapping[bytes, str]) -> dict[PartitionTuple, int]:
    return {
        (topic.name or names.get(topic.topic_id.bytes, ""), partition.index): partition.error_code
        for topic in response.responses
        for partition in topic.partition_responses
    }
