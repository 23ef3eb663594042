"""DescribeLogDirs (key 35), v1-5.

Returns the data directory as named by ``log.dirs``, the size of each partition with a replica on the broker id that was
asked, the space of the file system (v4, KIP-827) and whether it is cordoned (v5, KIP-1066). As in Kafka, partitions
that do not exist are left out. While partitions are offline because of a disk error, they are left out and the
directory has the error KAFKA_STORAGE_ERROR; Kafka takes the whole directory offline and lists none of its partitions.
Requires DESCRIBE on the cluster; before v3 a denied request gets an empty response. All replicas are one log, so no
replica lags and none is being moved to another directory.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.broker.requests.checks import may_cluster
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode, StorageError
from klamm.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from klamm.protocol.types import ResourceType
from klamm.security.acls import AclOperation
from klamm.server.attempt import attempt
from klamm.server.route import Route
from klamm.storage.log import segment_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from klamm.broker.context import RequestContext
    from klamm.broker.topics.catalog import Topic

Result: TypeAlias = DescribeLogDirsResponse.DescribeLogDirsResult
Partition: TypeAlias = DescribeLogDirsResponse.DescribeLogDirsPartition
API: Final = Api(key=ApiKey.DESCRIBE_LOG_DIRS, min_version=1, max_version=5)
_LOG_DIRS: Final = "log.dirs"


async def handle(request: DescribeLogDirsRequest, context: RequestContext) -> DescribeLogDirsResponse:
    """Return the data directory."""
    if not may_cluster(context, AclOperation.DESCRIBE):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    directory = _directory(context)
    described, error = await attempt(lambda: _describe(directory, request, context), api=API.key)
    if described is None:
        described = Result(error_code=error.error_code, log_dir=directory)
    return DescribeLogDirsResponse(results=[described])


async def _describe(directory: str, request: DescribeLogDirsRequest, context: RequestContext) -> Result:
    topics: dict[str, DescribeLogDirsResponse.DescribeLogDirsTopic] = {}
    closed: list[tuple[Partition, Path]] = []
    logs = context.services.logs
    partitions = (
        (topic, index) for topic, indexes in await _partitions_by_topic(request, context) for index in indexes
    )
    async for topic, index in context.time_slice.over(partitions):
        if not topic.has_partition(index) or context.node_id not in topic.partitions[index]:
            continue
        footprint = logs.footprint(topic.topic_id, index)
        # None: the topic is being created or deleted
        if footprint is None or index in logs.offline_partitions(topic.topic_id):
            continue
        partition = Partition(partition_index=index)
        if isinstance(footprint, Path):
            closed.append((partition, footprint))
        else:
            partition.partition_size = footprint
        if topic.name not in topics:
            topics[topic.name] = DescribeLogDirsResponse.DescribeLogDirsTopic(name=topic.name)
        topics[topic.name].partitions.append(partition)
    try:
        sizes = await asyncio.to_thread(segment_bytes, [path for _, path in closed]) if closed else []
        room = await asyncio.to_thread(shutil.disk_usage, directory)
    except OSError as error:
        raise StorageError(f"{directory}: {error}") from error
    for (partition, _), size in zip(closed, sizes, strict=True):
        partition.partition_size = size
    return Result(
        error_code=ErrorCode.KAFKA_STORAGE_ERROR if logs.offline_count else ErrorCode.NONE,
        log_dir=directory,
        topics=list(topics.values()),
        total_bytes=room.total,
        usable_bytes=room.free,
        is_cordoned=context.node_id in context.services.configs.cordoned_nodes(),
    )


async def _partitions_by_topic(
    request: DescribeLogDirsRequest, context: RequestContext
) -> Iterable[tuple[Topic, Iterable[int]]]:
    """Return the requested topics and partitions without duplicates. Partitions need not exist."""
    catalog = context.services.topics
    if request.topics is None:
        return [(topic, range(len(topic.partitions))) for topic in catalog.all()]
    by_topic: dict[str, tuple[Topic, dict[int, None]]] = {}
    async for wanted in context.time_slice.over(request.topics):
        topic = catalog.get(wanted.topic)
        if topic is not None:
            by_topic.setdefault(topic.name, (topic, {}))[1].update(dict.fromkeys(wanted.partitions))
    return by_topic.values()


def _directory(context: RequestContext) -> str:
    name, node_id = str(context.node_id), context.node_id
    (described,) = context.services.configs.describe(ResourceType.BROKER, name, [_LOG_DIRS], node_id=node_id)
    return described.value or ""


ROUTE: Final = Route(api=API, request=DescribeLogDirsRequest, handle=handle)
