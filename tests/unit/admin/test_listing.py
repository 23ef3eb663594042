"""Listing what a cluster has, page by page and broker by broker, from new brokers and old ones."""

from __future__ import annotations

import pytest

from klamm.admin import AdminClient, ResourceType
from klamm.protocol.errors import KafkaApiError, UnknownTopicOrPartitionError, UnsupportedVersionError
from klamm.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from klamm.protocol.messages.list_config_resources import ListConfigResourcesResponse
from klamm.protocol.messages.list_groups import ListGroupsResponse
from klamm.protocol.messages.metadata import MetadataResponse
from tests.support.stub_broker import SILENCE, Request, StubBroker, form_cluster, take_turns

Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
Partition = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition


def page(name: str, partitions: list[int], following: tuple[str, int] | None = None) -> DescribeTopicPartitionsResponse:
    cursor = following and DescribeTopicPartitionsResponse.Cursor(topic_name=following[0], partition_index=following[1])
    return DescribeTopicPartitionsResponse(
        topics=[
            Topic(
                name=name,
                partitions=[
                    Partition(partition_index=index, leader_id=1, replica_nodes=[1, 2], eligible_leader_replicas=[2])
                    for index in partitions
                ],
            )
        ],
        next_cursor=cursor or None,
    )


def test_topics_are_described_page_by_page_until_the_broker_has_no_more() -> None:
    # given
    pages = [page("a", [0, 1], ("b", 0)), page("b", [0], ("b", 1)), page("b", [1])]
    with StubBroker(versions={75: (0, 0)}) as broker, AdminClient(broker.bootstrap_servers) as admin:
        broker.answer(75, lambda _: pages.pop(0))
        # when
        result = admin.describe_topics(["b", "a"], include_eligible_leaders=True, partition_limit=2).all().result()
        # then
        assert {name: [partition.partition for partition in topic.partitions] for name, topic in result.items()} == {
            "a": [0, 1],
            "b": [0, 1],
        }
        assert result["a"].partitions[0].eligible_leader_replicas == (2,)
        requests = [request.read(DescribeTopicPartitionsRequest) for request in broker.requests(75)]
    # then
    cursors = []
    for request in requests:
        assert isinstance(request, DescribeTopicPartitionsRequest)
        assert request.response_partition_limit == 2
        cursors.append(request.cursor and (request.cursor.topic_name, request.cursor.partition_index))
    assert cursors == [None, ("b", 0), ("b", 1)]


def test_unknown_topic_fails_alone() -> None:
    # given
    answer = page("a", [0])
    answer.topics.append(Topic(name="b", error_code=3))
    with StubBroker(versions={75: (0, 0)}) as broker, AdminClient(broker.bootstrap_servers) as admin:
        broker.answer(75, lambda _: answer)
        # when
        futures = admin.describe_topics(["a", "b"], include_eligible_leaders=True).values()
        # then
        assert futures["a"].result().name == "a"
        assert isinstance(futures["b"].exception(), UnknownTopicOrPartitionError)


def test_broker_without_describe_topic_partitions_gets_metadata_request() -> None:
    with StubBroker() as broker, AdminClient(broker.bootstrap_servers) as admin:
        # when
        described = admin.describe_topics(["stub"], include_eligible_leaders=True).all().result()["stub"]
    # then
    assert described.partitions[0].eligible_leader_replicas is None


@pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["new broker first", "old broker first"])
def test_topics_are_described_while_brokers_differ_in_version(
    monkeypatch: pytest.MonkeyPatch, order: tuple[int, int]
) -> None:
    """With the new broker first, the second page is requested from the old one."""
    # given
    partitions = [MetadataResponse.MetadataResponsePartition(partition_index=index) for index in (0, 1)]
    with StubBroker(versions={75: (0, 0)}) as new, StubBroker() as old:
        answer = MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=node_id, host="127.0.0.1", port=broker.port)
                for node_id, broker in ((1, new), (2, old))
            ],
            topics=[MetadataResponse.MetadataResponseTopic(name="a", partitions=partitions)],
        )
        new.answer(75, lambda _: page("a", [0], ("a", 1)))
        for broker in (new, old):
            broker.answer(3, lambda _: answer)
        take_turns(monkeypatch, *order)
        with AdminClient(new.bootstrap_servers) as admin:
            # when
            described = admin.describe_topics(["a"], include_eligible_leaders=True).all().result(60)
    # then
    assert [partition.partition for partition in described["a"].partitions] == [0, 1]


