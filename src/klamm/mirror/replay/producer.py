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
from klamm.mirror.copy.producer import RETRIABLE, TOO_LARGE, CopyProducer
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.replay.partition import MAX_MARKERS, ReplayCopy
from klamm.mirror.replay.runs import first_offset
from klamm.mirror.replay.start import NEWER_MIRROR
from klamm.mirror.replay.target_log import delete_before
from klamm.protocol.codec import NO_TAGS, encode, with_items
from klamm.protocol.errors import (
    ErrorCode,
    KafkaApiError,
    TopicAuthorizationError,
    UnsupportedVersionError,
    error_name,
)
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.data.cluster import Cluster
    from klamm.mirror.copy.batch import Outgoing
    from klamm.mirror.copy.partition import PartitionCopy
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
_LogEnd = ListOffsetsResponse.ListOffsetsPartitionResponse


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
        super().__init__(settings, target, copies, active, clock, on_acknowledged=lambda *_: None)
        self._barrier_s = barrier_s
        self._on_failed = on_failed
        self._marking: dict[ReplayCopy, Connection] = {}
        """Copies with markers in flight, or whose log end is requested after them."""
        self._marker_requests: dict[int, Connection] = {}
        """Connections with a WriteTxnMarkers request in flight, by node id of the leader. Each leader has one at a
        time: partitions with gaps are gathered while the broker writes the markers of others.
        """

    @property
    def busy(self) -> bool:
        """Return whether any request is in flight."""
        return bool(self._marking) or super().busy or any(map(_is_draining, self._active.values()))

    def send(self, now: float) -> None:
        """Send the pending batches and markers of all partitions that may send.

        Raises:
            ConnectionLostError: The target cluster is unavailable.
        """
        copies = cast("list[ReplayCopy]", list(self._active.values()))
        for copy in copies:
            if copy.failure and not copy.in_flight and not copy.sent_markers:
                self._on_failed(copy)
            elif copy.fillers_until >= 0:
                self._fill_beginning(copy, now)
        super().send(now)
        due: dict[int, list[ReplayCopy]] = {}
        for copy in copies:
            if copy.markers_due(now) and (leader := self._leader_for_markers(copy, now)) is not None:
                due.setdefault(leader, []).append(copy)
        for leader, some in due.items():
            self._send_markers(leader, some, now)

    def _fill_beginning(self, copy: ReplayCopy, now: float) -> None:
        if not copy.has_written_fillers:
            copy.queue_fillers()
        elif now >= copy.retry_at:
            try:
                delete_before(self._target, copy.remote, copy.fillers_until)
            except (ConnectionLostError, KafkaApiError) as error:
                reason = f"the fillers before offset {copy.fillers_until} cannot be deleted: {error}"
                if isinstance(error, TopicAuthorizationError):
                    reason += f". It needs DELETE on {copy.remote.topic}, and ALTER_CONFIGS if that topic is compacted"
                copy.target_failed(reason, now)
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
        self._stop(
            copy,
            f"the batch for offset {first_offset(outgoing)} of {copy.remote.name} lies at offset {base_offset}: "
            "another producer writes the remote topic. Delete the remote topic to mirror it again, or end the flow",
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

    def _leader_for_markers(self, copy: ReplayCopy, now: float) -> int | None:
        """Return the leader of a partition whose markers may be sent now. None: they have to wait."""
        leader = self._target.leader(*copy.remote)
        if leader is None:
            self._refreshes.want(copy.remote.topic, copy.target_failed("no leader on the target", now))
        elif copy.needs_barrier and not copy.barrier_until:
            copy.barrier_until = now + self._barrier_s
            copy.wait("waits for late requests of an earlier mirror", retry_at=copy.barrier_until)
            return None
        return leader

    def _send_markers(self, leader: int, copies: Sequence[ReplayCopy], now: float) -> None:
        """Send the markers of some partitions in one request, unless such a request is in flight already.

        Few partitions have to wait for a long gap of another one, because the smallest numbers of markers go first.
        """
        checked = [copy for copy in copies if copy.needs_barrier]
        marked = [] if leader in self._marker_requests else [copy for copy in copies if not copy.needs_barrier]
        if not (checked or marked):
            return
        sent: list[tuple[ReplayCopy, int]] = []
        left = MAX_MARKERS
        for count, copy in sorted(((copy.markers_due(now), copy) for copy in marked), key=lambda entry: entry[0]):
            if left:
                sent.append((copy, min(count, left)))
                left -= sent[-1][1]
        try:
            connection = self._target.connection(leader, _MARKER_LANE)
            for copy in checked:
                self._marking[copy], copy.sent_markers = connection, 1
            for copy, count in sent:
                self._marking[copy], copy.sent_markers = connection, count
            if checked:
                self._request_ends(checked, connection, is_after_barrier=True)
            if sent:
                self._request_markers(leader, connection, sent)
            connection.write()
        except (ConnectionLostError, UnsupportedVersionError) as error:
            for copy in (*checked, *(copy for copy, _ in sent)):
                self._unanswered(copy, f"target: {error}")

    def _request_markers(self, leader: int, connection: Connection, sent: Sequence[tuple[ReplayCopy, int]]) -> None:
        """Queue a request with markers, and behind it one for the log ends that show how many were written.

        A broker handles the requests of one connection in order. Its answer to the first one has a single result per
        producer and partition, whatever the number of markers. A single marker needs no log end, except for the first
        one of a writer: a late marker of an earlier writer may have been written before it.
        """
        version = connection.version_of(WriteTxnMarkersRequest, at_most=_MARKERS_VERSION)
        body = [markers_body(version, [(_marker(copy), count) for copy, count in sent])]
        counted = [copy for copy, count in sent if count > 1 or not copy.has_fenced]

        def on_response(response: WriteTxnMarkersResponse, _: object) -> None:
            self._marker_requests.pop(leader, None)
            codes: dict[int, set[int]] = {}
            for result in response.markers:
                error_codes = {answer.error_code for topic in result.topics for answer in topic.partitions}
                codes.setdefault(result.producer_id, set()).update(error_codes)
            for copy, _count in sent:
                if copy in self._marking:
                    self._marked(copy, codes.get(copy.stamp_of_markers.producer_id), is_counted=copy in counted)

        self._marker_requests[leader] = connection
        connection.submit(WriteTxnMarkersRequest, version, body, WriteTxnMarkersResponse, on_response)
        if counted:
            self._request_ends(counted, connection)

    def _marked(self, copy: ReplayCopy, codes: set[int] | None, *, is_counted: bool) -> None:
        """Process the answer to the markers of a partition.

        Args:
            copy: Partition.
            codes: Error codes. None: the answer does not contain the partition.
            is_counted: Whether the log end is requested, too.
        """
        failed = None if codes is None else codes - {int(ErrorCode.NONE)}
        if failed is None:
            self._unanswered(copy, "the target answered without this partition")
        elif failed & _FENCED:
            self._end_marking(copy)
            self._stop(copy, NEWER_MIRROR)
        elif ErrorCode.CLUSTER_AUTHORIZATION_FAILED in failed:
            self._unanswered(copy, "a marker needs ALTER on the cluster resource of the target", in_doubt=False)
        elif failed:
            names = ", ".join(map(error_name, sorted(failed)))
            in_doubt = bool(failed - _NOT_WRITTEN)
            self._unanswered(copy, f"the target rejected a marker: {names}", in_doubt=in_doubt)
        elif not is_counted:
            self._filled(copy, copy.acked_offset + 1)

    def _request_ends(
        self, copies: Sequence[ReplayCopy], connection: Connection, *, is_after_barrier: bool = False
    ) -> None:
        """Queue a request for the log ends of partitions with the same leader, also of what is not replicated yet."""
        version = connection.version_of(ListOffsetsRequest, at_least=1)
        request = self._target.offsets_request([copy.remote for copy in copies], clusters.LATEST, unreplicated=True)
        body = [encode(request, version)]

        def on_response(response: ListOffsetsResponse, _: object) -> None:
            answers = {
                (topic.name, answer.partition_index): answer for topic in response.topics for answer in topic.partitions
            }
            for copy in copies:
                if copy in self._marking:
                    answer = answers.get(copy.remote)
                    self._ended(copy, answer, is_after_barrier=is_after_barrier)

        connection.submit(ListOffsetsRequest, version, body, ListOffsetsResponse, on_response)

    def _ended(
        self,
        copy: ReplayCopy,
        answer: ListOffsetsResponse.ListOffsetsPartitionResponse | None,
        *,
        is_after_barrier: bool,
    ) -> None:
        if answer is None or answer.error_code != ErrorCode.NONE:
            reason = "no answer" if answer is None else error_name(answer.error_code)
            self._unanswered(copy, f"the target does not report its log end: {reason}")
        elif not is_after_barrier:
            self._filled(copy, answer.offset)
        elif answer.offset == copy.acked_offset:
            self._end_marking(copy)
            copy.is_unproven = False
        else:
            self._unanswered(copy, "a late request of an earlier mirror moved the log end")

    def _filled(self, copy: ReplayCopy, end_offset: int) -> None:
        self._end_marking(copy)
        if copy.state is CopyState.STOPPED:
            return
        if end_offset > (limit := copy.pending[0].next_offset):
            self._stop(
                copy,
                f"{copy.remote.name} ends at offset {end_offset}, but only offsets before {limit} were to be filled: a "
                "marker of an earlier mirror arrived late, or another producer writes the remote topic. Delete the "
                "remote topic to mirror it again",
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
        """Fail the requests of broken connections, and close those without progress (``request.timeout.ms``)."""
        super().sweep(now)
        for connection in set(self._marking.values()):
            if connection.silent_s(now) > self._settings.target.max_silence_s:
                connection.close()
        for copy, connection in list(self._marking.items()):
            if connection.closed:
                self._unanswered(copy, "the connection to the target broke")
        for leader, connection in list(self._marker_requests.items()):
            if connection.closed:
                del self._marker_requests[leader]


def _marker(copy: ReplayCopy) -> WriteTxnMarkersRequest.WritableTxnMarker:
    remote, partition = copy.remote
    return WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=copy.stamp_of_markers.producer_id,
        producer_epoch=copy.stamp_of_markers.producer_epoch,
        transaction_result=False,
        topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=remote, partition_indexes=[partition])],
    )


def markers_body(version: int, markers: Sequence[tuple[WriteTxnMarkersRequest.WritableTxnMarker, int]]) -> bytes:
    """Return the body of a WriteTxnMarkers request with repeated markers. Each of them is encoded once.

    A repeated marker is an entry of its own: a broker does not answer an entry that names a partition twice.

    Args:
        version: Version of the request.
        markers: Markers, and how often each is written.
    """
    flexible = WriteTxnMarkersRequest.is_flexible(version)
    entries = [bytes(encode(marker, version, flexible=flexible)) * count for marker, count in markers]
    head = encode(WriteTxnMarkersRequest(), version)
    return with_items(head, sum(count for _, count in markers), [*entries, NO_TAGS if flexible else b""], flexible)


def _is_draining(copy: PartitionCopy) -> bool:
    """Return whether fetched writes can be sent without a wait.

    A hole that is left unfinished at the end of a mirror makes the next one wait for late markers.
    """
    return bool(copy.pending) and copy.state is CopyState.COPYING
