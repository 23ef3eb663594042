"""Reader of the metadata log as an observer: requests out, responses in, committed images out. No I/O.

An observer fetches like a follower of a partition, but has no vote. It starts at offset 0. If the controller's log
starts later, the controller names a snapshot instead: the image at one offset as a sequence of records. The observer
reads it piece by piece (FetchSnapshot) and then fetches from its end offset on.

The active controller sends records before they are committed, which they are when the majority of the controllers has
them. Only records below the high watermark are replayed; the others are kept until a response reports them as
committed, or are dropped if a new active controller has other records at their offsets.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

from klamm.configs.names import CLUSTER_METADATA
from klamm.kraft.errors import WrongClusterError, raise_for_metadata
from klamm.kraft.image import ClusterImage, ImageDelta, replayed
from klamm.kraft.records import MetadataBatch, read_batches
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from klamm.protocol.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)
from klamm.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.kraft.image import BrokerImage
    from klamm.protocol.schema import Message

MAX_WAIT_MS: Final = 500
"""Longest wait of the controller for new records, as in Kafka's observers."""
_MAX_BYTES: Final = 8 * 1024 * 1024
_TOPIC_ID: Final = UUID(int=1)
"""Fixed topic id of the metadata log."""
_SNAPSHOT_CODES: Final = frozenset({ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE})
"""Errors of FetchSnapshot for a snapshot that a newer one has replaced. The next fetch names the newer one."""


