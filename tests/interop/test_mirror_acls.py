"""ACLs of topics through klamm's admin client and the mirror's, between klamm's brokers."""

from __future__ import annotations

from dataclasses import replace

import klamm
from klamm.admin import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    AdminClient,
    PatternType,
)
from klamm.mirror.cluster_admin import new_client
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.config_sync import AclSync

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
ALICE = Acl(
    resource_type=AclResourceType.TOPIC,
    resource_name="orders",
    pattern_type=PatternType.LITERAL,
    principal="User:alice",
    host="*",
    operation=AclOperation.ALL,
    permission=AclPermission.ALLOW,
)
EVERY_ACL = AclFilter(
    resource_type=AclResourceType.ANY,
    resource_name=None,
    pattern_type=PatternType.ANY,
    principal=None,
    host=None,
    operation=AclOperation.ANY,
    permission=AclPermission.ANY,
)


def acls_of(address: str) -> set[Acl]:
    with AdminClient(address) as admin:
        return set(admin.describe_acls(EVERY_ACL).result(300))


def test_acls_of_mirrored_topics_are_created_on_target() -> None:
    """K894-46: ACL sync: source topic ACLs, literal patterns only, of mirrored topics -> target remote topic (literal):
    skip ALLOW WRITE.
    """
    with klamm.Broker(config=AUTHORIZER) as here, klamm.Broker(config=AUTHORIZER) as there:
        # given
        prefixed = replace(ALICE, pattern_type=PatternType.PREFIXED, operation=AclOperation.READ)
        with AdminClient(here.bootstrap_servers) as admin:
            admin.create_acls([ALICE, prefixed]).all().result(300)
            admin.create_acls([ALICE]).all().result(300)
        assert acls_of(here.bootstrap_servers) == {ALICE, prefixed}
        properties = {
            "clusters": "A,B",
            "A.bootstrap.servers": here.bootstrap_servers,
            "B.bootstrap.servers": there.bootstrap_servers,
            "A->B.enabled": "true",
        }
        source = new_client([here.bootstrap_servers], {}, timeout_ms=10_000)
        target = new_client([there.bootstrap_servers], {}, timeout_ms=10_000)
        # when
        AclSync(parse_settings(properties).flows[0], source, target).run()
        # then
        assert acls_of(there.bootstrap_servers) == {
            replace(ALICE, resource_name="A.orders", operation=AclOperation.READ)
        }
        source.close()
        target.close()
