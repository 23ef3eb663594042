"""Replay of metadata records into images."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from klamm.kraft.image import NO_LEADER, BrokerEndpoint, ClusterImage, PartitionImage, replayed
from klamm.protocol.messages.metadata_records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from klamm.security.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from klamm.security.scram import ScramCredential, ScramMechanism

if TYPE_CHECKING:
    from klamm.protocol.schema import Message

TOPIC_ID, INCARNATION, LOG_DIR = UUID(int=7), UUID(int=8), UUID(int=9)
TOPIC = TopicRecord(name="t", topic_id=TOPIC_ID)


def partition_record(partition_id: int = 0) -> PartitionRecord:
    return PartitionRecord(
        topic_id=TOPIC_ID,
        partition_id=partition_id,
        replicas=[1, 2],
        isr=[1, 2],
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
    )


PARTITION = partition_record()
BROKER = RegisterBrokerRecord(
    broker_id=1,
    broker_epoch=5,
    incarnation_id=INCARNATION,
    end_points=[RegisterBrokerRecord.BrokerEndpoint(name="INTERNAL", host="h", port=9092, security_protocol=3)],
    features=[
        RegisterBrokerRecord.BrokerFeature(name="metadata.version", min_supported_version=7, max_supported_version=33)
    ],
    log_dirs=[LOG_DIR],
)


def image(*records: Message) -> ClusterImage:
    return replayed(ClusterImage(), records, 5)


def test_topic_has_its_partitions_by_name_and_id() -> None:
    # when
    cluster = image(TOPIC, PARTITION)
    # then
    expected = PartitionImage(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=0, partition_epoch=0)
    topic = cluster.topic("t")
    assert topic is not None
    assert dict(topic.partitions) == {0: expected}
    assert cluster.partition(TOPIC_ID, 0) == expected
    assert (cluster.topic("u"), cluster.partition(TOPIC_ID, 1), cluster.partition(UUID(int=1), 0)) == (None, None, None)
    assert cluster.offset == 5


def test_election_raises_both_epochs_and_another_change_only_the_partition_epoch() -> None:
    # given
    before = image(TOPIC, PARTITION)
    # when
    shrunk = replayed(before, [PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, isr=[1])], 6)
    fenced = replayed(shrunk, [PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, leader=-1)], 7)
    elected = replayed(fenced, [PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, leader=1)], 8)
    # then
    first = PartitionImage(replicas=(1, 2), isr=(1,), leader=1, leader_epoch=0, partition_epoch=1)
    assert shrunk.partition(TOPIC_ID, 0) == first
    assert fenced.partition(TOPIC_ID, 0) == replace(first, leader=NO_LEADER, leader_epoch=1, partition_epoch=2)
    assert elected.partition(TOPIC_ID, 0) == replace(first, leader=1, leader_epoch=2, partition_epoch=3)


def test_reassignment_appears_and_ends() -> None:
    # given
    change = PartitionChangeRecord(
        topic_id=TOPIC_ID, partition_id=0, replicas=[3, 1, 2], adding_replicas=[3], removing_replicas=[1]
    )
    end = PartitionChangeRecord(
        topic_id=TOPIC_ID,
        partition_id=0,
        replicas=[3, 2],
        isr=[3, 2],
        leader=3,
        adding_replicas=[],
        removing_replicas=[],
    )
    # when
    begun = image(TOPIC, PARTITION, change).partition(TOPIC_ID, 0)
    ended = image(TOPIC, PARTITION, change, end).partition(TOPIC_ID, 0)
    # then
    assert begun == PartitionImage(
        replicas=(3, 1, 2), isr=(1, 2), adding=(3,), removing=(1,), leader=1, leader_epoch=0, partition_epoch=1
    )
    assert ended == PartitionImage(replicas=(3, 2), isr=(3, 2), leader=3, leader_epoch=1, partition_epoch=2)


@pytest.mark.parametrize("topic", ["t", ""])
def test_cleared_eligible_leader_replicas_are_a_change_to_the_partitions_that_had_any(topic: str) -> None:
    # given
    before = image(
        TOPIC,
        *map(partition_record, range(3)),
        PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, isr=[1], eligible_leader_replicas=[2]),
        PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=1, isr=[1], last_known_elr=[2]),
        TopicRecord(name="u", topic_id=INCARNATION),
    )
    # when
    after = replayed(before, [ClearElrRecord(topic_name=topic)], 6)
    # then
    plain = PartitionImage(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=0, partition_epoch=0)
    cleared = replace(plain, isr=(1,), partition_epoch=2)
    assert before.partition(TOPIC_ID, 0) == replace(cleared, elr=(2,), partition_epoch=1)
    assert after.topics[TOPIC_ID].partitions == {0: cleared, 1: cleared, 2: plain}
    assert after.topics[INCARNATION] is before.topics[INCARNATION]


def test_eligible_leader_replicas_of_other_topics_are_not_cleared() -> None:
    # given
    change = PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, isr=[1], eligible_leader_replicas=[2])
    before = image(TOPIC, PARTITION, change, TopicRecord(name="u", topic_id=INCARNATION))
    # when
    after = replayed(before, [ClearElrRecord(topic_name="u")], 6)
    # then
    assert after == replace(before, offset=6)
    assert after.topics is before.topics


def test_eligible_leader_replicas_that_change_in_the_same_batch_are_cleared() -> None:
    change = PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, isr=[1], eligible_leader_replicas=[2])
    partition = image(TOPIC, PARTITION, change, ClearElrRecord(topic_name="t")).partition(TOPIC_ID, 0)
    assert partition is not None
    assert (partition.elr, partition.partition_epoch) == ((), 2)


def test_topic_changed_and_removed_at_once_is_removed() -> None:
    change = PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, isr=[1])
    assert replayed(image(TOPIC, PARTITION), [change, RemoveTopicRecord(topic_id=TOPIC_ID)], 6) == ClusterImage(
        offset=6
    )


def test_broker_is_registered_unfenced_fenced_and_unregistered() -> None:
    # when
    registered = image(BROKER)
    # then
    broker = registered.brokers[1]
    assert (broker.broker_epoch, broker.incarnation_id, broker.registered_at, broker.is_fenced) == (
        5,
        INCARNATION,
        5,
        True,
    )
    assert broker.endpoints == (BrokerEndpoint(name="INTERNAL", host="h", port=9092, security_protocol="SASL_SSL"),)
    assert (broker.features, broker.log_dirs) == ({"metadata.version": (7, 33)}, (LOG_DIR,))
    unfenced = replayed(registered, [UnfenceBrokerRecord(id=1, epoch=5)], 6)
    assert not unfenced.brokers[1].is_fenced
    assert replayed(unfenced, [FenceBrokerRecord(id=1, epoch=5)], 7).brokers[1].is_fenced
    assert replayed(unfenced, [UnregisterBrokerRecord(broker_id=1, broker_epoch=5)], 7).brokers == {}


def test_registration_change_keeps_the_rest_of_a_broker() -> None:
    # given
    before = image(BROKER).brokers[1]

    def after(**changes: object) -> object:
        change = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, **changes)  # type: ignore[arg-type]  # any
        return image(BROKER, change).brokers[1]

    # then
    assert after(fenced=-1) == replace(before, is_fenced=False)
    assert after(in_controlled_shutdown=1) == replace(before, in_controlled_shutdown=True)
    assert after(cordoned_log_dirs=[LOG_DIR]) == replace(before, cordoned_log_dirs=(LOG_DIR,))
    assert after(log_dirs=[INCARNATION]) == replace(before, log_dirs=(INCARNATION,))
    assert after() == before


def test_features_have_their_finalized_levels() -> None:
    cluster = image(
        FeatureLevelRecord(name="metadata.version", feature_level=33),
        FeatureLevelRecord(name="group.version", feature_level=1),
        FeatureLevelRecord(name="group.version", feature_level=0),
    )
    assert cluster.features == {"metadata.version": 33, "group.version": 0}


def test_maps_that_do_not_change_are_shared() -> None:
    before = image(BROKER, TOPIC, PARTITION)
    after = replayed(before, [PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, isr=[1])], 6)
    assert after.brokers is before.brokers
    assert after.topics is not before.topics


def test_acl_stands_until_it_is_removed() -> None:
    # given
    acl = AccessControlEntryRecord(
        id=UUID(int=1),
        resource_type=4,
        resource_name="kafka-cluster",
        pattern_type=3,
        principal="User:b",
        host="*",
        operation=9,
        permission_type=3,
    )
    # when
    before = image(acl)
    after = replayed(before, [RemoveAccessControlEntryRecord(id=UUID(int=1))], 6)
    # then
    assert dict(before.acls) == {
        UUID(int=1): Acl(
            resource_type=AclResourceType.CLUSTER,
            resource_name="kafka-cluster",
            pattern_type=PatternType.LITERAL,
            principal="User:b",
            host="*",
            operation=AclOperation.CLUSTER_ACTION,
            permission=AclPermission.ALLOW,
        )
    }
    assert dict(after.acls) == {}


def test_scram_credential_is_replaced_and_removed_by_mechanism() -> None:
    # given
    first = UserScramCredentialRecord(
        name="b", mechanism=2, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
    )
    second = UserScramCredentialRecord(
        name="b", mechanism=2, salt=b"t", stored_key=b"l", server_key=b"w", iterations=8192
    )
    # when
    before = image(first, second)
    other = replayed(before, [RemoveUserScramCredentialRecord(name="b", mechanism=1)], 6)
    after = replayed(other, [RemoveUserScramCredentialRecord(name="b", mechanism=2)], 7)
    # then
    credential = ScramCredential(salt=b"t", stored_key=b"l", server_key=b"w", iterations=8192)
    assert dict(before.scram_credentials) == {("b", ScramMechanism.SCRAM_SHA_512): credential}
    assert dict(other.scram_credentials) == dict(before.scram_credentials)
    assert dict(after.scram_credentials) == {}
