"""Topics as clients see them: metadata, automatic creation, paging, deletion by name and id."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest

from klamm import Broker
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from klamm.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

NONE, UNKNOWN_TOPIC, INVALID_TOPIC, UNKNOWN_TOPIC_ID, INVALID_REQUEST, POLICY_VIOLATION = 0, 3, 17, 100, 42, 44


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(brokers=3, config={"num.partitions": 2}) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[WireClient]:
    with WireClient(broker.bootstrap_servers.split(",")[0]) as connection:
        yield connection


def create(client: WireClient, name: str, partitions: int = 3, replicas: int = 2) -> UUID:
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas)
    (result,) = client.ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, 7).topics
    assert result.error_code == NONE
    return result.topic_id


def metadata(
    client: WireClient, name: str | None, *, topic_id: UUID | None = None, create: bool = False, version: int = 12
) -> MetadataResponse.MetadataResponseTopic:
    topic = MetadataRequest.MetadataRequestTopic(name=name)
    if topic_id is not None:
        topic.topic_id = topic_id
    request = MetadataRequest(topics=[topic], allow_auto_topic_creation=create)
    (answer,) = client.ask(request, MetadataResponse, version).topics
    return answer


def test_leaders_and_replicas_are_spread_over_the_broker_ids(client: WireClient) -> None:
    create(client, "spread", partitions=6, replicas=2)
    partitions = metadata(client, "spread").partitions
    assert sorted(partition.leader_id for partition in partitions) == [1, 1, 2, 2, 3, 3]
    assert all(len(set(partition.replica_nodes)) == 2 for partition in partitions)
    assert all(partition.isr_nodes == partition.replica_nodes for partition in partitions)


@pytest.mark.parametrize("version", range(14))
def test_every_metadata_version_lists_the_brokers(client: WireClient, version: int) -> None:
    topic = [MetadataRequest.MetadataRequestTopic(name="no-such-topic")]
    request = MetadataRequest(topics=topic, allow_auto_topic_creation=False) if version >= 4 else MetadataRequest()
    response = client.ask(request, MetadataResponse, version)
    assert [broker.node_id for broker in response.brokers] == [1, 2, 3]


def test_metadata_creates_topic_only_if_client_allows(client: WireClient) -> None:
    assert metadata(client, "auto-no").error_code == UNKNOWN_TOPIC
    answer = metadata(client, "auto-yes", create=True)
    assert (answer.error_code, len(answer.partitions)) == (NONE, 2)


def test_metadata_creates_no_topic_if_broker_disables_auto_creation() -> None:
    with Broker(config={"auto.create.topics.enable": False}) as broker, WireClient(broker.bootstrap_servers) as client:
        assert metadata(client, "auto", create=True).error_code == UNKNOWN_TOPIC
        assert client.ask(MetadataRequest(topics=None), MetadataResponse, 12).topics == []


def test_invalid_topic_name_is_not_reported_as_unknown(client: WireClient) -> None:
    assert metadata(client, "no good!", create=True).error_code == INVALID_TOPIC


def test_topic_is_found_by_id_and_unknown_id_is_echoed(client: WireClient) -> None:
    topic_id = create(client, "by-id")
    assert metadata(client, None, topic_id=topic_id).name == "by-id"
    unknown = uuid4()
    answer = metadata(client, None, topic_id=unknown)
    assert (answer.error_code, answer.topic_id, answer.name) == (UNKNOWN_TOPIC_ID, unknown, None)


def test_repeated_topic_is_listed_once_per_name(client: WireClient) -> None:
    topic_id = create(client, "many-times")
    topics = [
        MetadataRequest.MetadataRequestTopic(name=name, topic_id=by_id)
        for name, by_id in (("many-times", UUID(int=0)), ("no-such", UUID(int=0)), (None, topic_id)) * 3
    ]
    answer = client.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=False), MetadataResponse, 12)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("many-times", NONE),
        ("no-such", UNKNOWN_TOPIC),
        ("many-times", NONE),
    ]


def test_topic_names_differing_in_dot_and_underscore_collide(client: WireClient) -> None:
    create(client, "col.lide")
    topic = CreateTopicsRequest.CreatableTopic(name="col_lide", num_partitions=1, replication_factor=1)
    (result,) = client.ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, 7).topics
    assert (result.error_code, result.error_message) == (
        INVALID_TOPIC,
        "Topic 'col_lide' collides with existing topic: col.lide",
    )


@pytest.mark.parametrize("counts", [[6_000, 6_000], [10_000, 0], [2**31 - 1, 2**31 - 1]])
def test_create_topics_above_10000_partitions_is_rejected(client: WireClient, counts: list[int]) -> None:
    before = client.topic_ids()
    topics = [
        CreateTopicsRequest.CreatableTopic(name=f"many-{index}", num_partitions=count, replication_factor=1)
        for index, count in enumerate(counts)
    ]
    answer = client.ask(CreateTopicsRequest(topics=topics), CreateTopicsResponse, 7)
    expected = (POLICY_VIOLATION, "Excessively large number of partitions per request.")
    assert [(topic.error_code, topic.error_message) for topic in answer.topics] == [expected, expected]
    assert client.topic_ids() == before


def test_create_partitions_above_10000_partitions_is_rejected(client: WireClient) -> None:
    def grow(counts: dict[str, int]) -> dict[str, tuple[int, str | None]]:
        topics = [
            CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
            for name, count in counts.items()
        ]
        request = CreatePartitionsRequest(topics=topics, timeout_ms=60_000, validate_only=True)
        answer = client.ask(request, CreatePartitionsResponse, 3)
        return {result.name: (result.error_code, result.error_message) for result in answer.results}

    # given
    create(client, "grown-a", partitions=3)
    create(client, "grown-b", partitions=1)
    # when
    answer = grow({"grown-a": 5_003, "grown-b": 5_002, "missing": 20_000})
    # then
    expected = (POLICY_VIOLATION, "Excessively large number of additional partitions per request.")
    assert answer == dict.fromkeys(("grown-a", "grown-b", "missing"), expected)
    # what is there and what cannot be done do not count
    assert grow({"grown-a": 5_003, "grown-b": 5_001, "missing": 20_000}) == {
        "grown-a": (NONE, None),
        "grown-b": (NONE, None),
        "missing": (UNKNOWN_TOPIC, None),
    }
    assert grow({"grown-a": 10_002, "grown-b": -10_000})["grown-a"] == (NONE, None)


def test_cluster_metadata_topic_cannot_be_created(client: WireClient) -> None:
    topic = CreateTopicsRequest.CreatableTopic(name="__cluster_metadata", num_partitions=1, replication_factor=1)
    (result,) = client.ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, 7).topics
    assert (result.error_code, result.error_message) == (
        INVALID_REQUEST,
        "Creation of internal topic __cluster_metadata is prohibited.",
    )
    assert metadata(client, "__cluster_metadata", create=True).error_code != NONE


def test_paging_through_topics_shows_every_partition_once(client: WireClient) -> None:
    for index in range(4):
        create(client, f"page-{index}", partitions=5)
    names = [f"page-{index}" for index in range(4)]
    wanted = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names]
    seen: list[tuple[str | None, int]] = []
    cursor = None
    for _ in range(20):
        request = DescribeTopicPartitionsRequest(topics=wanted, response_partition_limit=3, cursor=cursor)
        response = client.ask(request, DescribeTopicPartitionsResponse, 0)
        seen += [(topic.name, partition.partition_index) for topic in response.topics for partition in topic.partitions]
        if response.next_cursor is None:
            break
        cursor = DescribeTopicPartitionsRequest.Cursor(
            topic_name=response.next_cursor.topic_name, partition_index=response.next_cursor.partition_index
        )
    assert seen == [(name, index) for name in names for index in range(5)]


def test_describe_cluster_lists_brokers_and_rejects_controller_endpoints(client: WireClient) -> None:
    response = client.ask(DescribeClusterRequest(), DescribeClusterResponse, 2)
    assert [broker.broker_id for broker in response.brokers] == [1, 2, 3]
    assert client.ask(DescribeClusterRequest(endpoint_type=2), DescribeClusterResponse, 2).error_code == 114


def test_topic_deleted_by_name_and_id_in_one_request_is_kept(client: WireClient) -> None:
    topic_id = create(client, "twice")
    states = [
        DeleteTopicsRequest.DeleteTopicState(name="twice"),
        DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic_id),
    ]
    response = client.ask(DeleteTopicsRequest(topics=states), DeleteTopicsResponse, 6)
    assert [(result.name, result.error_code) for result in response.responses] == [("twice", INVALID_REQUEST)]
    assert metadata(client, "twice").error_code == NONE


def test_recreated_topic_has_a_new_id(client: WireClient) -> None:
    old = create(client, "anew")
    state = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=old)
    (result,) = client.ask(DeleteTopicsRequest(topics=[state]), DeleteTopicsResponse, 6).responses
    assert (result.error_code, result.name) == (NONE, "anew")
    assert create(client, "anew") != old
    assert metadata(client, None, topic_id=old).error_code == UNKNOWN_TOPIC_ID


def test_topics_survive_a_restart_with_their_ids(broker: Broker, client: WireClient) -> None:
    topic_id = create(client, "durable", partitions=4)
    broker.restart()
    with WireClient(broker.bootstrap_servers.split(",")[0]) as again:
        answer = metadata(again, "durable")
    assert (answer.topic_id, len(answer.partitions)) == (topic_id, 4)
