"""Pairs of changes through one gateway: each one is allowed alone, and both together break a rule.

The brokers of the upstream learn of a change after its response, so a gateway that asks any of them may judge the
second change by the state before the first.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import uuid4

import pytest
from kafka import KafkaProducer

import klamm
from klamm.admin import (
    AdminClient,
    AlterConfigOp,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OpType,
    ResourceType,
)
from klamm.protocol.errors import KafkaApiError, PolicyViolationError
from klamm.protocol.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.kafka import KafkaCluster

pytestmark = pytest.mark.long

ROUNDS: Final = 30 if os.environ.get("KLAMM_SOAK") else 1
POLICY: Final = """
from klamm.policy import PolicyViolationError


class Together:
    def validate_alter_config(self, details):
        if details.resource_type == "BROKER":
            if details.result.keys() >= {"log.cleaner.backoff.ms", "log.cleaner.io.buffer.load.factor"}:
                raise PolicyViolationError("both configs of the cleaner")
            return
        result = {**details.defaults, **details.result}
        if result["cleanup.policy"] == "compact" and result["retention.ms"] == "5000":
            raise PolicyViolationError("compact and 5000")
        if details.replication_factor < int(result["min.insync.replicas"]):
            raise PolicyViolationError("more in-sync replicas than replicas")

    def validate_create_partitions(self, details):
        in_sync = int({**details.defaults, **details.configs}["min.insync.replicas"])
        if details.new_num_partitions != details.num_partitions and details.num_partitions > 2:
            raise PolicyViolationError("large enough")
        if details.topic.startswith("single") and any(len(replicas) > 1 for replicas in details.new_assignments or ()):
            raise PolicyViolationError("more than one replica")
        if any(len(replicas) < in_sync for replicas in details.new_assignments or ()):
            raise PolicyViolationError("fewer replicas than in-sync replicas")

    def validate_delete_topic(self, details):
        if details.num_partitions > 2 or details.replication_factor < 2:
            raise PolicyViolationError("worth keeping")
