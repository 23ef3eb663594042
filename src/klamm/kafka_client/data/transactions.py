"""Client for the transaction coordinator of one transactional id, and for offsets committed in a transaction.

It uses the protocol that every Kafka from 0.11 on supports: AddPartitionsToTxn adds partitions, and the producer epoch
stays the same from one transaction to the next. Under the newer rules (KIP-890, ``transaction.version`` 2), each
transaction gets its own epoch. A request by the newer rules within an older transaction would succeed but write
nothing, so all versions here end before those rules.

Error codes of a coordinator and the reaction to them:

- NONE: The call is done.
- COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: The coordinator is looked up again and the request repeated.
- Every other code of ``RETRIABLE_CODES``, such as CONCURRENT_TRANSACTIONS (the markers of the previous transaction are
  not written yet) and COORDINATOR_LOAD_IN_PROGRESS: The request is repeated after a short pause.
- UNKNOWN_TOPIC_OR_PARTITION of TxnOffsetCommit: As above, because the broker may not know a new topic yet.
- Missing ACLs: ``DeniedError``.
- Any other code, such as INVALID_PRODUCER_EPOCH after a newer producer has fenced this one: ``TransactionLostError``.

Repeating stops after some seconds with ``ConnectionLostError``.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.kafka_client.connection.connection import wait_for_events
from klamm.kafka_client.data.batches import ProducerStamp
from klamm.kafka_client.errors import RETRIABLE_CODES, ConnectionLostError, DeniedError, TransactionLostError
from klamm.protocol.codec import encode
from klamm.protocol.errors import ErrorCode, UnsupportedVersionError, error_name
from klamm.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from klamm.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from klamm.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from klamm.protocol.types import CoordinatorType
from klamm.retries import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.data.cluster import Cluster
    from klamm.protocol.types import PartitionTuple

_FIRST_PAUSE_S: Final = 0.002
_LAST_PAUSE_S: Final = 0.05
_ELSEWHERE: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
_DENIED: Final = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_TIMEOUT_S: Final = 10.0
_PATIENCE_S: Final = 3.0
_LAST_INIT: Final = 4
_CURRENT_SINCE: Final = 3
"""First version of InitProducerId that carries the current producer id and epoch."""
_INIT_LANES: Final = (0, 8, 9, 10, 11, 12, 13, 14)
"""Lanes on which several producer ids are requested at the same time. A broker handles the requests of one connection
one after the other, and answers each after its replication.
"""
_IDS_PER_LANE: Final = 16
"""Number of transactional ids from which on another connection is opened."""
_LAST_ADD: Final = 3
_LAST_END: Final = 4

_OF_A_PARTITION: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.OPERATION_NOT_ATTEMPTED}
)
_RETRIABLE_OFFSET_CODES: Final = RETRIABLE_CODES | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
"""Retriable codes of TxnOffsetCommit (Kafka's ``TxnOffsetCommitHandler``)."""
_OFFSETS_PATIENCE_S: Final = 30.0
_REQUIRE_STABLE_SINCE: Final = 7
_LAST_FETCH: Final = 7
"""Highest version in use. From version 8 on, a request names several groups."""
_LAST_COMMIT: Final = 4
"""Highest version in use. From version 5 on, TxnOffsetCommit adds the group to the transaction by itself (KIP-890),
which must not be mixed with AddOffsetsToTxn.
"""


class CoordinatorCalls:
    """Calls to one coordinator. Thread-confined; they block.

    Args:
        cluster: The cluster.
        key: Group id or transactional id.
        kind: Kind of the key.
        patience_s: Seconds after which a request is no longer repeated.
    """

    def __init__(self, cluster: Cluster, key: str, kind: CoordinatorType, *, patience_s: float) -> None:
        self._cluster = cluster
        self._key = key
        self._kind = kind
        self._patience_s = patience_s
        self._node: int | None = None

    def until_answered(
        self,
        ask: Callable[[Connection], Iterable[int]],
        what: str,
        *,
        retriable: frozenset[ErrorCode] = RETRIABLE_CODES,
    ) -> None:
        """Repeat a request until the coordinator returns a final result.

        Args:
            ask: Function that sends the request on a connection and returns the error codes of the response.
            what: Name of the request, for messages.
            retriable: Error codes after which the request is repeated.

        Raises:
            DeniedError: The principal lacks a required ACL.
            TransactionLostError: The coordinator rejects the request for good.
            ConnectionLostError: The coordinator cannot be reached, or not before the time limit.
        """
        deadline = time.monotonic() + self._patience_s
        backoff = Backoff(_FIRST_PAUSE_S, _LAST_PAUSE_S)
        while codes := self._ask_once(ask):
            key = f"group {self._key}" if self._kind is CoordinatorType.GROUP else self._key
            text = f"{what} for {key}: {', '.join(map(error_name, sorted(codes)))}"
            if codes & _DENIED:
                raise DeniedError(text)
            if codes - retriable:
                raise TransactionLostError(text)
            if codes & _ELSEWHERE:
                self._node = None
            if time.monotonic() >= deadline:
                is_marking = ErrorCode.CONCURRENT_TRANSACTIONS in codes
                why = " (the markers of the previous transaction are not written yet)" if is_marking else ""
                raise ConnectionLostError(text + why)
            time.sleep(backoff.next_s())

    def _ask_once(self, ask: Callable[[Connection], Iterable[int]]) -> set[int]:
        """Send the request once and return the error codes, without NONE."""
        if self._node is None:
            self._node = self._cluster.coordinator(self._key, self._kind)
        try:
            return set(ask(self._cluster.connection(self._node))) - {int(ErrorCode.NONE)}
        except ConnectionLostError:
            self._node = None
            raise


class TransactionManager:
    """Calls for one transactional id. Thread-confined; they block for a few seconds at most.

    Every call may raise ``ConnectionLostError`` if no coordinator responds at present, and may then be retried.
    """

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self._transactional_id = transactional_id
        self._calls = CoordinatorCalls(cluster, transactional_id, CoordinatorType.TRANSACTION, patience_s=_PATIENCE_S)

    def init(self, *, timeout_ms: int) -> ProducerStamp:
        """Request a new producer epoch. This fences the previous producer of the id and ends its open transaction.

        Args:
            timeout_ms: Time in milliseconds after which the coordinator aborts an unfinished transaction.
        """
        answers: list[InitProducerIdResponse] = []

        def ask(connection: Connection) -> list[int]:
            request, version = _init_request(connection, self._transactional_id, None, timeout_ms)
            answer = connection.call(request, InitProducerIdResponse, version=version, timeout_s=_TIMEOUT_S)
            answers.append(answer)
            return [answer.error_code]

        self._calls.until_answered(ask, "InitProducerId")
        return ProducerStamp(answers[-1].producer_id, answers[-1].producer_epoch, is_transactional=True)

    def add(self, identity: ProducerStamp, partitions: Iterable[PartitionTuple]) -> dict[PartitionTuple, int]:
        """Add partitions to the open transaction, or open one with them.

        Returns:
            Error codes of the partitions that cannot be added now. If there are any, no partition was added.

        Raises:
            TransactionLostError: The producer epoch is fenced.
        """
        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)
        topic_class = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=[topic_class(name=name, partitions=numbers) for name, numbers in by_topic.items()],
        )
        rejected: dict[PartitionTuple, int] = {}

        def ask(connection: Connection) -> list[int]:
            version = connection.version_of(AddPartitionsToTxnRequest, at_most=_LAST_ADD)
            answer = connection.call(request, AddPartitionsToTxnResponse, version=version, timeout_s=_TIMEOUT_S)
            rejected.clear()
            rejected.update(_rejected(answer))
            return [code for code in rejected.values() if code not in _OF_A_PARTITION]

        self._calls.until_answered(ask, "AddPartitionsToTxn")
        return rejected

    def commit(self, identity: ProducerStamp) -> None:
        """Commit the open transaction. Repeating the call after a lost response is safe.

        Raises:
            TransactionLostError: The producer epoch is fenced, or there is no such transaction.
        """
        self._end(identity, committed=True)

    def abort(self, identity: ProducerStamp) -> None:
        """Abort the open transaction.

        Raises:
            TransactionLostError: The producer epoch is fenced, or there is no such transaction.
        """
        self._end(identity, committed=False)

    def _end(self, identity: ProducerStamp, *, committed: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            committed=committed,
        )

        def ask(connection: Connection) -> list[int]:
            version = connection.version_of(EndTxnRequest, at_most=_LAST_END)
            return [connection.call(request, EndTxnResponse, version=version, timeout_s=_TIMEOUT_S).error_code]

        self._calls.until_answered(ask, "EndTxn")


