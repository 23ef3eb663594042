"""The Apache Kafka 4.4 clusters that other tests compare with."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from klamm.admin import (
    AdminClient,
    ClientQuotaEntity,
    ClientQuotaOp,
    NewTopic,
    OffsetAndMetadata,
    ScramCredentialInfo,
    ScramMechanism,
    TopicPartition,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tests.support.class_archives import ROOT
from tests.support.kafka_tools import run_tool
from tests.support.kept_up import KeptUp
from tests.support.processes import has_ended, wait_until
from tests.support.shared_cluster import SharedCluster, unique

if TYPE_CHECKING:
    from tests.support.kafka import KafkaCluster

_TOPICS = "org.apache.kafka.tools.TopicCommand"


@pytest.mark.long
def test_killed_node_restarts_on_its_port_with_its_topics(real_kafka: KafkaCluster) -> None:
    # given
    address, topic = real_kafka.bootstrap_servers, ("--topic", unique("oracle-"))
    run_tool(_TOPICS, "--bootstrap-server", address, "--create", *topic, "--partitions", "2")
    # when
    real_kafka.restart(1, kill=True)
    # then
    assert real_kafka.bootstrap_servers == address
    assert "PartitionCount: 2" in run_tool(_TOPICS, "--bootstrap-server", address, "--describe", *topic)


@pytest.mark.long
def test_three_nodes_replicate_a_topic(real_kafka_3: KafkaCluster) -> None:
    # given
    address, topic = real_kafka_3.bootstrap_servers, ("--topic", unique("oracle-"))
    # when
    run_tool(_TOPICS, "--bootstrap-server", address, "--create", *topic, "--replication-factor", "3")
    # then: on whichever node is asked, once it has heard of the topic
    described = ("--describe", "--if-exists", *topic)
    wait_until(
        lambda: "ReplicationFactor: 3" in run_tool(_TOPICS, "--bootstrap-server", address, *described),
        timeout_s=30,
        what="a topic with three replicas",
    )


@pytest.mark.long
def test_shared_cluster_check_lists_leftovers(real_kafka: KafkaCluster) -> None:
    # given
    shared = SharedCluster(real_kafka)
    quotas = ClientQuotaEntity.of({"client-id": "left"})
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    with AdminClient(real_kafka.bootstrap_servers) as admin, KeptUp(real_kafka.bootstrap_servers) as broker:
        # when
        admin.create_topics([NewTopic(name, 1, 1) for name in ("left", unique("left-"))]).all().result(300)
        broker.wait()
        admin.alter_group_offsets("left", {TopicPartition("left", 0): OffsetAndMetadata(offset=0)}).all().result(300)
        admin.alter_client_quotas({quotas: [ClientQuotaOp("producer_byte_rate", 1e9)]}).all().result(300)
        admin.alter_broker_configs(None, set={"log.retention.ms": "1000000"}).result(300)
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion("left", scram, "secret")]).all().result(300)
        broker.wait()
        # then
        with pytest.raises(AssertionError) as left:
            shared.check()
        admin.delete_groups(["left"]).all().result(300)
        admin.delete_topics(["left"]).all().result(300)
        admin.alter_client_quotas({quotas: [ClientQuotaOp("producer_byte_rate", None)]}).all().result(300)
        admin.alter_broker_configs(None, delete=["log.retention.ms"]).result(300)
        admin.alter_user_scram_credentials([UserScramCredentialDeletion("left", scram.mechanism)]).all().result(300)
        broker.wait()
    assert sorted(re.findall(r"(?m)^\+ .*", str(left.value))) == [
        "+ SCRAM user left",
        "+ config log.retention.ms=1000000 of broker 1",
        "+ config log.retention.ms=1000000 of broker default",
        "+ group left",
        "+ quota of [('client-id', 'left')]",
        "+ topic left with 1 partitions of 1 replicas",
    ]


def test_harness_process_ends_with_a_killed_test_run() -> None:
    # given: a run that has started a process and told its id
    program = (
        "import time; from tests.support.processes import start_process\n"
        "print(start_process(['sleep', '600']).pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT) as run:
        assert run.stdout is not None
        child = int(run.stdout.readline())
        assert not has_ended(child)
        # when
        run.kill()
        run.wait()
    # then
    wait_until(lambda: has_ended(child), timeout_s=30, what="the child's end")
