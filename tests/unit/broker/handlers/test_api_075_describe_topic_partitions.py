"""DescribeTopicPartitions: topics that are deleted during the request."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from klamm.broker.handlers.api_075_describe_topic_partitions import ROUTE
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from klamm.server.time_slice import TimeSlice
from tests.support.data_path import DataPath, opened

broker = pytest.fixture(opened)


@pytest.mark.parametrize(
    ("named", "entries"),
    [
        ([], [("t", ErrorCode.NONE)]),
        (["t", "u"], [("t", ErrorCode.NONE), ("u", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]),
    ],
)
async def test_topic_deleted_during_the_request_is_listed_only_if_named(
    broker: DataPath, named: list[str], entries: list[tuple[str, ErrorCode]]
) -> None:
    # given
    broker.add_topic("u")
    broker.broker_configs["max.request.partition.size.limit"] = 2000
    context = replace(broker.context(0), time_slice=TimeSlice(0))
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name=n) for n in named]
    )

    async def delete() -> None:
        del broker.topics.known["u"]

    # when
    response, _ = await asyncio.gather(ROUTE.handle(request, context), delete())

    # then
    assert isinstance(response, DescribeTopicPartitionsResponse)
    assert [(topic.name, topic.error_code) for topic in response.topics] == entries