InitResult = ProducerStamp | ConnectionLostError | TransactionLostError
"""New producer id and epoch of a transactional id, or why there is none."""


def init_all(
    cluster: Cluster, current: Mapping[str, ProducerStamp | None], *, timeout_ms: int
) -> dict[str, InitResult]:
    """Request new producer epochs of several transactional ids, as ``TransactionManager.init`` does for one.

    Args:
        cluster: The cluster.
        current: Producer id and epoch of this client by transactional id, which are raised only if they are still the
            latest ones (KIP-360). None: they are raised, whichever producer has them.
        timeout_ms: Time in milliseconds after which the coordinator aborts an unfinished transaction.

    Returns:
        The result by transactional id. Ids without a response within 10 s have an error.

    Raises:
        ConnectionLostError: No broker responds.
    """
    results: dict[str, InitResult] = {}
    deadline = time.monotonic() + _PATIENCE_S
    backoff = Backoff(_FIRST_PAUSE_S, _LAST_PAUSE_S)
    left = dict(current)
    while left:
        results |= _InitRequests(cluster, left, timeout_ms).results()
        left = {key: stamp for key, stamp in left.items() if isinstance(results[key], _RepeatableError)}
        if time.monotonic() >= deadline:
            break
        if left:
            time.sleep(backoff.next_s())
    return results


