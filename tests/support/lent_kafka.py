"""Node of real Kafka that files of tests use one after the other, each as if it were alone.

The node has an authorizer and a second listener, for logins. Clients of the first listener may do everything. What a
file creates may have any name: at the end of the file it is deleted, and what else is different then fails its last
test.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from klamm.admin import AdminClient, UserScramCredentialDeletion
from klamm.protocol.errors import UnknownTopicOrPartitionError
from klamm.security.acls import ANY_ACL
from tests.support.kafka import KafkaCluster
from tests.support.processes import wait_until
from tests.support.security import PASSWORDS, PLAIN_MODULE, SCRAM_MODULE, sasl_settings
from tests.support.shared_cluster import SharedCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

USERS: Final = PASSWORDS | {name: f"{name}-secret" for name in ("gateway", "guest", "lister", "setter", "viewer")}
"""Passwords of the users who log in by PLAIN. The user ``admin`` may do everything."""
LOGINS: Final = sasl_settings(authorizer=True) | {
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{PLAIN_MODULE} required "
    + " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    + ";",
}
"""Settings of a broker with these users."""
_SETTINGS: Final = LOGINS | {
    **{
        f"listener.name.sasl_plaintext.{mechanism}.sasl.jaas.config": f"{SCRAM_MODULE} required;"
        for mechanism in ("scram-sha-256", "scram-sha-512")
    },
    "super.users": "User:admin;User:ANONYMOUS",
    "num.partitions": "1",  # as in the recorded answers
    "log.retention.check.interval.ms": "300",
    "log.initial.task.delay.ms": "100",
    "group.min.session.timeout.ms": "100",
}
_TIMEOUT_S: Final = 60.0


class LentKafka:
    """The node. It starts for the first file.

    Args:
        release: Release of Apache Kafka.
    """

    def __init__(self, release: str) -> None:
        self._release = release
        self._stack = contextlib.ExitStack()
        self._shared: SharedCluster | None = None

    @contextlib.contextmanager
    def lend(self) -> Iterator[KafkaCluster]:
        """Yield the node, and leave it empty."""
        if self._shared is None:
            cluster = KafkaCluster(1, _SETTINGS, with_logins=True, release=self._release)
            # The coordinator of transactions cannot be asked to forget an id.
            self._shared = SharedCluster(self._stack.enter_context(cluster), ignored="transactional id ")
        yield self._shared.cluster
        _empty(self._shared.cluster)
        self._shared.check()

    def stop(self) -> None:
        """Stop the node. Does nothing if it does not run."""
        self._shared = None
        self._stack.close()


def _empty(cluster: KafkaCluster) -> None:
    """Delete all topics, groups, ACLs and SCRAM users, and wait until the node knows it."""
    with AdminClient(cluster.bootstrap_servers) as admin:
        for outcome in admin.delete_topics(admin.list_topics().result(_TIMEOUT_S)).values().values():
            with contextlib.suppress(UnknownTopicOrPartitionError):  # the test has deleted it
                outcome.result(_TIMEOUT_S)
        admin.delete_acls([ANY_ACL]).all().result(_TIMEOUT_S)
        for user, credentials in admin.list_user_scram_credentials().result(_TIMEOUT_S).items():
            for credential in credentials:
                deletion = UserScramCredentialDeletion(user, credential.mechanism)
                admin.alter_user_scram_credentials([deletion]).all().result(_TIMEOUT_S)
        admin.delete_groups({group.group_id for group in admin.list_groups().result(_TIMEOUT_S)}).all().result(
            _TIMEOUT_S
        )
        wait_until(
            lambda: not (admin.list_topics().result(_TIMEOUT_S) or admin.describe_acls().result(_TIMEOUT_S)),
            timeout_s=_TIMEOUT_S,
            what="the node to have no topics and no ACLs",
        )
