"""Checks of Java's Admin before a request is sent. No cluster is needed for their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from klamm.admin import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    AdminClient,
    ConfigResource,
    ErrorCode,
    KafkaApiError,
    NewTopic,
    OffsetAndMetadata,
    PatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    TopicPartition,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from klamm.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from tests.support.stub_broker import StubBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

SHA_256 = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, iterations=4096)
SHA_256_FEW = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, iterations=0)
SHA_256_MANY = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, iterations=10**20)
UNKNOWN = ScramMechanism.UNKNOWN
ACL = Acl(
    resource_type=AclResourceType.TOPIC,
    resource_name="t",
    pattern_type=PatternType.MATCH,
    principal="User:u",
    host="*",
    operation=AclOperation.READ,
    permission=AclPermission.ALLOW,
)
Call: TypeAlias = Callable[[AdminClient], Any]


@pytest.fixture
def admin() -> Iterator[AdminClient]:
    """Client of a cluster that does not exist."""
    with AdminClient("127.0.0.1:1", timeout_ms=60_000) as client:
        yield client


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        (lambda admin: admin.create_topics([NewTopic("")]),
         ErrorCode.INVALID_TOPIC_EXCEPTION, "The given topic name '' cannot be represented in a request."),
        (lambda admin: admin.delete_topics([""]), ErrorCode.INVALID_TOPIC_EXCEPTION, "topic name ''"),
        (lambda admin: admin.describe_topics([""]), ErrorCode.INVALID_TOPIC_EXCEPTION, "topic name ''"),
        (lambda admin: admin.alter_partition_reassignments({TopicPartition("t", -1): [1]}),
         ErrorCode.INVALID_TOPIC_EXCEPTION, "The given partition index -1 is not valid."),
        (lambda admin: admin.list_partition_reassignments([TopicPartition("", 0)]),
         ErrorCode.INVALID_TOPIC_EXCEPTION, "topic name ''"),
        (lambda admin: admin.create_acls([ACL]),
         ErrorCode.INVALID_REQUEST, "Invalid ACL creation: Resource pattern type is MATCH"),
        (lambda admin: admin.describe_acls(AclFilter(operation=AclOperation.UNKNOWN)),
         ErrorCode.INVALID_REQUEST, "must not contain UNKNOWN elements"),
        (lambda admin: admin.delete_acls([AclFilter(resource_type=AclResourceType.UNKNOWN)]),
         ErrorCode.INVALID_REQUEST, "must not contain UNKNOWN elements"),
        (lambda admin: admin.alter_user_scram_credentials([UserScramCredentialUpsertion("u", SHA_256, "")]),
         ErrorCode.UNACCEPTABLE_CREDENTIAL, "Password must not be empty"),
        (lambda admin: admin.alter_user_scram_credentials([UserScramCredentialUpsertion("", SHA_256, "p")]),
         ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        (lambda admin: admin.alter_user_scram_credentials([UserScramCredentialDeletion("u", UNKNOWN)]),
         ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        (lambda admin: admin.alter_user_scram_credentials([UserScramCredentialUpsertion("u", SHA_256_FEW, "p")]),
         ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        (lambda admin: admin.alter_user_scram_credentials([UserScramCredentialUpsertion("u", SHA_256_MANY, "p")]),
         ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
    ],
)  # fmt: skip
def test_invalid_argument_is_rejected_before_a_request(
    admin: AdminClient, call: Call, code: ErrorCode, message: str
) -> None:
    with pytest.raises(KafkaApiError, match=message) as rejected:
        call(admin).result()
    assert rejected.value.error_code is code


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.alter_partition_reassignments({TopicPartition("t", 0): []}),
        lambda admin: admin.alter_group_offsets("g", {TopicPartition("t", 0): OffsetAndMetadata(-1)}),
    ],
)
def test_invalid_argument_raises_value_error(admin: AdminClient, call: Call) -> None:
    with pytest.raises(ValueError, match=r"partition=0"):
        call(admin)


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.delete_topics("orders"),
        lambda admin: admin.describe_topics("orders"),
        lambda admin: admin.delete_groups("orders"),
        lambda admin: admin.describe_groups("orders"),
        lambda admin: admin.describe_user_scram_credentials("orders"),
        lambda admin: admin.describe_configs({ConfigResource(ResourceType.TOPIC, "t"): "orders"}),
    ],
)
def test_single_string_in_place_of_a_list_raises_type_error(admin: AdminClient, call: Call) -> None:
    with pytest.raises(TypeError, match=r"expected a list.*, as in \['orders'\]"):
        call(admin)


def test_invalid_user_does_not_affect_the_others() -> None:
    done = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(user="a", error_message=None)
    with StubBroker(versions={51: (0, 0)}) as broker, AdminClient(broker.bootstrap_servers, timeout_ms=30_000) as admin:
        broker.answer(51, lambda _: AlterUserScramCredentialsResponse(results=[done]))
        result = admin.alter_user_scram_credentials(
            [
                UserScramCredentialUpsertion("a", SHA_256, "p"),
                UserScramCredentialUpsertion("b", SHA_256, ""),
                UserScramCredentialDeletion("b", ScramMechanism.SCRAM_SHA_512),
            ]
        )
        outcomes = {user: type(future.exception()) for user, future in result.values().items()}
        (request,) = broker.requests(51)
        sent = request.read(AlterUserScramCredentialsRequest)
    assert [outcomes["a"], issubclass(outcomes["b"], KafkaApiError)] == [type(None), True]
    assert isinstance(sent, AlterUserScramCredentialsRequest)
    assert ([each.name for each in sent.upsertions], sent.deletions) == (["a"], [])