def test_config_resources_are_listed_by_type() -> None:
    # given
    resource_class = ListConfigResourcesResponse.ConfigResource
    answer = ListConfigResourcesResponse(
        config_resources=[
            resource_class(resource_name=name, resource_type=kind) for name, kind in (("g2", 32), ("m", 16), ("g1", 32))
        ]
    )
    with StubBroker(versions={74: (0, 1)}) as broker, AdminClient(broker.bootstrap_servers) as admin:
        broker.answer(74, lambda _: answer)
        # then
        assert admin.list_config_resources(ResourceType.GROUP).result() == ("g1", "g2")


def test_old_broker_lists_only_client_metrics() -> None:
    with StubBroker(versions={74: (0, 0)}) as broker, AdminClient(broker.bootstrap_servers) as admin:
        # given
        broker.answer(74, lambda _: ListConfigResourcesResponse())
        # then
        assert admin.list_config_resources(ResourceType.CLIENT_METRICS).result() == ()
        with pytest.raises(UnsupportedVersionError):
            admin.list_config_resources(ResourceType.GROUP).result()


def test_listed_groups_are_sorted_and_error_of_response_is_raised() -> None:
    # given
    groups = [ListGroupsResponse.ListedGroup(group_id=name, protocol_type="consumer") for name in ("b", "a")]
    answers = [ListGroupsResponse(groups=groups), ListGroupsResponse(error_code=31)]

    def answer(_: Request) -> ListGroupsResponse:
        return answers.pop(0)

    with StubBroker(versions={16: (0, 4)}) as broker, AdminClient(broker.bootstrap_servers) as admin:
        broker.answer(16, answer)
        # then
        assert [(group.group_id, group.state) for group in admin.list_groups().result()] == [("a", None), ("b", None)]
        with pytest.raises(KafkaApiError, match="CLUSTER_AUTHORIZATION_FAILED"):
            admin.list_groups().result()


def _groups(*names: str) -> ListGroupsResponse:
    return ListGroupsResponse(
        groups=[ListGroupsResponse.ListedGroup(group_id=name, protocol_type="consumer") for name in names]
    )


def test_groups_of_other_brokers_are_valid_while_one_does_not_respond() -> None:
    # given
    versions = {16: (0, 4)}
    with (
        StubBroker(versions=versions) as silent,
        StubBroker(versions=versions) as healthy,
        AdminClient(healthy.bootstrap_servers) as admin,
    ):
        form_cluster({1: silent, 2: healthy})
        silent.answer(16, lambda _: SILENCE)
        healthy.answer(16, lambda _: _groups("b", "a"))
        for limit_ms in (300, 3_000, 30_000):  # the shortest one in which the other broker responds on this machine
            # when
            listed = admin.list_groups(timeout_ms=limit_ms)
            errors = listed.errors().result()
            if set(errors) == {1}:
                break
        # then
        assert [group.group_id for group in listed.valid().result()] == ["a", "b"]
        assert list(errors) == [1]
        with pytest.raises(TimeoutError, match=r"ListGroups: broker 1: no response within \d+ ms"):
            listed.result()


def test_groups_of_a_failed_broker_are_requested_again_from_all() -> None:
    # given
    versions = {16: (0, 4)}
    loading = [ListGroupsResponse(error_code=14), _groups("b")]
    with (
        StubBroker(versions=versions) as one,
        StubBroker(versions=versions) as other,
        AdminClient(one.bootstrap_servers, retry_backoff_ms=1) as admin,
    ):
        form_cluster({1: one, 2: other})
        one.answer(16, lambda _: _groups("a"))
        other.answer(16, lambda _: loading.pop(0))
        # when
        listed = admin.list_groups()
        # then
        assert [group.group_id for group in listed.result()] == ["a", "b"]
        assert (listed.valid().result(), listed.errors().result()) == (listed.result(), {})
        assert len(one.requests(16)) == 2
