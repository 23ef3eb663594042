"""DeleteRecords (key 21), v0-2.

Advances the log start offset of partitions; -1 deletes all records. The response is sent when the new start offsets are
durable, so no crash restores records. Rejected for internal topics, and for compacted topics whose ``cleanup.policy``
lacks delete. As in Kafka, a topic with an empty ``cleanup.policy`` allows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.partitions import find_topic, leader_log
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import InvalidTopicError, PolicyViolationError, StorageError
from klamm.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from klamm.security.acls import AclOperation
from klamm.server.attempt import NONE, ApiError, attempt
from klamm.server.route import Route
from klamm.storage.log import delete_records

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.DELETE_RECORDS, min_version=0, max_version=2)
_UNKNOWN: Final = -1

Answer = DeleteRecordsResponse.DeleteRecordsPartitionResult


async def handle(request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
    """Delete the records, make that durable once for all partitions, and respond."""
    response = DeleteRecordsResponse(
        topics=[
            DeleteRecordsResponse.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    await _delete(topic.name, wanted, context)
                    async for wanted in context.time_slice.over(topic.partitions)
                ],
            )
            for topic in request.topics
        ]
    )
    deleted = [answer for topic in response.topics for answer in topic.partitions if not answer.error_code]
    error = await _checkpoint(context) if deleted else NONE
    for answer in deleted:
        answer.error_code = error.error_code
    return response


async def _delete(
    topic: str, wanted: DeleteRecordsRequest.DeleteRecordsPartition, context: RequestContext
) -> DeleteRecordsResponse.DeleteRecordsPartitionResult:
    async def delete() -> int:
        described = find_topic(context, AclOperation.DELETE, name=topic)
        if described.is_internal:
            raise InvalidTopicError(f"Cannot delete records of internal topic {topic}")
        log = leader_log(context, described, wanted.partition_index)
        if log.config.is_compacted and not log.config.is_deleted:
            raise PolicyViolationError(
                f"Records of partition {log.name} can not be deleted due to the configured policy"
            )
        return delete_records(log, wanted.offset)

    low_watermark, error = await attempt(delete, api=API.key)
    return Answer(
        partition_index=wanted.partition_index,
        low_watermark=_UNKNOWN if low_watermark is None else low_watermark,
        error_code=error.error_code,
    )


async def _checkpoint(context: RequestContext) -> ApiError:
    async def write() -> None:
        try:
            await context.services.logs.checkpoint()
        except OSError as error:
            raise StorageError(f"Cannot write the log start offsets: {error}") from error

    return (await attempt(write, api=API.key))[1]


ROUTE: Final = Route(api=API, request=DeleteRecordsRequest, handle=handle)
