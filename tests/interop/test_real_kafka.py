"""The oracle itself: real Apache Kafka 4.4 as the other tests find it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.class_archives import ROOT
from tests.support.kafka_tools import run_tool
from tests.support.processes import has_ended, wait_until

if TYPE_CHECKING:
    from tests.support.kafka import KafkaCluster

_TOPICS = "org.apache.kafka.tools.TopicCommand"


def test_a_node_that_was_killed_comes_back_on_its_port_with_its_topics(real_kafka: KafkaCluster) -> None:
    # given
    address, topic = real_kafka.bootstrap_servers, ("--topic", "oracle-kept")
    run_tool(_TOPICS, "--bootstrap-server", address, "--create", *topic, "--partitions", "2")
    # when
    real_kafka.restart(1, kill=True)
    # then
    assert real_kafka.bootstrap_servers == address
    assert "PartitionCount: 2" in run_tool(_TOPICS, "--bootstrap-server", address, "--describe", *topic)


def test_three_nodes_replicate_a_topic(real_kafka_3: KafkaCluster) -> None:
    # given
    address = real_kafka_3.bootstrap_servers
    # when
    run_tool(
        _TOPICS, "--bootstrap-server", address, "--create", "--topic", "oracle-of-three", "--replication-factor", "3"
    )
    # then: on whichever node is asked, once it has heard of the topic
    described = ("--describe", "--if-exists", "--topic", "oracle-of-three")
    wait_until(
        lambda: "ReplicationFactor: 3" in run_tool(_TOPICS, "--bootstrap-server", address, *described),
        timeout_s=30,
        what="a topic with three replicas",
    )


def test_a_process_of_the_harness_ends_with_a_test_run_that_is_killed() -> None:
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
    wait_until(lambda: has_ended(child), timeout_s=10, what="the child's end")
