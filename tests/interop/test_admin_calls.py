"""The admin client's calls on groups, quotas and credentials, each against klamm and against real Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kafka import KafkaConsumer

import klamm
from klamm.admin import AdminClient, NewTopic, OffsetAndMetadata, TopicPartition
from klamm.protocol.errors import ErrorCode, KafkaApiError
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

TOPIC = "admin-calls"
FIRST, SECOND = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


@pytest.fixture(scope="module", params=["klamm", "kafka"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each broker in turn, with a topic of two partitions."""
    if request.param == "kafka":
        address = request.getfixturevalue("real_kafka").bootstrap_servers
        prepare(address)
        yield address
        return
    with klamm.Broker(config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        prepare(broker.bootstrap_servers)
        yield broker.bootstrap_servers


def prepare(address: str) -> None:
    with AdminClient(address) as client:
        client.create_topics([NewTopic(name=TOPIC, num_partitions=2)]).all().result()


@pytest.fixture
def admin(address: str) -> Iterator[AdminClient]:
    with AdminClient(address) as client:
        yield client


def code(outcome: Future[object]) -> ErrorCode:
    error = outcome.exception(60)
    assert isinstance(error, KafkaApiError)
    return error.error_code


# --- groups ---


def test_offsets_that_are_committed_for_a_group_are_listed_deleted_and_go_with_it(admin: AdminClient) -> None:
    # given
    group = "committed-from-outside"
    commits = {FIRST: OffsetAndMetadata(offset=7, metadata="so far"), SECOND: OffsetAndMetadata(offset=0)}
    # when: a group that does not exist yet
    admin.alter_group_offsets(group, commits).all().result()
    # then
    assert admin.list_group_offsets({group: None}, require_stable=True).all().result() == {group: commits}
    assert admin.describe_groups([group]).all().result()[group].state == "Empty"
    # when
    admin.delete_group_offsets(group, [SECOND]).all().result()
    # then: of several groups at once, some partitions or all; a group that nobody knows has none
    listed = admin.list_group_offsets({group: [FIRST, SECOND], "nobody's": None}).all().result()
    assert listed == {group: {FIRST: commits[FIRST]}, "nobody's": {}}
    # when
    admin.delete_groups([group]).all().result()
    # then
    assert admin.list_group_offsets({group: None}).all().result() == {group: {}}


def test_what_does_not_exist_fails_alone(admin: AdminClient) -> None:
    # given
    admin.alter_group_offsets("exists", {FIRST: OffsetAndMetadata(offset=1)}).all().result()
    # when
    described = admin.describe_groups(["exists", "missing"]).values()
    deleted = admin.delete_groups(["exists", "missing"]).values()
    altered = admin.alter_group_offsets(
        "g", {FIRST: OffsetAndMetadata(offset=1), TopicPartition("no", 0): OffsetAndMetadata(offset=1)}
    )
    # then
    assert described["exists"].result().group_id == "exists"
    assert code(described["missing"]) == code(deleted["missing"]) == ErrorCode.GROUP_ID_NOT_FOUND
    assert deleted["exists"].result() is None
    assert altered.values()[FIRST].result() is None
    assert code(altered.values()[TopicPartition("no", 0)]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_group_with_members_is_described_and_guarded(admin: AdminClient, address: str) -> None:
    # given
    group = "with-members"
    consumer = KafkaConsumer(TOPIC, bootstrap_servers=address, group_id=group, client_id="reader")
    try:
        wait_until(lambda: bool(consumer.poll(100) or consumer.assignment()), timeout_s=60, what="an assignment")
        # when
        described = admin.describe_groups([group]).all().result()[group]
        # then
        (member,) = described.members
        assert (described.state, described.protocol_type, described.protocol) == ("Stable", "consumer", "range")
        assert (member.client_id, member.assigned_partitions) == ("reader", (FIRST, SECOND))
        # when, then: nobody changes offsets under the feet of a member
        alteration = admin.alter_group_offsets(group, {FIRST: OffsetAndMetadata(offset=1)}).values()[FIRST]
        assert code(alteration) == ErrorCode.UNKNOWN_MEMBER_ID
        assert code(admin.delete_groups([group]).values()[group]) == ErrorCode.NON_EMPTY_GROUP
        deletion = admin.delete_group_offsets(group, [FIRST]).values()[FIRST]
        assert code(deletion) == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    finally:
        consumer.close()