"""

Change: TypeAlias = Callable[[AdminClient, str], Any]


def alter(key: str, value: str, how: OpType = OpType.SET) -> Change:
    def change(admin: AdminClient, topic: str) -> Any:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        op = AlterConfigOp(ConfigEntry(key, value), how)
        return admin.incremental_alter_configs({resource: [op]}).values()[resource]

    return change


def grow(count: int) -> Change:
    return lambda admin, topic: admin.create_partitions({topic: NewPartitions(count)}).values()[topic]


def reassign(*replicas: int) -> Change:
    def change(admin: AdminClient, topic: str) -> Any:
        partition = TopicPartition(topic, 0)
        return admin.alter_partition_reassignments({partition: replicas}).values()[partition]

    return change


def delete(admin: AdminClient, topic: str) -> Any:
    return admin.delete_topics([topic]).values()[topic]


PAIRS: Final[dict[str, tuple[Change, Change]]] = {
    "config, config": (alter("cleanup.policy", "compact"), alter("retention.ms", "5000")),
    "config, appended config": (alter("retention.ms", "5000"), alter("cleanup.policy", "delete", OpType.SUBTRACT)),
    "partitions, partitions": (grow(3), grow(4)),
    "partitions, deletion": (grow(3), delete),
    "in-sync replicas, reassignment": (alter("min.insync.replicas", "2"), reassign(1)),
    "reassignment, in-sync replicas": (reassign(1), alter("min.insync.replicas", "2")),
    "reassignment, deletion": (reassign(1), delete),
}


@pytest.fixture(scope="module")
def admins(
    real_kafka_3: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[AdminClient, AdminClient]]:
    """Two clients of a gateway whose policy denies what no change alone brings about."""
    module = f"together_{uuid4().hex[:8]}"
    directory = tmp_path_factory.mktemp("policy")
    (directory / f"{module}.py").write_text(POLICY)
    kinds = ("alter.config", "create.partitions", "delete.topic")
    config = {f"{kind}.policy.class.name": f"{module}:Together" for kind in kinds}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        with (
            klamm.Gateway(real_kafka_3.bootstrap_servers, config=config) as gateway,
            AdminClient(gateway.bootstrap_servers) as first,
            AdminClient(gateway.bootstrap_servers) as second,
        ):
            yield first, second


@pytest.fixture
def topics(real_kafka_3: KafkaCluster) -> Iterator[Callable[[], str]]:
    """Create topics past the gateway, and delete them after the test."""
    names: list[str] = []
    with AdminClient(real_kafka_3.bootstrap_servers) as admin:

        def create() -> str:
            names.append(f"pair-{uuid4().hex[:12]}")
            configs = {"cleanup.policy": "delete,compact"}
            admin.create_topics([NewTopic(names[-1], replicas_assignments={0: (1, 2)}, configs=configs)]).result(300)
            return names[-1]

        yield create
        for outcome in admin.delete_topics(names).values().values():
            outcome.exception(60)  # some are deleted


@pytest.mark.parametrize("pair", PAIRS)
def test_changes_allowed_alone_are_denied_together(
    pair: str, admins: tuple[AdminClient, AdminClient], topics: Callable[[], str]
) -> None:
    first, second = PAIRS[pair]
    for change in (first, second):
        change(admins[0], topics()).result(300)
    for _ in range(ROUNDS):
        topic = topics()
        first(admins[0], topic).result(300)
        with pytest.raises(PolicyViolationError):
            second(admins[1], topic).result(300)
        # both at once: at most one is allowed
        topic = topics()
        both = first(admins[0], topic), second(admins[1], topic)
        errors = [outcome.exception(60) for outcome in both]
        assert any(errors), f"both changes of {topic} were allowed"


@pytest.mark.parametrize("broker", [1, None])
def test_broker_configs_allowed_alone_are_denied_together(
    broker: int | None, admins: tuple[AdminClient, AdminClient]
) -> None:
    changes = {"log.cleaner.backoff.ms": "15001", "log.cleaner.io.buffer.load.factor": "0.8"}
    for _ in range(ROUNDS):
        for key, value in changes.items():
            other = next(name for name in changes if name != key)
            try:
                admins[0].alter_broker_configs(broker, set={key: value}).result(300)
                with pytest.raises(PolicyViolationError):
                    admins[1].alter_broker_configs(broker, set={other: changes[other]}).result(300)
            finally:
                admins[0].alter_broker_configs(broker, delete=[*changes]).result(300)


@pytest.fixture
def moving(real_kafka_3: KafkaCluster, admins: tuple[AdminClient, AdminClient]) -> Iterator[str]:
    """Topic whose only replica is being moved from broker 1 to broker 2, at a rate at which that does not end."""
    topic, brokers = f"single-{uuid4().hex[:12]}", (1, 2)
    rates = {f"{role}.replication.throttled.rate": "1" for role in ("leader", "follower")}
    everywhere = {f"{role}.replication.throttled.replicas": "*" for role in ("leader", "follower")}
    with AdminClient(real_kafka_3.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, replicas_assignments={0: (1,)}, configs=everywhere)]).result(300)
        producer = KafkaProducer(bootstrap_servers=real_kafka_3.bootstrap_servers, retries=10)
        for _ in range(20):
            producer.send(topic, os.urandom(500_000), partition=0).get(60)
        producer.close()
        try:
            for broker in brokers:
                admin.alter_broker_configs(broker, set=rates).result(300)
            reassign(2)(admins[0], topic).result(300)
            yield topic
        finally:
            for broker in brokers:
                admin.alter_broker_configs(broker, delete=[*rates]).result(300)
            admin.delete_topics([topic]).result(300)


def test_reassignment_in_progress_does_not_bypass_the_policy(
    moving: str, admins: tuple[AdminClient, AdminClient]
) -> None:
    second, partition = admins[1], TopicPartition(moving, 0)
    assert second.list_partition_reassignments([partition]).result(300)[partition].adding_replicas == (2,)
    with pytest.raises(PolicyViolationError, match="more than one replica"):
        reassign(2, 3)(second, moving).result(300)
    with pytest.raises(KafkaApiError, match="is being reassigned"):
        grow(2)(second, moving).result(300)
    reassign(3)(second, moving).result(300)
    with pytest.raises(PolicyViolationError, match="more than one replica"):  # it would keep those of the first move
        second.alter_partition_reassignments({partition: None}).values()[partition].result(300)
