"""Responses to clients whose client id a policy refuses.

=========================================  ===========================================================================
Requests                                   Response to a client with a refused id
=========================================  ===========================================================================
ApiVersions and logins                     as always. They come before the principal is known.
Metadata                                   as always, so that the client reaches the broker that refuses it. Clients
                                           have no clear way to report an error in it.
Fetch, ListOffsets, OffsetForLeaderEpoch   TOPIC_AUTHORIZATION_FAILED for each partition. The consumers of Kafka report
                                           it, and repeat such requests silently after other errors.
InitProducerId                             CLUSTER_AUTHORIZATION_FAILED, because librdkafka repeats it after other
                                           errors; and a throttle time of a second. The Java producer fails its records,
                                           and sends the next InitProducerId at once, more than 5,000 per second.
FindCoordinator for a transactional id     TRANSACTIONAL_ID_AUTHORIZATION_FAILED. librdkafka repeats it after other
                                           errors.
those with an error code for the whole     POLICY_VIOLATION. The Java client sends GetTelemetrySubscriptions beside its
response, or for each of their parts       other requests, and a closed connection would fail those, too.
all others                                 The connection is closed. The Java client reconnects with a backoff, and
                                           reports a timeout.
=========================================  ===========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from klamm.gateway.relay.logins import LOGIN_APIS
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from klamm.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from klamm.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsResponse
from klamm.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from klamm.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from klamm.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.messages.describe_acls import DescribeAclsResponse
from klamm.protocol.messages.describe_client_quotas import DescribeClientQuotasResponse
from klamm.protocol.messages.describe_cluster import DescribeClusterResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.messages.describe_log_dirs import DescribeLogDirsResponse
from klamm.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from klamm.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from klamm.protocol.messages.elect_leaders import ElectLeadersResponse
from klamm.protocol.messages.end_txn import EndTxnResponse
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsResponse
from klamm.protocol.messages.heartbeat import HeartbeatResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.messages.init_producer_id import InitProducerIdResponse
from klamm.protocol.messages.join_group import JoinGroupResponse
from klamm.protocol.messages.leave_group import LeaveGroupResponse
from klamm.protocol.messages.list_config_resources import ListConfigResourcesResponse
from klamm.protocol.messages.list_groups import ListGroupsResponse
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsResponse
from klamm.protocol.messages.list_transactions import ListTransactionsResponse
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from klamm.protocol.messages.offset_delete import OffsetDeleteResponse
from klamm.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.messages.push_telemetry import PushTelemetryResponse
from klamm.protocol.messages.sync_group import SyncGroupResponse
from klamm.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from klamm.server.attempt import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from klamm.protocol.schema import Message, Struct

Path = tuple[tuple[str, str], ...]
"""Names of the arrays in a request and in its response, from the outermost one to that whose entries have errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusable:
    """An API whose response can carry an error."""

    response: type[Message]
    request: type[Message] | None = None
    """None if there is only an error for the whole response."""
    path: Path = ()
    error_code: ErrorCode | None = None
    """Error in place of that of the policy."""
    throttle_time_ms: int = 0
    """Pause that the client is to make."""
    first_version: int = 0
    """First version whose response has an error."""


