"""What one task writes of one batch of a stream, in one transaction: its batch id is committed with its records.

Each task of a query has a transactional id of its own, the number of the task in it. Spark repeats a batch that it does
not know to be done, by the same offsets: the task that committed it before finds its batch id, as an offset of a group
of the same name, and writes nothing. Whoever begins fences its predecessor first.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from klamm.client.connection import ConnectionLostError
from klamm.client.transaction_offsets import GroupOffset, TransactionOffsets
from klamm.client.transactions import TransactionCoordinator
from klamm.dataframes.errors import WritingError
from klamm.protocol.errors import ErrorCode, error_name

if TYPE_CHECKING:
    from collections.abc import Collection

    from klamm.client.batches import ProducerStamp
    from klamm.dataframes.write_options import WriteOptions
    from klamm.dataframes.writer import TargetCluster
    from klamm.protocol.types import PartitionTuple


class BatchTransaction:
    """The transaction of one task and batch. Thread-confined; calls block."""

    def __init__(
        self, target: TargetCluster, options: WriteOptions, *, query_id: str, task: int, batch_id: int
    ) -> None:
        """Prepare; nothing is asked yet.

        Args:
            target: where to.
            options: as the query says.
            query_id: of the stream, the same after a restart from its checkpoint.
            task: the number of Spark's partition.
            batch_id: of the round.
        """
        self.transactional_id = f"{options.id_prefix}-{query_id}-{task}"
        self._target = target
        self._timeout_ms = options.transaction_timeout_ms
        self._batch_id = batch_id
        self._coordinator = TransactionCoordinator(target.wire, self.transactional_id)
        self._offsets = TransactionOffsets(target.wire, self.transactional_id, self.transactional_id)
        self._identity: ProducerStamp | None = None
        self._written: int | None = None

    @property
    def identity(self) -> ProducerStamp:
        """Who we are for the brokers.

        Raises:
            WritingError: ``begin`` was not called.
        """
        if self._identity is None:
            raise WritingError(f"{self.transactional_id} has not begun")
        return self._identity

    @property
    def is_written(self) -> bool:
        """Tell whether the batch was committed before."""
        return self._written is not None

    def begin(self) -> None:
        """Fence whoever wrote with this id, and look what it committed.

        Raises:
            WritingError: It can not be, or a later batch was committed.
        """
        insist = self._target.insist
        self._identity = insist(lambda: self._coordinator.init(timeout_ms=self._timeout_ms))
        found = insist(self._offsets.read)
        newest = max(found.values(), key=lambda committed: committed.offset, default=GroupOffset(0, ""))
        if newest.offset > self._batch_id + 1:
            raise WritingError(
                f"{self.transactional_id}: batch {self._batch_id} is to be written, but {newest.offset - 1} was before "
                "it: was an older checkpoint put in place?"
            )
        if newest.offset == self._batch_id + 1:
            self._written = _count(newest.metadata)

    def add(self, partitions: Collection[PartitionTuple]) -> None:
        """Add partitions to the transaction.

        Raises:
            WritingError: One can not be added.
        """
        self._target.insist(lambda: self._try_to_add(partitions))

    def _try_to_add(self, partitions: Collection[PartitionTuple]) -> None:
        refused = self._coordinator.add(self.identity, partitions)
        for (topic, _), code in refused.items():
            if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise WritingError(f"{topic}: {error_name(code)}: no right to write to it")
        if refused:
            raise ConnectionLostError(f"No transaction for {sorted(refused)}: {error_name(max(refused.values()))}")

    def commit(self, where: PartitionTuple, records: int) -> None:
        """Commit the records together with the batch id.

        Args:
            where: a partition that was written to, to keep the batch id at.
            records: how many were written.

        Raises:
            WritingError: Nothing is committed, or it is not known; the next attempt finds out.
        """
        noted = GroupOffset(self._batch_id + 1, json.dumps({"records": records}))
        insist = self._target.insist
        insist(lambda: self._offsets.add(self.identity))
        insist(lambda: self._offsets.commit(self.identity, where, noted))
        insist(lambda: self._coordinator.commit(self.identity))

    def check_repeated(self, records: int) -> None:
        """Compare what this task would write now with what it wrote before.

        Raises:
            WritingError: The rows were dealt to tasks in another way, so that some would be lost or come twice.
        """
        if self._written not in (None, records):
            raise WritingError(
                f"{self.transactional_id}: of batch {self._batch_id} {self._written} records were written before, and "
                f"now it would be {records}: a batch that is repeated must be cut into the same tasks. Start the query "
                "as it was before, or with exactlyOnce=false"
            )


def _count(metadata: str) -> int:
    try:
        return int(json.loads(metadata)["records"])
    except (ValueError, KeyError, TypeError) as error:
        raise WritingError(f"The batch id that is kept has {metadata!r} with it: somebody else commits here") from error
