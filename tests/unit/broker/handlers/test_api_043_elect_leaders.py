"""ElectLeaders: denied requests, and topics that are deleted during the request."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from klamm.broker.handlers.api_043_elect_leaders import ROUTE
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from klamm.security.acls import CLUSTER_NAME, AclOperation
from klamm.server.time_slice import TimeSlice
from tests.support.data_path import DataPath, opened
from tests.support.group_broker import Denying

broker = pytest.fixture(opened)


@pytest.mark.parametrize("version", range(3))
def test_denied_election_is_reported_for_each_partition(broker: DataPath, version: int) -> None:
    """Version 0 has no other place for the error."""
    broker.services.authorizer = Denying({(AclOperation.ALTER, CLUSTER_NAME)})
    named = [ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0, 7])]

    response = broker.ask(ROUTE, ElectLeadersRequest(topic_partitions=named), ElectLeadersResponse, version)

    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    (topic,) = response.replica_election_results
    assert response.error_code == (denied if version else ErrorCode.NONE)
    assert topic.topic == "t"
    assert [(item.partition_id, item.error_code) for item in topic.partition_result] == [(0, denied), (7, denied)]


def test_denied_election_of_all_partitions_names_none(broker: DataPath) -> None:
    broker.services.authorizer = Denying({(AclOperation.ALTER, CLUSTER_NAME)})

    response = broker.ask(ROUTE, ElectLeadersRequest(topic_partitions=None), ElectLeadersResponse, 2)

    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert response.replica_election_results == []


async def test_election_of_all_partitions_leaves_out_a_topic_deleted_during_the_request(broker: DataPath) -> None:
    # given
    context = replace(broker.context(2), time_slice=TimeSlice(0))

    async def delete() -> None:
        del broker.topics.known["t"]

    # when
    response, _ = await asyncio.gather(ROUTE.handle(ElectLeadersRequest(topic_partitions=None), context), delete())

    # then
    assert isinstance(response, ElectLeadersResponse)
    assert [entry for topic in response.replica_election_results for entry in topic.partition_result] == []
