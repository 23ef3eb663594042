from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from klamm.admin import PerKeyResult
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.config_sync import AclSync, remote_acls
from klamm.security.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from tests.support.mirror_fakes import FakeCluster, completed_result, done, rejection

if TYPE_CHECKING:
    from collections.abc import Collection

    from klamm.admin import AclFilter, KafkaApiError
    from klamm.kafka_client.pool.calls import Outcome

READ = Acl(
    resource_type=AclResourceType.TOPIC,
    resource_name="orders",
    pattern_type=PatternType.LITERAL,
    principal="User:alice",
    host="*",
    operation=AclOperation.READ,
    permission=AclPermission.ALLOW,
)
REMOTE_READ = replace(READ, resource_name="A.orders")


def remote(*acls: Acl) -> tuple[Acl, ...]:
    return remote_acls(acls, ["orders", "users", "*", "bad name"].__contains__, lambda topic: f"A.{topic}")


def test_acls_of_mirrored_topics_apply_to_remote_topics() -> None:
    """K894-46: ACL sync: source topic ACLs, literal patterns only, of mirrored topics -> target remote topic (literal):
    skip ALLOW WRITE.
    """
    describe = replace(READ, resource_name="users", operation=AclOperation.DESCRIBE, host="10.0.0.1")
    assert remote(READ, describe) == (REMOTE_READ, replace(describe, resource_name="A.users"))


def test_write_acls_are_skipped_and_all_becomes_read() -> None:
    """K894-46: ACL sync: source topic ACLs, literal patterns only, of mirrored topics -> target remote topic (literal):
    skip ALLOW WRITE.
    """
    assert remote(replace(READ, operation=AclOperation.WRITE)) == ()
    assert remote(replace(READ, operation=AclOperation.ALL), READ) == (REMOTE_READ,)


@pytest.mark.parametrize("operation", [AclOperation.WRITE, AclOperation.ALL, AclOperation.READ])
def test_deny_acls_are_synced(operation: AclOperation) -> None:
    """K894-46: ACL sync: source topic ACLs, literal patterns only, of mirrored topics -> target remote topic (literal):
    skip ALLOW WRITE.
    """
    denied = replace(READ, operation=operation, permission=AclPermission.DENY)
    assert remote(denied) == (replace(denied, resource_name="A.orders"),)


def test_prefixed_acls_and_other_resources_are_skipped() -> None:
    """K894-46: ACL sync: source topic ACLs, literal patterns only, of mirrored topics -> target remote topic (literal):
    skip ALLOW WRITE.
    """
    assert (
        remote(
            replace(READ, pattern_type=PatternType.PREFIXED),
            replace(READ, resource_name="*"),
            replace(READ, resource_name="bad name"),
            replace(READ, resource_name="secret"),
            replace(READ, resource_type=AclResourceType.GROUP),
        )
        == ()
    )


def test_acls_of_all_topics_are_synced_if_names_are_kept() -> None:
    """K894-46: as in MirrorMaker, also a DENY."""
    denied = replace(READ, resource_name="*", permission=AclPermission.DENY)
    assert remote_acls([denied], lambda _: True, lambda topic: topic) == (denied,)
    assert remote_acls([denied], lambda _: False, lambda topic: topic) == (), "topics may select few"


class FakeAcls(FakeCluster):
    """A cluster of which only the ACLs matter."""

    def __init__(self, *acls: Acl, describe: KafkaApiError | None = None) -> None:
        super().__init__()
        self.acls = list(acls)
        self.describe_rejected = describe
        self.create_rejected: KafkaApiError | None = None
        self.created_acls: list[Acl] = []

    def describe_acls(
        self, wanted: AclFilter | None = None, *, timeout_ms: int | None = None
    ) -> Outcome[tuple[Acl, ...]]:
        return done(self.describe_rejected or tuple(self.acls))

    def create_acls(self, acls: Collection[Acl], *, timeout_ms: int | None = None) -> PerKeyResult[Acl, None]:
        self.created_acls += acls
        result: PerKeyResult[Acl, None] = PerKeyResult(acls)
        return completed_result(result, dict.fromkeys(acls, self.create_rejected))


def sync(source: FakeAcls, target: FakeAcls) -> AclSync:
    properties = {"clusters": "A,B", "A.bootstrap.servers": "a:1", "B.bootstrap.servers": "b:1", "A->B.enabled": "true"}
    return AclSync(parse_settings(properties).flows[0], source, target)


def test_only_missing_acls_are_created() -> None:
    """K894-46: ACL sync: source topic ACLs, literal patterns only, of mirrored topics -> target remote topic (literal):
    skip ALLOW WRITE.
    """
    bob = replace(READ, principal="User:bob")
    target = FakeAcls(REMOTE_READ, replace(REMOTE_READ, principal="User:carol"))
    sync(FakeAcls(READ, bob), target).run()
    assert target.created_acls == [replace(bob, resource_name="A.orders")]


def test_acls_are_created_before_their_topic_exists_unless_it_is_left_out() -> None:
    """K894-46: MirrorMaker asks its filter, not whether there is such a topic."""
    target = FakeAcls()
    source = FakeAcls(READ, *(replace(READ, resource_name=name) for name in ("later", "__consumer_offsets", "B.users")))
    sync(source, target).run(left_out=["orders"])
    assert target.created_acls == [replace(READ, resource_name="A.later")]


def test_all_acls_are_sent_without_describe_right() -> None:
    target = FakeAcls(REMOTE_READ, describe=rejection("CLUSTER_AUTHORIZATION_FAILED", ""))
    sync(FakeAcls(READ), target).run()
    assert target.created_acls == [REMOTE_READ]


def test_source_without_authorizer_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """K894-46: ACL sync: source topic ACLs, literal patterns only, of mirrored topics -> target remote topic (literal):
    skip ALLOW WRITE.
    """
    once = sync(FakeAcls(describe=rejection("SECURITY_DISABLED", "no authorizer")), FakeAcls())
    with caplog.at_level(logging.INFO):
        once.run()
        once.run()
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "cluster A does not support ACLs" in record.getMessage()
    assert "sync.topic.acls.enabled=false" in record.getMessage()


def test_denied_acl_request_is_logged_with_operation(caplog: pytest.LogCaptureFixture) -> None:
    """K894-46: ACL sync: source topic ACLs, literal patterns only, of mirrored topics -> target remote topic (literal):
    skip ALLOW WRITE.
    """
    target = FakeAcls()
    target.create_rejected = rejection("CLUSTER_AUTHORIZATION_FAILED", "")
    for acls in (
        sync(FakeAcls(READ), target),
        sync(FakeAcls(describe=rejection("CLUSTER_AUTHORIZATION_FAILED", "")), target),
    ):
        acls.run()
        acls.run()  # the same reason is not logged again
    first, second = (record.getMessage() for record in caplog.records)
    assert "while trying to create ACL ALLOW READ for User:alice from * on topic A.orders of cluster B" in first
    assert "ClusterAuthorizationException occurred while trying to describe the ACLs of topics on cluster A" in second
