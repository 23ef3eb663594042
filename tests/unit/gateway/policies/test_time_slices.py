"""Requests with many parts: other requests are served between the decisions of a policy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pytest

from klamm.admin import ConfigEntry
from klamm.gateway.apis.table import POLICIES
from klamm.gateway.policies.policy_api import ResourceTurns
from klamm.gateway.relay.filter import Serve
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.types import ConfigOperation, ResourceType
from klamm.server import time_slice
from tests.support.gateway_context import FakeAdmin, FakeContext, FakePolicies, incremental

if TYPE_CHECKING:
    from klamm.protocol.schema import Message

NAMES: Final = ("a", "b", "c", "d")
NO_ID: Final = UUID(int=0)
Reassigned = AlterPartitionReassignmentsRequest.ReassignableTopic
REQUESTS: Final[tuple[Message, ...]] = (
    MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in NAMES]),
    CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[])
            for name in NAMES
        ]
    ),
    DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=NO_ID) for name in NAMES]),
    CreatePartitionsRequest(
        topics=[CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=2, assignments=None) for name in NAMES]
    ),
    IncrementalAlterConfigsRequest(
        resources=[incremental(name, ("retention.ms", ConfigOperation.SET, "1")) for name in NAMES]
    ),
    AlterPartitionReassignmentsRequest(
        topics=[
            Reassigned(
                name=name,
                partitions=[
                    AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=0, replicas=[1, 2])
                ],
            )
            for name in NAMES
        ]
    ),
)


def upstream(request: Message) -> Message:
    """Return the response that accepts everything. The topics of Metadata do not exist."""
    match request:
        case MetadataRequest():
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics = [MetadataResponse.MetadataResponseTopic(name=name, error_code=unknown) for name in NAMES]
            return MetadataResponse(topics=topics, brokers=[MetadataResponse.MetadataResponseBroker(node_id=1)])
        case CreateTopicsRequest():
            created = CreateTopicsResponse.CreatableTopicResult
            return CreateTopicsResponse(
                topics=[created(name=name, num_partitions=1, replication_factor=1, configs=[]) for name in NAMES]
            )
        case DeleteTopicsRequest():
            deleted = DeleteTopicsResponse.DeletableTopicResult
            return DeleteTopicsResponse(responses=[deleted(name=name, topic_id=NO_ID) for name in NAMES])
        case CreatePartitionsRequest():
            grown = CreatePartitionsResponse.CreatePartitionsTopicResult
            return CreatePartitionsResponse(results=[grown(name=name) for name in NAMES])
        case IncrementalAlterConfigsRequest():
            altered = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
            return IncrementalAlterConfigsResponse(
                responses=[altered(resource_type=ResourceType.TOPIC, resource_name=name) for name in NAMES]
            )
    return AlterPartitionReassignmentsResponse()


class CountingPolicies(FakePolicies):
    """Policies that record which turn of the event loop each question comes in."""

    turns = 0

    def __init__(self) -> None:
        super().__init__()
        self.asked_in: list[int] = []

    async def check(self, kind: object, details: Any, overridden: object = None) -> None:
        self.asked_in.append(self.turns)

    async def count_turns(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.turns += 1


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
async def test_other_requests_are_served_between_the_decisions_on_parts(
    request_: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_slice, "SLICE_S", 0.0)
    policies = CountingPolicies()
    (api,) = (each for each in POLICIES if each.key == request_.API_KEY)
    admin, auto_create = FakeAdmin({name: [[1]] for name in NAMES}), "auto.create.topics.enable"
    admin.described = {(ResourceType.BROKER, "1"): {auto_create: ConfigEntry(auto_create, "true")}}
    context = FakeContext(upstream=upstream, admin=admin)
    result = api.filter(policies.as_policies(), ResourceTurns()).decide(request_, context)
    assert isinstance(result, Serve)
    counting = asyncio.create_task(policies.count_turns())
    await result.handle(request_, context)
    counting.cancel()
    assert len(set(policies.asked_in)) == len(NAMES)
