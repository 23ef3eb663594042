"""Group offsets that are committed atomically in a transaction, used to store a writer's progress next to its records.

Uses the transaction protocol before KIP-890, like ``klamm.client.transactions``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.client.errors import ConnectionLostError, DeniedError, TransactionLostError
from klamm.protocol.errors import ErrorCode, error_name
from klamm.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from klamm.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from klamm.protocol.types import CoordinatorType

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.client.batches import ProducerStamp
    from klamm.client.cluster import Cluster
    from klamm.protocol.types import PartitionTuple

_TIMEOUT_S: Final = 10.0
_PATIENCE_S: Final = 30.0
_PAUSE_S: Final = 0.05
_REQUIRE_STABLE_SINCE: Final = 7
_LAST_FETCH: Final = 7
"""Highest version in use. From version 8 on, a request names several groups."""
_LAST_ADD: Final = 3
_LAST_COMMIT: Final = 4
"""Highest version in use. From version 5 on, TxnOffsetCommit adds the group to the transaction by itself (KIP-890),
which must not be mixed with AddOffsetsToTxn.
"""

_ELSEWHERE: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
_LATER: Final = frozenset(
    {
        *_ELSEWHERE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_DENIED: Final = frozenset(
    {
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


class CommittedOffset(NamedTuple):
    """A committed offset with its metadata."""

    offset: int
    metadata: str


class TransactionOffsets:
    """Offsets of one group, committed by one transactional id. Thread-confined; calls block.

    Every call may raise ``ConnectionLostError`` and may then be retried. ``DeniedError`` is a subclass of it.
    """

    def __init__(self, cluster: Cluster, transactional_id: str, group: str) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._group = group
        self._node: int | None = None

    def read(self) -> dict[PartitionTuple, CommittedOffset]:
        """Return the committed offsets, after waiting for pending offsets of open transactions."""
        found: dict[PartitionTuple, CommittedOffset] = {}
        request = OffsetFetchRequest(group_id=self._group, topics=None, require_stable=True)

        def ask() -> set[int]:
            connection = self._cluster.connection(self._coordinator())
            version = connection.version_of(OffsetFetchRequest, at_least=_REQUIRE_STABLE_SINCE, at_most=_LAST_FETCH)
            answer = connection.call(request, OffsetFetchResponse, version=version, timeout_s=_TIMEOUT_S)
            found.clear()
            codes = {answer.error_code}
            for topic in answer.topics:
                for one in topic.partitions:
                    codes.add(one.error_code)
                    found[topic.name, one.partition_index] = CommittedOffset(one.committed_offset, one.metadata or "")
            return codes

        self._until_answered(ask, "OffsetFetch")
        return found

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

        def ask() -> set[int]:
            connection = self._cluster.connection(
                self._cluster.coordinator(self._transactional_id, CoordinatorType.TRANSACTION)
            )
            version = connection.version_of(AddOffsetsToTxnRequest, at_most=_LAST_ADD)
            return {connection.call(request, AddOffsetsToTxnResponse, version=version, timeout_s=_TIMEOUT_S).error_code}

        self._until_answered(ask, "AddOffsetsToTxn")

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

        def ask() -> set[int]:
            connection = self._cluster.connection(self._coordinator())
            version = connection.version_of(TxnOffsetCommitRequest, at_most=_LAST_COMMIT)
            answer = connection.call(request, TxnOffsetCommitResponse, version=version, timeout_s=_TIMEOUT_S)
            return {one.error_code for topic in answer.topics for one in topic.partitions}

        self._until_answered(ask, "TxnOffsetCommit")

    def _coordinator(self) -> int:
        if self._node is None:
            self._node = self._cluster.coordinator(self._group, CoordinatorType.GROUP)
        return self._node

    def _until_answered(self, ask: Callable[[], set[int]], what: str) -> None:
        """Repeat a request until the coordinator returns a final result, or the time limit has passed."""
        deadline = time.monotonic() + _PATIENCE_S
        while codes := self._ask_once(ask) - {int(ErrorCode.NONE)}:
            text = f"{what} of group {self._group}: {', '.join(map(error_name, sorted(codes)))}"
            if codes & _DENIED:
                raise DeniedError(text)
            if codes - _LATER:
                raise TransactionLostError(text)
            if codes & _ELSEWHERE:
                self._node = None
            if time.monotonic() >= deadline:
                raise ConnectionLostError(text)
            time.sleep(_PAUSE_S)

    def _ask_once(self, ask: Callable[[], set[int]]) -> set[int]:
        try:
            return ask()
        except ConnectionLostError:
            self._node = None
            raise
