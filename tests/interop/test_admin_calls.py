"""The admin client's calls on groups, quotas and credentials, each against klamm and against real Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaConsumer

import klamm
from klamm.admin import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    AdminClient,
    ClientQuotaEntity,
    ClientQuotaFilter,
    ClientQuotaFilterComponent,
    ClientQuotaOp,
    NewTopic,
    OffsetAndMetadata,
    PatternType,
    ScramCredentialInfo,
    ScramMechanism,
    TopicPartition,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from klamm.protocol.errors import ErrorCode, KafkaApiError, TopicAlreadyExistsError
from tests.support.long_tests import long_only
from tests.support.processes import wait_until
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

TOPIC = unique("admin-calls-")
FIRST, SECOND = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


@pytest.fixture(scope="module", params=["klamm", *long_only("kafka")])
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
    """Create the topic unless it exists, and wait until the broker knows it."""
    with AdminClient(address) as client:
        made = client.create_topics([NewTopic(name=TOPIC, num_partitions=2)]).values()[TOPIC].exception(60)
        assert made is None or isinstance(made, TopicAlreadyExistsError)
        until(lambda: TOPIC in client.list_topics().result())


@pytest.fixture
def admin(address: str) -> Iterator[AdminClient]:
    with AdminClient(address) as client:
        yield client


def code(outcome: Future[Any]) -> ErrorCode:
    error = outcome.exception(60)
    assert isinstance(error, KafkaApiError)
    return error.error_code


def until(holds: Callable[[], bool]) -> None:
    """Poll a condition: brokers of Apache Kafka apply a change a little later than the controller."""
    wait_until(holds, timeout_s=60, what="every broker to know of the change")


# --- groups ---


def test_committed_group_offsets_are_listed_and_deleted(admin: AdminClient) -> None:
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


def test_missing_group_or_topic_fails_alone(admin: AdminClient) -> None:
    # given
    admin.alter_group_offsets("exists", {FIRST: OffsetAndMetadata(offset=1)}).all().result()
    # when
    described = admin.describe_groups(["exists", "missing"]).values()
    assert described["exists"].result().group_id == "exists"  # before it is deleted
    deleted = admin.delete_groups(["exists", "missing"]).values()
    altered = admin.alter_group_offsets(
        unique("g"), {FIRST: OffsetAndMetadata(offset=1), TopicPartition("no", 0): OffsetAndMetadata(offset=1)}
    )
    # then
    assert code(described["missing"]) == code(deleted["missing"]) == ErrorCode.GROUP_ID_NOT_FOUND
    assert deleted["exists"].result() is None
    assert altered.values()[FIRST].result() is None
    assert code(altered.values()[TopicPartition("no", 0)]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_group_with_members_is_described_and_not_deleted(admin: AdminClient, address: str) -> None:
    # given
    group = unique("with-members-")
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


# --- quotas ---


def test_quotas_are_set_described_validated_and_removed(admin: AdminClient) -> None:
    # given
    user = ClientQuotaEntity.of({"user": TOPIC})
    both = ClientQuotaEntity.of({"client-id": None, "user": TOPIC})
    of_the_user = ClientQuotaFilterComponent.of_entity("user", TOPIC)
    # when
    ops = [ClientQuotaOp("producer_byte_rate", 1024.0), ClientQuotaOp("request_percentage", 12.5)]
    admin.alter_client_quotas({user: ops, both: [ClientQuotaOp("consumer_byte_rate", 7.0)]}).all().result()
    admin.alter_client_quotas({user: [ClientQuotaOp("request_percentage", None)]}, validate_only=True).all().result()
    # then
    describe = admin.describe_client_quotas
    of_both = {"consumer_byte_rate": 7.0}
    of_user = {"producer_byte_rate": 1024.0, "request_percentage": 12.5}
    until(lambda: describe(ClientQuotaFilter((of_the_user,))).result() == {user: of_user, both: of_both})
    assert describe(ClientQuotaFilter((of_the_user,), strict=True)).result() == {user: of_user}
    anyone, default = (
        ClientQuotaFilterComponent.of_entity_type("user"),
        ClientQuotaFilterComponent.of_default_entity("client-id"),
    )
    assert describe(ClientQuotaFilter((anyone, default), strict=True)).result() == {both: of_both}
    # when
    removal = {user: [ClientQuotaOp(key, None) for key in of_user], both: [ClientQuotaOp("consumer_byte_rate", None)]}
    admin.alter_client_quotas(removal).all().result()
    # then
    until(lambda: describe(ClientQuotaFilter((of_the_user,))).result() == {})


def test_invalid_quota_fails_for_its_entity_only(admin: AdminClient) -> None:
    # given
    good, bad = ClientQuotaEntity.of({"ip": "10.0.0.1"}), ClientQuotaEntity.of({"user": "u"})
    rate = ClientQuotaOp("connection_creation_rate", 5.0)
    # when
    outcomes = admin.alter_client_quotas({good: [rate], bad: [rate]}, validate_only=True).values()
    # then
    assert outcomes[good].result() is None
    assert code(outcomes[bad]) == ErrorCode.INVALID_REQUEST


# --- credentials ---


def test_scram_credentials_are_set_described_and_deleted_without_exposing_password(admin: AdminClient) -> None:
    # given
    sha256 = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, iterations=8192)
    sha512 = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, iterations=4096)
    upsertions = [UserScramCredentialUpsertion("adele", info, "a secret") for info in (sha256, sha512)]
    assert "secret" not in repr(upsertions)
    # when
    for upsertion in upsertions:
        admin.alter_user_scram_credentials([upsertion]).all().result()
    # then
    until(lambda: admin.list_user_scram_credentials().result().get("adele") == (sha256, sha512))
    described = admin.describe_user_scram_credentials(["adele", "nobody"]).values()
    assert described["adele"].result() == (sha256, sha512)
    assert code(described["nobody"]) == ErrorCode.RESOURCE_NOT_FOUND
    # when
    deletions = [UserScramCredentialDeletion("adele", info.mechanism) for info in (sha256, sha512)]
    for deletion in deletions:
        admin.alter_user_scram_credentials([deletion]).all().result()
    # then
    until(lambda: "adele" not in admin.list_user_scram_credentials().result())
    again = admin.alter_user_scram_credentials(deletions[:1]).values()["adele"]
    assert code(again) == ErrorCode.RESOURCE_NOT_FOUND


# --- access control lists ---


def test_acls_are_deleted_by_filter() -> None:
    # given
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with klamm.Broker(config=config) as broker, AdminClient(broker.bootstrap_servers) as admin:
        alice, bob = (acl_for(f"User:{name}") for name in ("alice", "bob"))
        admin.create_acls([alice, bob]).all().result()
        of_alice, of_carol = (filter_for(f"User:{name}") for name in ("alice", "carol"))
        # when
        deleted = admin.delete_acls([of_alice, of_carol]).values()
        # then
        assert (deleted[of_alice].result(), deleted[of_carol].result()) == ((alice,), ())
        assert admin.describe_acls(filter_for(None)).result() == (bob,)


def acl_for(principal: str) -> Acl:
    return Acl(
        resource_type=AclResourceType.TOPIC,
        resource_name="orders",
        pattern_type=PatternType.LITERAL,
        principal=principal,
        host="*",
        operation=AclOperation.READ,
        permission=AclPermission.ALLOW,
    )


def filter_for(principal: str | None) -> AclFilter:
    return AclFilter(
        resource_type=AclResourceType.ANY,
        resource_name=None,
        pattern_type=PatternType.ANY,
        principal=principal,
        host=None,
        operation=AclOperation.ANY,
        permission=AclPermission.ANY,
    )
