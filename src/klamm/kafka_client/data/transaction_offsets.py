"""Group offsets that are committed atomically in a transaction, used to store a writer's progress next to its records.

Uses the transaction protocol before KIP-890, like ``klamm.kafka_client.data.transactions``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.kafka_client.data.coordinator_calls import CoordinatorCalls
from klamm.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from klamm.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from klamm.protocol.types import CoordinatorType

if TYPE_CHECKING:
    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.data.batches import ProducerStamp
    from klamm.kafka_client.data.cluster import Cluster
    from klamm.protocol.types import PartitionTuple

_TIMEOUT_S: Final = 10.0
_PATIENCE_S: Final = 30.0
_REQUIRE_STABLE_SINCE: Final = 7
_LAST_FETCH: Final = 7
"""Highest version in use. From version 8 on, a request names several groups."""
_LAST_ADD: Final = 3
_LAST_COMMIT: Final = 4
"""Highest version in use. From version 5 on, TxnOffsetCommit adds the group to the transaction by itself (KIP-890),
which must not be mixed with AddOffsetsToTxn.
"""


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
        self._group_calls = CoordinatorCalls(cluster, group, CoordinatorType.GROUP, patience_s=_PATIENCE_S)
        self._transaction_calls = CoordinatorCalls(
            cluster, transactional_id, CoordinatorType.TRANSACTION, patience_s=_PATIENCE_S
        )

    def read(self) -> dict[PartitionTuple, CommittedOffset]:
        """Return the committed offsets, after waiting for pending offsets of open transactions."""
        found: dict[PartitionTuple, CommittedOffset] = {}
        request = OffsetFetchRequest(group_id=self._group, topics=None, require_stable=True)

        def ask(connection: Connection) -> set[int]:
            version = connection.version_of(OffsetFetchRequest, at_least=_REQUIRE_STABLE_SINCE, at_most=_LAST_FETCH)
            answer = connection.call(request, OffsetFetchResponse, version=version, timeout_s=_TIMEOUT_S)
            found.clear()
            codes = {answer.error_code}
            for topic in answer.topics:
                for one in topic.partitions:
                    codes.add(one.error_code)
                    found[topic.name, one.partition_index] = CommittedOffset(one.committed_offset, one.metadata or "")
            return codes

        self._group_calls.until_answered(ask, "OffsetFetch")
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

        self._group_calls.until_answered(ask, "TxnOffsetCommit")
