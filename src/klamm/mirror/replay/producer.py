"""Producing half of a copier that keeps offsets: batches as ``CopyProducer`` sends them, and markers for holes.

A marker is written by WriteTxnMarkers (KIP-98). It takes one offset and no consumer sees it. Kafka's brokers and tools
send the same request to end transactions. The rules for batches and markers are those of ``ReplayCopy``.

==========================================  ==========================================================================
Answer                                      Effect
==========================================  ==========================================================================
batch appended at its source offset         The batch is acknowledged.
batch appended at another offset            STOPPED: another producer writes the partition.
INVALID_PRODUCER_EPOCH, PRODUCER_FENCED,    STOPPED: a newer mirror writes the partition.
TRANSACTION_COORDINATOR_FENCED
MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE    The copy is discarded, the next one splits its batches. A single record
                                            that is too large stops the partition.
more markers appended than sent, beyond     STOPPED: a marker of a dead mirror arrived late.
the end of the hole
no answer, broken connection, any other     The copy is discarded, and a new one begins at the log end of the target.
retriable error, OUT_OF_ORDER_SEQUENCE
any other error                             STOPPED.
==========================================  ==========================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from klamm.kafka_client.data import cluster as clusters
from klamm.kafka_client.data.batches import ProducerStamp
from klamm.kafka_client.errors import STALE_METADATA_CODES, ConnectionLostError
from klamm.mirror.copy.partition import stop_and_log
from klamm.mirror.copy.producer import LATE_S, RETRIABLE, TOO_LARGE, CopyProducer
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.replay.partition import ReplayCopy
from klamm.mirror.replay.runs import first_offset
from klamm.mirror.replay.start import NEWER_MIRROR
from klamm.mirror.replay.target_log import delete_before
from klamm.protocol.codec import encode
from klamm.protocol.errors import ErrorCode, KafkaApiError, UnsupportedVersionError, error_name
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.data.cluster import Cluster
    from klamm.mirror.copy.batch import Outgoing
    from klamm.mirror.copy.partition import PartitionCopy, PartitionId
    from klamm.mirror.copy.settings import CopySettings
    from klamm.protocol.messages.produce import ProduceResponse

_MARKER_LANE: Final = 2
"""Index of the connection for markers. A broker answers them after replication and reads nothing else until then."""
_MARKERS_VERSION: Final = 1
"""Highest version of WriteTxnMarkers in use. It follows the rules of transaction version 0."""
_FENCED: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)
_DOUBTED: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
"""Error codes of batches that show that another writer was or is active."""
_NOT_WRITTEN: Final = STALE_METADATA_CODES - {ErrorCode.NETWORK_EXCEPTION, ErrorCode.KAFKA_STORAGE_ERROR} | {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.NOT_ENOUGH_REPLICAS,
}
"""Error codes after which a marker was surely not written."""
_UNUSED: Final = ProducerStamp(-1, -1)


class ReplayProducer(CopyProducer):
    """Sender of the batches and markers of partitions that keep their offsets. Confined to the copier's thread."""

    def __init__(
        self,
        settings: CopySettings,
        target: Cluster,
        copies: Mapping[tuple[str, int], PartitionCopy],
        active: dict[tuple[str, int], PartitionCopy],
        clock: Callable[[], float],
        *,
        barrier_s: float,
        on_failed: Callable[[ReplayCopy], None],
    ) -> None:
        """Create a producer without requests in flight.

        Args:
            settings: Settings of the flow.
            target: Cluster to produce to.
            copies: Partitions by source topic and partition number. Owned by the copier.
            active: Partitions with something to send or in flight.
            clock: Monotonic clock in seconds.
            barrier_s: Seconds to wait before the first marker of a writer if exactly one offset is missing.
            on_failed: Called with a copy to discard. Nothing of it is in flight.
        """
        super().__init__(settings, target, copies, active, clock, on_acknowledged=_ignore)
        self._barrier_s = barrier_s
        self._on_failed = on_failed
        self._marking: dict[ReplayCopy, Connection] = {}
        """Copies with markers in flight, or whose log end is requested after them."""

    @property
    def busy(self) -> bool:
        """Return whether any request is in flight."""
        return bool(self._marking) or super().busy or any(map(_is_draining, self._active.values()))

    def send(self, now: float) -> None:
        """Send the pending batches and markers of all partitions that may send.

        Raises:
            ConnectionLostError: The target cluster is unavailable.
        """
        for copy in [copy for copy in self._active.values() if isinstance(copy, ReplayCopy)]:
            if copy.failure and not copy.in_flight and not copy.sent_markers:
                self._on_failed(copy)
            elif copy.fillers_until >= 0:
                self._fill_beginning(copy, now)
        super().send(now)
        for copy in [copy for copy in self._active.values() if isinstance(copy, ReplayCopy)]:
            if count := copy.markers_due(now):
                self._send_markers(copy, count, now)

    def _fill_beginning(self, copy: ReplayCopy, now: float) -> None:
        if not copy.has_written_fillers:
            copy.queue_fillers()
        elif now >= copy.retry_at:
            remote = (copy.partition_id.remote_topic, copy.partition_id.partition)
            try:
                delete_before(self._target, remote, copy.fillers_until)
            except (ConnectionLostError, KafkaApiError) as error:
                copy.target_failed(f"the fillers before offset {copy.fillers_until} cannot be deleted: {error}", now)
            else:
                copy.end_fillers()

    def _identity(self) -> ProducerStamp:
        return _UNUSED  # every copy has its own producer id

    # --- batches ------------------------------------------------------------------------------------------------------

    def _note(self, copy: PartitionCopy, outgoing: Outgoing, base_offset: int) -> None:
        copy = cast("ReplayCopy", copy)
        if base_offset == first_offset(outgoing) or copy.state is CopyState.STOPPED:
            return
        if base_offset < 0:
            copy.fail("the target had a batch already", in_doubt=True)
            return
        remote = f"{copy.partition_id.remote_topic}-{copy.partition_id.partition}"
        self._stop(
            copy,
            f"the batch for offset {first_offset(outgoing)} of {remote} lies at offset {base_offset}: another producer "
            "writes the remote topic. Delete the remote topic to mirror it again, or end the flow",
        )

    def _rejected(
        self, copy: PartitionCopy, outgoing: Outgoing, answer: ProduceResponse.PartitionProduceResponse, now: float
    ) -> None:
        copy = cast("ReplayCopy", copy)
        code = answer.error_code
        detail = f": {answer.error_message}" if answer.error_message else ""
        reason = f"the target rejected records: {error_name(code)}{detail}"
        copy.discard(outgoing)
        if copy.state is CopyState.STOPPED or copy.failure:
            return
        if code in _FENCED:
            self._stop(copy, NEWER_MIRROR)
        elif code in TOO_LARGE and outgoing.record_count == 1:
            offset = first_offset(outgoing)
            self._stop(copy, f"the record at offset {offset} is larger than the target's max.message.bytes")
        elif code in TOO_LARGE:
            copy.max_bytes = len(outgoing.view) // 2
            copy.fail(reason, in_doubt=False)
        elif code in _DOUBTED:
            copy.fail(reason, in_doubt=True)
        elif code in RETRIABLE or code == ErrorCode.UNKNOWN_PRODUCER_ID:
            copy.fail(reason, in_doubt=False)
        else:
            self._stop(copy, reason)

    def _retry(
        self, copy: PartitionCopy, outgoing: Outgoing, reason: str, now: float, *, moved: bool, in_doubt: bool = True
    ) -> None:
        copy = cast("ReplayCopy", copy)
        copy.discard(outgoing)
        copy.fail(reason, in_doubt=False)

    def _mend(self, copy: PartitionCopy) -> None:
        """Do nothing: a copy that failed is discarded."""

    def _stop(self, copy: PartitionCopy, reason: str) -> None:
        stop_and_log(copy, self._settings.flow, reason)

    # --- markers ------------------------------------------------------------------------------------------------------

    def _send_markers(self, copy: ReplayCopy, count: int, now: float) -> None:
        remote, partition = copy.partition_id.remote_topic, copy.partition_id.partition
        leader = self._target.leader(remote, partition)
        if leader is None:
            self._refreshes.want(remote, copy.target_failed("no leader on the target", now))
            return
        if copy.needs_barrier and not copy.barrier_until:
            copy.barrier_until = now + self._barrier_s
            copy.wait("waits for late requests of an earlier mirror", retry_at=copy.barrier_until)
            return
        try:
            connection = self._target.connection(leader, _MARKER_LANE)
            self._marking[copy] = connection
            if copy.needs_barrier:
                copy.sent_markers = 1
                self._request_end(copy, connection, is_after_barrier=True)
            else:
                copy.sent_markers = count
                self._request_markers(copy, connection, count)
            connection.write()
        except (ConnectionLostError, UnsupportedVersionError) as error:
            self._unanswered(copy, f"target: {error}")

    def _request_markers(self, copy: ReplayCopy, connection: Connection, count: int) -> None:
        remote, partition = copy.partition_id.remote_topic, copy.partition_id.partition
        # One entry per marker: a broker does not answer an entry that names a partition twice.
        topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=remote, partition_indexes=[partition])
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=copy.stamp_of_markers.producer_id,
            producer_epoch=copy.stamp_of_markers.producer_epoch,
            transaction_result=False,
            topics=[topic],
        )
        version = connection.version_of(WriteTxnMarkersRequest, at_most=_MARKERS_VERSION)
        body = [encode(WriteTxnMarkersRequest(markers=[marker] * count), version)]

        def on_response(response: WriteTxnMarkersResponse, _: object) -> None:
            codes = {
                answer.error_code
                for result in response.markers
                for entry in result.topics
                for answer in entry.partitions
            }
            self._marked(copy, connection, codes - {int(ErrorCode.NONE)})

        connection.submit(WriteTxnMarkersRequest, version, body, WriteTxnMarkersResponse, on_response)

    def _marked(self, copy: ReplayCopy, connection: Connection, codes: set[int]) -> None:
        if copy not in self._marking:
            return
        names = ", ".join(map(error_name, sorted(codes)))
        if codes & _FENCED:
            self._end_marking(copy)
            self._stop(copy, NEWER_MIRROR)
        elif ErrorCode.CLUSTER_AUTHORIZATION_FAILED in codes:
            self._unanswered(copy, "a marker needs ALTER on the cluster resource of the target", in_doubt=False)
        elif codes:
            in_doubt = bool(codes - _NOT_WRITTEN)
            self._unanswered(copy, f"the target rejected a marker: {names}", in_doubt=in_doubt)
        elif copy.sent_markers == 1 and copy.has_fenced:
            self._filled(copy, copy.acked_offset + 1)
        else:
            # The answer has one result per producer and partition, so only the log end shows how many were written.
            self._request_end(copy, connection)
            connection.write()

    def _request_end(self, copy: ReplayCopy, connection: Connection, *, is_after_barrier: bool = False) -> None:
        remote, partition = copy.partition_id.remote_topic, copy.partition_id.partition
        wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=clusters.LATEST)
        topic = ListOffsetsRequest.ListOffsetsTopic(name=remote, partitions=[wanted])
        version = connection.version_of(ListOffsetsRequest, at_least=1)
        body = [encode(ListOffsetsRequest(replica_id=-1, topics=[topic]), version)]

        def on_response(response: ListOffsetsResponse, _: object) -> None:
            answer = response.topics[0].partitions[0]
            if copy not in self._marking:
                return
            if answer.error_code != ErrorCode.NONE:
                self._unanswered(copy, f"the target does not report its log end: {error_name(answer.error_code)}")
            elif not is_after_barrier:
                self._filled(copy, answer.offset)
            elif answer.offset == copy.acked_offset:
                self._end_marking(copy)
                copy.is_unproven = False
            else:
                self._unanswered(copy, "a late request of an earlier mirror moved the log end")

        connection.submit(ListOffsetsRequest, version, body, ListOffsetsResponse, on_response)

    def _filled(self, copy: ReplayCopy, end_offset: int) -> None:
        self._end_marking(copy)
        if copy.state is CopyState.STOPPED:
            return
        if end_offset > (limit := copy.pending[0].next_offset):
            remote = f"{copy.partition_id.remote_topic}-{copy.partition_id.partition}"
            self._stop(
                copy,
                f"{remote} ends at offset {end_offset}, but only offsets before {limit} were to be filled: a marker of "
                "an earlier mirror arrived late, or another producer writes the remote topic. Delete the remote topic "
                "to mirror it again",
            )
        elif end_offset <= copy.acked_offset:
            copy.fail(f"the target ends at offset {end_offset} after a marker", in_doubt=True)
        else:
            copy.filled(end_offset)

    def _end_marking(self, copy: ReplayCopy) -> None:
        self._marking.pop(copy, None)
        copy.sent_markers = 0

    def _unanswered(self, copy: ReplayCopy, reason: str, *, in_doubt: bool = True) -> None:
        """Discard a copy whose marker failed or has an unknown outcome."""
        self._end_marking(copy)
        copy.fail(reason, in_doubt=in_doubt)

    def sweep(self, now: float) -> None:
        """Fail the requests of broken connections, and close connections that have not answered for 40 s."""
        super().sweep(now)
        for copy, connection in list(self._marking.items()):
            if connection.oldest_wait_s(now) > LATE_S:
                connection.close()
            if connection.closed:
                self._unanswered(copy, "the connection to the target broke")


def _is_draining(copy: PartitionCopy) -> bool:
    """Return whether fetched writes can be sent without a wait.

    A hole that is left unfinished at the end of a mirror makes the next one wait for late markers.
    """
    return bool(copy.pending) and copy.state is CopyState.COPYING


def _ignore(_partition_id: PartitionId, _outgoing: Outgoing, _base_offset: int) -> None:
    """Write no offset sync: the offsets are equal."""
