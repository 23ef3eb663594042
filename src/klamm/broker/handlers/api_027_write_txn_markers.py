"""WriteTxnMarkers (key 27), v1-2.

Ends a producer's transaction in partitions, whatever the state of the transaction coordinator. ``kafka-transactions.sh
abort`` sends this for a hanging transaction. Where ``flush.messages`` requires it, the marker is durable before the
response. From v2 on, a marker of ``transaction.version`` 2 needs a newer epoch than that of the open transaction
(KIP-1228). Requires CLUSTER_ACTION or ALTER on the cluster.
Not implemented: markers between brokers, because the coordinator writes to the logs itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import CLUSTER_DENIED, may_cluster
from klamm.broker.requests.partitions import leader_log
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import (
    ClusterAuthorizationError,
    ErrorCode,
    InvalidProducerEpochError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from klamm.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from klamm.protocol.records import ControlType
from klamm.security.acls import AclOperation
from klamm.server.attempt import attempt
from klamm.server.route import Route
from klamm.storage.log import append_marker

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.WRITE_TXN_MARKERS, min_version=1, max_version=2)
_NEW_EPOCH_SINCE: Final = 2
"""Transaction version from which on each transaction has an epoch of its own (KIP-890)."""


async def handle(request: WriteTxnMarkersRequest, context: RequestContext) -> WriteTxnMarkersResponse:
    """Write every marker. An error of one partition does not affect the others."""
    slices = context.time_slice
    return WriteTxnMarkersResponse(
        markers=[
            WriteTxnMarkersResponse.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=await _write(marker, topic.name, index, context)
                            )
                            async for index in slices.over(topic.partition_indexes)
                        ],
                    )
                    async for topic in slices.over(marker.topics)
                ],
            )
            async for marker in slices.over(request.markers)
        ]
    )


async def _write(
    marker: WriteTxnMarkersRequest.WritableTxnMarker, name: str, partition: int, context: RequestContext
) -> ErrorCode:
    async def write() -> None:
        if not (may_cluster(context, AclOperation.CLUSTER_ACTION) or may_cluster(context, AclOperation.ALTER)):
            raise ClusterAuthorizationError(CLUSTER_DENIED.error_message)
        topic = context.services.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartitionError("This server does not host this topic-partition.")
        log = leader_log(context, topic, partition)
        needs_new_epoch = marker.transaction_version >= _NEW_EPOCH_SINCE
        if needs_new_epoch and log.producers.has_open(marker.producer_id, marker.producer_epoch):
            raise InvalidProducerEpochError(
                f"The marker's epoch {marker.producer_epoch} of producer {marker.producer_id} in {log.name} is that of"
                " the open transaction"
            )
        if not log.has_directory:
            await context.services.logs.create_directories([(topic.topic_id, partition)])
        append_marker(
            log,
            ControlType.COMMIT if marker.transaction_result else ControlType.ABORT,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            now_ms=context.services.now_ms(),
        )
        if log.needs_flush:
            # The coordinator stores its own decisions; an administrator's decision is in the log only.
            try:
                await context.services.logs.flush(log)
            except OSError as error:
                raise StorageError(f"Cannot flush {log.name}: {error}") from error

    _, error = await attempt(write, api=API.key)
    return error.error_code


ROUTE: Final = Route(api=API, request=WriteTxnMarkersRequest, handle=handle)