class _RepeatableError(ConnectionLostError):
    """The coordinator accepts the request later."""


class _InitRequests:
    """InitProducerId requests for several transactional ids, on several connections. Used once."""

    def __init__(self, cluster: Cluster, current: Mapping[str, ProducerStamp | None], timeout_ms: int) -> None:
        self._cluster = cluster
        self._current = current
        self._timeout_ms = timeout_ms
        self._results: dict[str, InitResult] = {}
        self._sent: dict[str, Connection] = {}
        """Connections of the requests without a response, by transactional id."""

    def results(self) -> dict[str, InitResult]:
        """Send all requests, and return the result of each transactional id."""
        by_node: dict[int, list[str]] = {}
        for key, node in self._coordinators().items():
            if isinstance(node, int):
                by_node.setdefault(node, []).append(key)
            else:
                self._results[key] = node
        for node, keys in by_node.items():
            lanes = _INIT_LANES[: 1 + len(keys) // _IDS_PER_LANE]
            try:
                for at, lane in enumerate(lanes):
                    self._submit(node, lane, keys[at :: len(lanes)])
            except (ConnectionLostError, UnsupportedVersionError) as error:  # the other lanes lead to the same node
                self._lose(keys, error)
        self._wait()
        for node in by_node:
            for lane in _INIT_LANES[1:]:
                self._cluster.disconnect(node, lane)
        unknown = _RepeatableError("InitProducerId: the coordinator of the transactional id is not known yet")
        return {key: self._results.get(key, unknown) for key in self._current}

    def _coordinators(self) -> Mapping[str, int | ConnectionLostError]:
        try:
            return self._cluster.coordinators(list(self._current), CoordinatorType.TRANSACTION)
        except UnsupportedVersionError:
            return {key: self._cluster.coordinator(key, CoordinatorType.TRANSACTION) for key in self._current}

    def _lose(self, keys: Iterable[str], error: Exception) -> None:
        lost = ConnectionLostError(f"InitProducerId: {error}")
        for key in keys:
            self._results.setdefault(key, lost)
            self._sent.pop(key, None)

    def _submit(self, node: int, lane: int, keys: Sequence[str]) -> None:
        connection = self._cluster.connection(node, lane)
        for key in keys:
            request, version = _init_request(connection, key, self._current[key], self._timeout_ms)
            connection.submit(
                InitProducerIdRequest,
                version,
                [encode(request, version)],
                InitProducerIdResponse,
                functools.partial(self._answered, key),
            )
            self._sent[key] = connection
        connection.write()

    def _answered(self, key: str, answer: InitProducerIdResponse, _: object) -> None:
        self._sent.pop(key, None)
        code, text = answer.error_code, f"InitProducerId for {key}: {error_name(answer.error_code)}"
        if code == ErrorCode.NONE:
            self._results[key] = ProducerStamp(answer.producer_id, answer.producer_epoch, is_transactional=True)
        elif code in _DENIED:
            self._results[key] = DeniedError(text)
        else:
            self._results[key] = _RepeatableError(text) if code in RETRIABLE_CODES else TransactionLostError(text)

    def _wait(self) -> None:
        """Drive all connections together until each request has a response, at most 10 s."""
        deadline = time.monotonic() + _TIMEOUT_S
        while self._sent and (left_s := deadline - time.monotonic()) > 0:
            for connection, events in wait_for_events(self._sent.values(), left_s):
                try:
                    connection.drive(events)
                except ConnectionLostError as error:
                    self._lose([key for key, sent in self._sent.items() if sent is connection], error)
        for connection in set(self._sent.values()):
            connection.close()
        self._lose(list(self._sent), TimeoutError(f"no response within {_TIMEOUT_S:g} s"))


def _init_request(
    connection: Connection, key: str, current: ProducerStamp | None, timeout_ms: int
) -> tuple[InitProducerIdRequest, int]:
    """Return a request for a new producer epoch, and its version."""
    request = InitProducerIdRequest(transactional_id=key, transaction_timeout_ms=timeout_ms)
    if current is not None:
        request.producer_id, request.producer_epoch = current.producer_id, current.producer_epoch
    at_least = 0 if current is None else _CURRENT_SINCE
    return request, connection.version_of(InitProducerIdRequest, at_least=at_least, at_most=_LAST_INIT)


def _rejected(answer: AddPartitionsToTxnResponse) -> dict[PartitionTuple, int]:
    return {
        (topic.name, partition.partition_index): partition.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
        if partition.partition_error_code != ErrorCode.NONE
    }


class CommittedOffset(NamedTuple):
    """A committed offset with its metadata."""

    offset: int
    metadata: str


class TransactionOffsets:
    """Offsets of one group, committed by one transactional id. Thread-confined; calls block.

    Every call may raise ``ConnectionLostError`` and may then be retried. ``DeniedError`` is a subclass of it.
    """

    def __init__(self, cluster: Cluster, transactional_id: str, group: str) -> None:
        self._transactional_id = transactional_id
        self._group = group
        self._group_calls = CoordinatorCalls(cluster, group, CoordinatorType.GROUP, patience_s=_OFFSETS_PATIENCE_S)
        self._transaction_calls = CoordinatorCalls(
            cluster, transactional_id, CoordinatorType.TRANSACTION, patience_s=_OFFSETS_PATIENCE_S
        )

    def read(self) -> dict[PartitionTuple, CommittedOffset]:
        """Return the committed offsets, after waiting for pending offsets of open transactions."""
        offsets: dict[PartitionTuple, CommittedOffset] = {}
        request = OffsetFetchRequest(group_id=self._group, topics=None, require_stable=True)

        def ask(connection: Connection) -> set[int]:
            version = connection.version_of(OffsetFetchRequest, at_least=_REQUIRE_STABLE_SINCE, at_most=_LAST_FETCH)
            answer = connection.call(request, OffsetFetchResponse, version=version, timeout_s=_TIMEOUT_S)
            offsets.clear()
            codes = {answer.error_code}
            for topic in answer.topics:
                for one in topic.partitions:
                    codes.add(one.error_code)
                    offsets[topic.name, one.partition_index] = CommittedOffset(one.committed_offset, one.metadata or "")
            return codes

        self._group_calls.until_answered(ask, "OffsetFetch")
        return offsets

    def add(self, identity: ProducerStamp) -> None:
        """Add the group's offsets to the open transaction (AddOffsetsToTxn).

        Raises:
            TransactionLostError: The producer epoch is fenced.
        """
        request = AddOffsetsToTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            group_id=self._group,
        )

        def ask(connection: Connection) -> set[int]:
            version = connection.version_of(AddOffsetsToTxnRequest, at_most=_LAST_ADD)
            return {connection.call(request, AddOffsetsToTxnResponse, version=version, timeout_s=_TIMEOUT_S).error_code}

        self._transaction_calls.until_answered(ask, "AddOffsetsToTxn")

    def commit(self, identity: ProducerStamp, where: PartitionTuple, offset: CommittedOffset) -> None:
        """Write an offset that takes effect when the transaction is committed (TxnOffsetCommit).

        Raises:
            TransactionLostError: The producer epoch is fenced.
        """
        topic_class = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=where[1], committed_offset=offset.offset, committed_metadata=offset.metadata
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self._transactional_id,
            group_id=self._group,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            topics=[topic_class(name=where[0], partitions=[partition])],
        )

        def ask(connection: Connection) -> set[int]:
            version = connection.version_of(TxnOffsetCommitRequest, at_most=_LAST_COMMIT)
            answer = connection.call(request, TxnOffsetCommitResponse, version=version, timeout_s=_TIMEOUT_S)
            return {one.error_code for topic in answer.topics for one in topic.partitions}

        self._group_calls.until_answered(ask, "TxnOffsetCommit", retriable=_RETRIABLE_OFFSET_CODES)