_RESOURCES: Final = (("resources", "responses"),)
_PARTITIONS: Final = (("topics", "topics"), ("partitions", "partitions"))
_BY_PART: Final = (
    _Refusable(
        request=ProduceRequest,
        response=ProduceResponse,
        path=(("topic_data", "responses"), ("partition_data", "partition_responses")),
    ),
    _Refusable(
        request=FetchRequest,
        response=FetchResponse,
        path=(("topics", "responses"), ("partitions", "partitions")),
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ),
    _Refusable(
        request=ListOffsetsRequest,
        response=ListOffsetsResponse,
        path=_PARTITIONS,
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ),
    _Refusable(
        request=OffsetForLeaderEpochRequest,
        response=OffsetForLeaderEpochResponse,
        path=_PARTITIONS,
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ),
    _Refusable(
        request=FindCoordinatorRequest, response=FindCoordinatorResponse, path=(("coordinator_keys", "coordinators"),)
    ),
    _Refusable(request=OffsetCommitRequest, response=OffsetCommitResponse, path=_PARTITIONS),
    _Refusable(request=TxnOffsetCommitRequest, response=TxnOffsetCommitResponse, path=_PARTITIONS),
    _Refusable(request=CreateTopicsRequest, response=CreateTopicsResponse, path=(("topics", "topics"),)),
    _Refusable(request=CreatePartitionsRequest, response=CreatePartitionsResponse, path=(("topics", "results"),)),
    _Refusable(request=DeleteTopicsRequest, response=DeleteTopicsResponse, path=(("topics", "responses"),)),
    _Refusable(request=AlterConfigsRequest, response=AlterConfigsResponse, path=_RESOURCES),
    _Refusable(request=IncrementalAlterConfigsRequest, response=IncrementalAlterConfigsResponse, path=_RESOURCES),
    _Refusable(request=DescribeConfigsRequest, response=DescribeConfigsResponse, path=(("resources", "results"),)),
    _Refusable(request=DeleteRecordsRequest, response=DeleteRecordsResponse, path=_PARTITIONS),
    _Refusable(
        request=DescribeTopicPartitionsRequest, response=DescribeTopicPartitionsResponse, path=(("topics", "topics"),)
    ),
    _Refusable(
        request=DescribeProducersRequest,
        response=DescribeProducersResponse,
        path=(("topics", "topics"), ("partition_indexes", "partitions")),
    ),
    _Refusable(request=CreateAclsRequest, response=CreateAclsResponse, path=(("creations", "results"),)),
    _Refusable(request=DeleteAclsRequest, response=DeleteAclsResponse, path=(("filters", "filter_results"),)),
)
_WHOLE: Final = (
    AddOffsetsToTxnResponse,
    AlterPartitionReassignmentsResponse,
    ConsumerGroupHeartbeatResponse,
    DescribeAclsResponse,
    DescribeClientQuotasResponse,
    DescribeClusterResponse,
    EndTxnResponse,
    GetTelemetrySubscriptionsResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListConfigResourcesResponse,
    ListGroupsResponse,
    ListPartitionReassignmentsResponse,
    ListTransactionsResponse,
    OffsetDeleteResponse,
    PushTelemetryResponse,
    SyncGroupResponse,
)
ADMITTED_APIS: Final = LOGIN_APIS | {ApiKey.METADATA}
"""APIs that are served whatever the client id is."""
REFUSABLE: Final[Mapping[int, _Refusable]] = (
    {each.response.API_KEY: each for each in _BY_PART}
    | {response.API_KEY: _Refusable(response=response) for response in _WHOLE}
    | {
        ApiKey.INIT_PRODUCER_ID: _Refusable(
            response=InitProducerIdResponse,
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            throttle_time_ms=1000,
        ),
        ApiKey.DESCRIBE_LOG_DIRS: _Refusable(response=DescribeLogDirsResponse, first_version=3),
        ApiKey.ELECT_LEADERS: _Refusable(response=ElectLeadersResponse, first_version=1),
    }
)
_LAST_WITH_ONE_KEY: Final = 3
"""Last version of FindCoordinator for one coordinator, with an error for the whole response."""
_TRANSACTION: Final = 1
"""``key_type`` of FindCoordinator for a transactional id."""
_LAST_WITH_NAMES: Final = 5
"""Last version of DeleteTopics with a plain list of names."""


def refusal(api_key: int, api_version: int, request: Message | None, error: ApiError) -> Message:
    """Return the response to a request of a client whose id is refused.

    Args:
        api_key: API key in ``REFUSABLE``.
        api_version: Version of the request.
        request: The request; None if the API has an error for the whole response only.
        error: Error of the policy.
    """
    found = REFUSABLE[api_key]
    path = found.path
    if found.error_code is not None:
        error = ApiError(found.error_code, None)
    if isinstance(request, FindCoordinatorRequest):
        if request.key_type == _TRANSACTION:
            error = ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, error.error_message)
        if api_version <= _LAST_WITH_ONE_KEY:
            path = ()
    if api_key == ApiKey.DELETE_TOPICS and api_version <= _LAST_WITH_NAMES:
        path = (("topic_names", "responses"),)
    values: dict[str, Any] = (
        {path[0][1]: _entries(found.response, request, path, error)} if path else _error(found.response, error)
    )
    if found.throttle_time_ms:
        values["throttle_time_ms"] = found.throttle_time_ms
    return found.response(**values)


def _error(cls: type[Struct], error: ApiError) -> dict[str, Any]:
    names = {field.name for field in cls.FIELDS}
    values = {"error_code": error.error_code, "error_message": error.error_message}
    return {name: value for name, value in values.items() if name in names}


def _entries(cls: type[Struct], parts_of: Any, path: Path, error: ApiError) -> list[Struct]:
    (asked, answered), *inner = path
    entry = next(field.struct for field in cls.FIELDS if field.name == answered)
    if entry is None:
        raise TypeError(f"{cls.__name__}.{answered} has no structs")
    found = []
    for part in getattr(parts_of, asked):
        values = dict(_identity(entry, part))
        values |= {inner[0][1]: _entries(entry, part, tuple(inner), error)} if inner else _error(entry, error)
        found.append(entry(**values))
    return found


def _identity(entry: type[Struct], part: Any) -> Iterable[tuple[str, Any]]:
    """Return the fields of an entry that say which part of the request it belongs to."""
    names = {field.name for field in entry.FIELDS}
    if isinstance(part, str):
        return ((name, part) for name in ("key", "name") if name in names)
    if isinstance(part, int):
        return (("partition_index", part),)
    same = ("name", "topic", "topic_id", "index", "partition_index", "resource_type", "resource_name")
    pairs = [(name, getattr(part, name)) for name in same if name in names and hasattr(part, name)]
    if "partition_index" in names and hasattr(part, "partition"):
        pairs.append(("partition_index", part.partition))
    return pairs
