"""Transaction in which one task writes its part of one micro-batch, together with the batch id.

Each task of a query has its own transactional id, which contains the task's number. Spark repeats a batch if it does
not know that the batch is complete. The task that already committed it finds the batch id, which it stores as the
committed offset of a group with the same name, and writes nothing. InitProducerId fences an older attempt first.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from klamm.dataframes.errors import WritingError
from klamm.kafka_client.data.transactions import CommittedOffset, TransactionManager, TransactionOffsets
from klamm.kafka_client.errors import ConnectionLostError, TransactionLostError
from klamm.protocol.errors import ErrorCode, UnsupportedVersionError, error_name

if TYPE_CHECKING:
    from collections.abc import Collection

    from klamm.dataframes.options import WriteOptions
    from klamm.dataframes.writer import TargetCluster
    from klamm.kafka_client.data.batches import ProducerStamp
    from klamm.protocol.types import PartitionTuple

logger = logging.getLogger(__name__)


class BatchTransaction:
    """Transaction of one task and one batch. Confined to one thread; its calls block."""

    def __init__(
        self, target: TargetCluster, options: WriteOptions, *, query_id: str, task: int, batch_id: int
    ) -> None:
        """Create a transaction. Nothing is sent before ``begin``.

        Args:
            target: Cluster to write to.
            options: Options of the query.
            query_id: Id of the stream, which survives a restart from its checkpoint.
            task: Number of the Spark partition.
            batch_id: Id of the micro-batch.
        """
        self.transactional_id = f"{options.id_prefix}-{query_id}-{task}"
        self._target = target
        self._timeout_ms = options.transaction_timeout_ms
        self._batch_id = batch_id
        self._coordinator = TransactionManager(target.wire, self.transactional_id)
        self._offsets = TransactionOffsets(target.wire, self.transactional_id, self.transactional_id)
        self._identity: ProducerStamp | None = None
        self._written: int | None = None
        self._is_open = False

    @property
    def identity(self) -> ProducerStamp:
        """Return producer id and epoch.

        Raises:
            WritingError: ``begin`` was not called.
        """
        if self._identity is None:
            raise WritingError(f"{self.transactional_id} has not begun")
        return self._identity

    @property
    def is_written(self) -> bool:
        """Return whether an earlier attempt already committed this batch."""
        return self._written is not None

    def begin(self) -> None:
        """Fence older producers with this transactional id and read the last committed batch id.

        Raises:
            WritingError: The cluster rejects, or a later batch is already committed.
        """
        insist = self._target.insist
        self._identity = insist(lambda: self._coordinator.init(timeout_ms=self._timeout_ms))
        committed_offsets = insist(self._offsets.read)
        newest = max(committed_offsets.values(), key=lambda committed: committed.offset, default=CommittedOffset(0, ""))
        if newest.offset > self._batch_id + 1:
            raise WritingError(
                f"{self.transactional_id}: batch {self._batch_id} must be written, but {newest.offset - 1} was written "
                "before it: was an older checkpoint restored?"
            )
        if newest.offset == self._batch_id + 1:
            self._written = parse_count(newest.metadata)

    def add(self, partitions: Collection[PartitionTuple]) -> None:
        """Add partitions to the transaction.

        Raises:
            WritingError: A partition cannot be added.
        """
        self._is_open = True
        self._target.insist(lambda: self._try_to_add(partitions))

    def _try_to_add(self, partitions: Collection[PartitionTuple]) -> None:
        rejected = self._coordinator.add(self.identity, partitions)
        for (topic, _), code in rejected.items():
            if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise WritingError(f"{topic}: {error_name(code)}: the principal may not write to the topic")
        if rejected:
            raise ConnectionLostError(f"No transaction for {sorted(rejected)}: {error_name(max(rejected.values()))}")

    def commit(self, where: PartitionTuple, records: int) -> None:
        """Commit the records together with the batch id.

        Args:
            where: One of the written partitions. The batch id is stored as its committed offset.
            records: Number of records written.

        Raises:
            WritingError: The commit failed, or its outcome is unknown. The next attempt reads the committed batch id to
                find out.
        """
        noted = CommittedOffset(self._batch_id + 1, json.dumps({"records": records}))
        insist = self._target.insist
        insist(lambda: self._offsets.add(self.identity))
        insist(lambda: self._offsets.commit(self.identity, where, noted))
        insist(lambda: self._coordinator.commit(self.identity))

    def abort(self) -> None:
        """Abort the transaction after a failure, so that readers need not wait until it times out.

        No request may be without a response: it could be appended after the abort. A transaction that has been
        committed, or fenced by a newer attempt, stays as it is. If the cluster does not respond, only a warning is
        logged: the next attempt aborts the transaction too.
        """
        if not self._is_open:
            return
        try:
            self._coordinator.abort(self.identity)
        except TransactionLostError:
            logger.debug("%s: there is no transaction to abort", self.transactional_id, exc_info=True)
        except (ConnectionLostError, UnsupportedVersionError) as error:
            logger.warning("%s: the transaction was not aborted, and may time out: %s", self.transactional_id, error)

    def check_repeated(self, records: int) -> None:
        """Compare the rows of this attempt with those of the committed one.

        Raises:
            WritingError: Spark distributed the rows to tasks differently, so some would be lost or written twice.
        """
        if self._written not in (None, records):
            raise WritingError(
                f"{self.transactional_id}: of batch {self._batch_id} {self._written} records were written before, and "
                f"now it would be {records}: a batch that is repeated must be cut into the same tasks. Start the query "
                "as it was before, or with exactlyOnce=false"
            )


def parse_count(metadata: str) -> int:
    """Return the number of records from the metadata of a committed batch id.

    Raises:
        WritingError: The metadata is not that of a batch.
    """
    try:
        return int(json.loads(metadata)["records"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WritingError(
            f"The stored batch id has unexpected metadata {metadata[:200]!r}"
            ": another application commits offsets for this group"
        ) from error