class MetadataLogReader:
    """Position of an observer in the metadata log, and the latest committed image.

    Args:
        node_id: Node id of the broker that observes; -1 for a process that is no broker.
        cluster_id: Expected cluster id. The controller rejects requests with another one. None: any.
        log_dir: Id of the broker's log directory. Zero for a process that is no broker.
    """

    def __init__(self, node_id: int, cluster_id: str | None, log_dir: UUID = ZERO_UUID) -> None:
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._log_dir = log_dir
        self.image = ClusterImage()
        self.high_watermark = -1
        """First offset that is not committed, as in the last response; -1 before the first one."""
        self._has_records = False
        """Whether the last response had records, and thus the current high watermark."""
        self._leader_epoch = 0
        self._committed_epoch = 0
        """Epoch of the last committed batch."""
        self._pending: deque[MetadataBatch] = deque()
        """Batches at and above the high watermark."""
        self._transaction: list[Message] | None = None
        """Records of a transaction of the controller that has not ended (KIP-868). They are replayed when it ends."""
        self._position = 0
        """First offset that has not been replayed or kept in ``_transaction``."""
        self._delta: ImageDelta | None = None
        """Changes since ``image`` while a transaction has not ended."""
        self._snapshot: FetchResponse.SnapshotId | None = None
        self._snapshot_data = bytearray()

    @property
    def is_caught_up(self) -> bool:
        """Return whether the image holds all records that were committed when the last response was sent."""
        return self._has_records and 0 <= self.high_watermark <= self._position

    def request(self) -> FetchRequest | FetchSnapshotRequest:
        """Return the next request to the active controller."""
        if self._snapshot is not None:
            return self._snapshot_request(self._snapshot)
        last = self._pending[-1] if self._pending else MetadataBatch(self._position - 1, self._committed_epoch, [])
        partition = FetchRequest.FetchPartition(
            current_leader_epoch=self._leader_epoch,
            fetch_offset=last.last_offset + 1,
            last_fetched_epoch=last.epoch,
            log_start_offset=0,
            partition_max_bytes=_MAX_BYTES,
            replica_directory_id=self._log_dir,
            high_watermark=self.high_watermark,
        )
        return log_request(partition, node_id=self._node_id, cluster_id=self._cluster_id, max_wait_ms=MAX_WAIT_MS)

    def _snapshot_request(self, snapshot: FetchResponse.SnapshotId) -> FetchSnapshotRequest:
        partition = FetchSnapshotRequest.PartitionSnapshot(
            current_leader_epoch=self._leader_epoch,
            snapshot_id=FetchSnapshotRequest.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
            position=len(self._snapshot_data),
        )
        topic = FetchSnapshotRequest.TopicSnapshot(name=CLUSTER_METADATA, partitions=[partition])
        return FetchSnapshotRequest(
            cluster_id=self._cluster_id, replica_id=self._node_id, max_bytes=_MAX_BYTES, topics=[topic]
        )

    def receive(self, response: FetchResponse | FetchSnapshotResponse) -> bool:
        """Process the response to the last request and return whether there is a new image.

        Raises:
            ConnectionLostError: The controller is not the active one any more, or cannot respond at present.
            MembershipError: It rejects this observer, or its log is not a continuation of the image.
            CorruptBatchError, ProtocolError: The records cannot be decoded.
        """
        self._has_records = False
        raise_for_metadata(response.error_code)
        if isinstance(response, FetchSnapshotResponse):
            return self._receive_snapshot(response.topics[0].partitions[0])
        return self._receive_records(response.responses[0].partitions[0])

    def _receive_records(self, partition: FetchResponse.PartitionData) -> bool:
        if not self._accepts(partition.error_code, partition.current_leader.leader_epoch):
            return False
        if partition.snapshot_id.end_offset >= 0:
            self._snapshot = partition.snapshot_id
            self._snapshot_data.clear()
            return False
        if partition.diverging_epoch.epoch >= 0:
            if not self._pending:
                raise WrongClusterError(
                    f"The controllers' metadata log has lost committed records: it differs before offset "
                    f"{self._position}. Is this a new cluster under the same cluster id?"
                )
            self._pending.clear()
            return False
        self._has_records = True
        self._pending.extend(read_batches(partition.records or b""))
        self.high_watermark = max(self.high_watermark, partition.high_watermark)
        return self._commit()

    def _receive_snapshot(self, partition: FetchSnapshotResponse.PartitionSnapshot) -> bool:
        if not self._accepts(partition.error_code, partition.current_leader.leader_epoch):
            return False
        self._snapshot_data += partition.unaligned_records
        if len(self._snapshot_data) < partition.size or self._snapshot is None:
            return False
        end_offset = self._snapshot.end_offset
        batches = read_batches(self._snapshot_data)
        records = [record for batch in batches for record in batch.records]
        image = replayed(ClusterImage(), records, end_offset - 1)
        self.image = replace(image, brokers=_with_registrations(image.brokers, self.image.brokers))
        self._position, self._committed_epoch = end_offset, self._snapshot.epoch
        self._pending.clear()
        self._delta, self._transaction, self._snapshot = None, None, None
        self._snapshot_data = bytearray()
        return True

    def _accepts(self, error_code: int, leader_epoch: int) -> bool:
        """Return whether a response has data. Some errors only correct the next request."""
        if error_code == ErrorCode.FENCED_LEADER_EPOCH and leader_epoch > self._leader_epoch:
            self._leader_epoch = leader_epoch
            return False
        if error_code in _SNAPSHOT_CODES:
            self._snapshot = None
            return False
        raise_for_metadata(error_code)
        return True

    def _commit(self) -> bool:
        """Replay the committed batches."""
        before = self._position
        while self._pending and self._pending[0].last_offset < self.high_watermark:
            batch = self._pending.popleft()
            self._delta = self._delta or ImageDelta(self.image)
            for record in batch.records:
                self._replay(self._delta, record, batch.last_offset)
            self._position, self._committed_epoch = batch.last_offset + 1, batch.epoch
        if self._delta is None or self._transaction is not None or self._position == before:
            return False
        self.image, self._delta = self._delta.image(self._position - 1), None
        return True

    def _replay(self, delta: ImageDelta, record: Message, offset: int) -> None:
        match record:
            case BeginTransactionRecord():
                self._transaction = []
            case AbortTransactionRecord():
                self._transaction = None
            case EndTransactionRecord():
                for part in self._transaction or ():
                    delta.replay(part, offset)
                self._transaction = None
            case _ if self._transaction is not None:
                self._transaction.append(record)
            case _:
                delta.replay(record, offset)


def log_request(
    partition: FetchRequest.FetchPartition, *, node_id: int = -1, cluster_id: str | None = None, max_wait_ms: int = 0
) -> FetchRequest:
    """Return a fetch of the metadata log."""
    topic = FetchRequest.FetchTopic(topic=CLUSTER_METADATA, topic_id=_TOPIC_ID, partitions=[partition])
    return FetchRequest(
        cluster_id=cluster_id,
        replica_id=node_id,
        replica_state=FetchRequest.ReplicaState(replica_id=node_id),
        max_wait_ms=max_wait_ms,
        max_bytes=_MAX_BYTES,
        topics=[topic],
    )


def _with_registrations(
    brokers: Mapping[int, BrokerImage], before: Mapping[int, BrokerImage]
) -> Mapping[int, BrokerImage]:
    """Return the brokers of a snapshot with the offsets of their registrations, which a snapshot does not hold."""

    def is_same(broker: BrokerImage) -> bool:
        old = before.get(broker.node_id)
        return old is not None and old.process == broker.process

    return {
        node_id: replace(broker, registered_at=before[node_id].registered_at) if is_same(broker) else broker
        for node_id, broker in brokers.items()
    }
