"""Rights that a mirror with equal offsets needs on Apache Kafka with an authorizer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from klamm.admin import Acl, AclOperation, AclPermission, AclResourceType, AdminClient, PatternType
from klamm.kafka_client.connection.security import Security
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.spark.worker import new_copier
from klamm.protocol.records import Record, encode_batch
from tests.support.copiers import is_done, run_until
from tests.support.equal_offsets import EqualFlow
from tests.support.mirror import delete_records
from tests.support.security import PASSWORDS, create_acls
from tests.support.transactional_clients import Aio
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.kafka import KafkaCluster
    from tests.support.lent_kafka import LentKafka

USER: Final = "alice"


@pytest.fixture(scope="module")
def kafka(lent_kafka: LentKafka) -> Iterator[KafkaCluster]:
    """A node that authorizes the logins of one listener."""
    with lent_kafka.lend() as cluster:
        yield cluster


def acl(resource_type: AclResourceType, name: str, operation: AclOperation) -> Acl:
    is_cluster = resource_type is AclResourceType.CLUSTER
    return Acl(
        resource_type=resource_type,
        resource_name=name,
        pattern_type=PatternType.LITERAL if is_cluster else PatternType.PREFIXED,
        principal=f"User:{USER}",
        host="*",
        operation=operation,
        permission=AclPermission.ALLOW,
    )


def grant(address: str, *acls: Acl) -> None:
    with AdminClient(address) as admin:
        create_acls(admin, acls)


class DeniedFlow(EqualFlow):
    """A flow whose principal has all rights on the target that plain records need."""

    def __init__(self, kafka: KafkaCluster) -> None:
        super().__init__(kafka.bootstrap_servers, kafka.bootstrap_servers)
        self._login = f"127.0.0.1:{kafka.login_ports[1]}"
        names = (self.alias, f"mm2-offsets.{self.alias}")
        grant(
            kafka.bootstrap_servers,
            *(
                acl(AclResourceType.TOPIC, name, operation)
                for name in names
                for operation in (AclOperation.READ, AclOperation.WRITE)
            ),
            acl(AclResourceType.TRANSACTIONAL_ID, self.alias, AclOperation.WRITE),
        )

    def copy_and_grant(self, right: Acl) -> str:
        """Copy until the partition waits for a right, grant it, and copy the rest. Return why it waited."""
        settings = self.settings(target=self._login)
        security = Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username=USER, password=PASSWORDS[USER])
        copier = new_copier(replace(settings, target=replace(settings.target, security=security)), [self.partition])
        try:
            run_until(copier, lambda: _denial(copier.progress()[0].reason))
            reason = copier.progress()[0].reason
            grant(self.target, right)
            run_until(copier, lambda: all(map(is_done, copier.progress())))
            assert copier.progress()[0].state is CopyState.COPYING
        finally:
            copier.close()
        return reason


def _denial(reason: str) -> bool:
    return "ALTER on the cluster" in reason or "AUTHORIZATION_FAILED" in reason


def produce(address: str, topic: str, count: int) -> None:
    records = [Record(key=None, value=b"%d" % at, timestamp=1_356_998_400_000, offset=at) for at in range(count)]
    with WireClient(address) as client:
        client.produce(topic, 0, encode_batch(records))


def test_gap_waits_for_alter_on_the_cluster_and_continues_when_it_is_granted(kafka: KafkaCluster) -> None:
    flow = DeniedFlow(kafka)
    produce(flow.source, flow.topic, 10)
    with Aio(flow.source, f"{flow.topic}-writer") as producer:
        producer.begin()
        producer.send(flow.topic, "aborted")
        producer.abort()
    with Aio(flow.source, f"{flow.topic}-writer"):
        """A new producer is accepted once the marker of the transaction is written."""
    produce(flow.source, flow.topic, 10)

    reason = flow.copy_and_grant(acl(AclResourceType.CLUSTER, "kafka-cluster", AclOperation.ALTER))

    assert "a marker needs ALTER on the cluster resource of the target" in reason
    assert list(flow.assert_equal()) == [*range(10), *range(12, 22)]


def test_purged_beginning_waits_for_delete_on_the_topic_and_continues_when_it_is_granted(kafka: KafkaCluster) -> None:
    flow = DeniedFlow(kafka)
    produce(flow.source, flow.topic, 100)
    delete_records(flow.source, flow.topic, 0, before=90)

    reason = flow.copy_and_grant(acl(AclResourceType.TOPIC, flow.alias, AclOperation.DELETE))

    assert "the fillers before offset 90 cannot be deleted: TOPIC_AUTHORIZATION_FAILED" in reason
    assert f"It needs DELETE on {flow.remote_topic}" in reason
    assert list(flow.assert_equal()) == list(range(90, 100))
