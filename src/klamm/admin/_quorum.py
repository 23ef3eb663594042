"""Choice of a broker that has applied all committed metadata: DescribeQuorum (key 55) and ApiVersions.

The brokers of a KRaft cluster learn of a change after its response was sent. A request to any of them may thus return
the state before a change that the same client has just made. The controller's high watermark says how much metadata is
committed. A broker reports the offset of the last metadata record that it has applied as ``finalized_features_epoch``
(``KRaftMetadataCache.features``).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.kafka_client.errors import RETRIABLE_CODES
from klamm.kafka_client.pool.calls import Deadline
from klamm.kafka_client.pool.node import NotReadyError
from klamm.kafka_client.pool.pool import CONTROLLER
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from klamm.retries import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from klamm.kafka_client.pool.node import PooledConnection
    from klamm.kafka_client.pool.pool import ConnectionPool

Key = TypeVar("Key")
Response = TypeVar("Response")

_METADATA_TOPIC: Final = "__cluster_metadata"
_EPOCH_SINCE: Final = 3
_ATTEMPT_MS: Final = 3_000
"""Time that one broker may need to apply the committed metadata. After it another one is tried."""
_IDLE_MS: Final = 1_000
"""Time to wait for the next record of an idle controller: twice Kafka's default interval."""
_FIRST_PAUSE_S: Final = 0.002
_MAX_PAUSE_S: Final = 0.1


async def find_current(
    pool: ConnectionPool,
    deadline: Deadline,
    node_id: int | None,
    keys: Iterable[Key],
    *,
    has_broker_configs: bool = False,
) -> dict[Key, int]:
    """Return ``current_node`` for each key, as ``KeyedCall.find`` does."""
    chosen = await current_node(pool, deadline, node_id, has_broker_configs=has_broker_configs)
    return dict.fromkeys(keys, chosen)


async def ask_current(
    pool: ConnectionPool, deadline: Deadline, send: Callable[[int], Awaitable[Response]], *, what: str
) -> Response:
    """Send a request to a broker that has applied all metadata committed before this call, and return its response.

    Args:
        pool: Connections to the cluster.
        deadline: Deadline of all attempts.
        send: Function that sends the request to a node.
        what: Name of the request, for error messages.

    Raises:
        KafkaApiError: The principal may not describe the cluster.
        TimeoutError: No broker has responded before the deadline.
    """

    async def attempt() -> Response:
        return await send(await current_node(pool, deadline))

    return await pool.until_answered(attempt, deadline, what=what)


async def current_node(
    pool: ConnectionPool, deadline: Deadline, node_id: int | None = None, *, has_broker_configs: bool = False
) -> int:
    """Return a broker that has applied all metadata committed before this call.

    Args:
        pool: Connections to the cluster.
        deadline: Deadline of the whole wait.
        node_id: The broker to wait for; None for any. A cluster without DescribeQuorum has no metadata log that its
            brokers could lag behind: its controller is returned.
        has_broker_configs: Whether configs of brokers are read. A broker applies those as the last part of each image
            of the metadata (``BrokerMetadataPublisher``), after the offset that it reports. It is certain to have done
            so when it reports a later offset; an idle controller writes a record every
            ``metadata.max.idle.interval.ms``.

    Raises:
        KafkaApiError: The principal may not describe the cluster.
        TimeoutError: No broker has caught up before the deadline.
    """
    committed: int | None = None

    async def attempt() -> int:
        nonlocal committed
        limit = Deadline(min(_ATTEMPT_MS, deadline.left_ms()))
        chosen = node_id
        if chosen is None:
            await pool.connection(limit, CONTROLLER)
            chosen = pool.controller_id
            if chosen is None:
                raise NotReadyError("the cluster has no controller yet")
        # By its id: another call may have changed the controller while the connection was opened.
        link = await pool.connection(limit, chosen)
        if DescribeQuorumRequest.API_KEY in link.versions:
            if committed is None:
                committed = await _committed_offset(pool, link, limit)
            await _wait_until_applied(pool, link, committed, limit)
            if has_broker_configs:
                with contextlib.suppress(TimeoutError):  # the controller may be set to write no records while idle
                    await _wait_until_applied(pool, link, committed + 1, Deadline(min(_IDLE_MS, limit.left_ms())))
        return chosen

    return await pool.until_answered(attempt, deadline, what="A broker that has applied the committed metadata")


async def _committed_offset(pool: ConnectionPool, link: PooledConnection, deadline: Deadline) -> int:
    """Return the offset of the last committed metadata record, from a DescribeQuorum request to a broker."""
    partition = DescribeQuorumRequest.PartitionData(partition_index=0)
    topic = DescribeQuorumRequest.TopicData(topic_name=_METADATA_TOPIC, partitions=[partition])
    version = link.version_of(DescribeQuorumRequest)
    response = await link.call(
        DescribeQuorumRequest(topics=[topic]), DescribeQuorumResponse, version, timeout_s=deadline.left_s()
    )
    if response.error_code not in RETRIABLE_CODES:
        pool.check(response)
    for entry in (each for topic in response.topics for each in topic.partitions):
        if entry.error_code == ErrorCode.NONE and entry.high_watermark > 0:
            return entry.high_watermark - 1
    raise NotReadyError("the metadata quorum has no leader with a high watermark")


async def _wait_until_applied(pool: ConnectionPool, link: PooledConnection, offset: int, deadline: Deadline) -> None:
    backoff = Backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
    request = ApiVersionsRequest(client_software_name="klamm", client_software_version="admin")
    while True:
        version = link.version_of(ApiVersionsRequest, at_least=_EPOCH_SINCE, at_most=4)
        response = await link.call(request, ApiVersionsResponse, version, timeout_s=deadline.left_s())
        applied = response.finalized_features_epoch
        if applied >= offset:
            return
        if deadline.passed():
            raise TimeoutError(f"the broker has applied metadata up to offset {applied} of {offset}")
        await pool.pause(backoff.next_s())
