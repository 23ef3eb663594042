"""The mirror between two real Apache Kafka 4.4 clusters: one node to three."""

from __future__ import annotations

from typing import TYPE_CHECKING

import klamm
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.worker_offsets import mirrored_offsets
from klamm.properties import parse_properties
from tests.support.mirror import (
    MirrorProcess,
    Seen,
    create_topic,
    grow_topic,
    produce,
    properties,
    read,
    set_config,
    topic_configs,
)
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.kafka import KafkaCluster

YEAR_2013 = 1_356_998_400_000
FOREVER = {"retention.ms": "-1"}


def numbered(count: int, partitions: int, first: int = 0) -> Iterator[tuple[int, Seen]]:
    for number in range(first, first + count):
        yield number % partitions, Seen(b"k%d" % number, b"v%d" % number, (), YEAR_2013 + number)


def by_partition(records: list[tuple[int, Seen]], partitions: int) -> dict[int, list[Seen]]:
    return {at: [record for partition, record in records if partition == at] for at in range(partitions)}


def test_configs_grown_and_later_topics_follow_the_source_and_a_killed_mirror_continues(
    real_kafka: KafkaCluster, real_kafka_3: KafkaCluster, tmp_path: Path
) -> None:
    """K894-04, K894-08, K894-10, K894-13, K894-23: only ``never`` clears what it does not sync.

    K894-36: New partitions on source -> target grown; deletions on source are not propagated; target topic deleted
    -> recreated at next refresh.
    K894-38: nothing is lost; what was not yet noted as mirrored may come twice.
    The mirror and the changes of its clusters go through gateways.
    """
    # given
    with klamm.Gateway(real_kafka.bootstrap_servers) as left, klamm.Gateway(real_kafka_3.bootstrap_servers) as right:
        source, target = left.bootstrap_servers, right.bootstrap_servers
        modes = {"B": "requested", "C": "required", "D": "never"}
        more = "clusters = A, B, C, D\n"
        for alias, mode in modes.items():
            create_topic(source, f"configs-{mode}", 1, {"retention.ms": "1000000", "max.message.bytes": "2000000"})
            topics = f"configs-{mode}" + (",grows,comes-later" if alias == "B" else "")
            more += (
                f"{alias}.bootstrap.servers = {target}\nA->{alias}.enabled = true\nA->{alias}.topics = {topics}\n"
                f"A->{alias}.use.incremental.alter.configs = {mode}\n"
            )
        create_topic(source, "grows", 1, FOREVER)
        first = list(numbered(100, 1))
        produce(source, "grows", first)
        file = properties(source, target, more, topics="none")
        with MirrorProcess(file, tmp_path) as mirror:
            for mode in modes.values():
                mirror.wait_for(f"created topic A.configs-{mode}")
                set_config(target, f"A.configs-{mode}", "follower.replication.throttled.replicas", "0:1")
            mirror.wait_for("100/100 records")
            # when
            for mode in modes.values():
                set_config(source, f"configs-{mode}", "retention.ms", "2000000")
                set_config(source, f"configs-{mode}", "max.message.bytes", None)
            grow_topic(source, "grows", 3)
            create_topic(source, "comes-later", 1, FOREVER)
            later = list(numbered(3_000, 3, first=100))
            produce(source, "grows", later)
            produce(source, "comes-later", list(numbered(10, 1)))
            # then
            for mode in modes.values():
                kept = {} if mode == "never" else {"follower.replication.throttled.replicas": "0:1"}
                _wait_for_configs(target, f"A.configs-{mode}", {"retention.ms": "2000000", **kept})
            mirror.wait_for("3,110/3,110 records")
            noted = by_partition(first + later, 3)
            assert read(target, "A.grows", {at: len(records) for at, records in noted.items()}) == noted
            ends = {("grows", at): len(records) - 1 for at, records in noted.items()}
            wait_until(lambda: _are_noted(file, ends), timeout_s=40, what="their positions", interval_s=0.2)
            # when
            last = list(numbered(20_000, 3, first=3_100))
            produce(source, "grows", last)
            mirror.kill()
        with MirrorProcess(file, tmp_path, "--until-caught-up") as mirror:
            code = mirror.wait()
        # then
        assert code == 0, mirror.text()[-4000:]
        wanted = by_partition(first + later + last, 3)
        arrived = read(target, "A.grows", {at: len(records) for at, records in wanted.items()})
        assert {at: list(dict.fromkeys(records)) for at, records in arrived.items()} == wanted
        for at, records in noted.items():
            assert not set(records) & set(arrived[at][len(records) :]), "what was noted as mirrored came again"


def _are_noted(file: str, positions: dict[tuple[str, int], int]) -> bool:
    """Return whether the target holds these positions of the flow A->B."""
    (flow,) = (flow for flow in parse_settings(parse_properties(file)).flows if flow.name == "A->B")
    return positions.items() <= mirrored_offsets(flow).items()


def _wait_for_configs(address: str, topic: str, wanted: dict[str, str]) -> None:
    wait_until(
        lambda: topic_configs(address, topic) == wanted,
        timeout_s=40,
        what=f"the configs of {topic}",
        interval_s=0.2,
    )


def test_leaders_move_and_a_broker_dies_and_comes_back_in_the_middle(
    real_kafka: KafkaCluster, real_kafka_3: KafkaCluster, tmp_path: Path
) -> None:
    """K894-37, K894-39: a source and a target of three nodes; transactions whose coordinator moves, too."""
    # given
    one, three = real_kafka.bootstrap_servers, real_kafka_3.bootstrap_servers
    create_topic(one, "moves-target", 6, FOREVER)
    create_topic(three, "moves-source", 6, FOREVER, replication=3)
    batches = [list(numbered(3_000, 6, first=first)) for first in (0, 3_000, 6_000)]

    def write(batch: list[tuple[int, Seen]]) -> None:
        produce(one, "moves-target", batch)
        produce(three, "moves-source", batch, {"enable.idempotence": True})  # one of its nodes is killed

    def wait_for(count: str) -> None:
        for flow in ("A->B", "A->C", "B->A"):
            mirror.wait_for(f"{flow} RUNNING: {count}/{count} records", timeout_s=120)

    write(batches[0])
    with MirrorProcess(_there_and_back(one, three), tmp_path) as mirror:
        wait_for("3,000")
        # when
        real_kafka_3.nodes[2].kill()
        write(batches[1])
        wait_for("6,000")
        real_kafka_3.nodes[2].start(expected_nodes=3)
        write(batches[2])
        wait_for("9,000")
        # then
        assert mirror.stop() == 0
    wanted = by_partition([record for batch in batches for record in batch], 6)
    counts = dict.fromkeys(wanted, 1_500)
    assert read(one, "B.moves-source", counts) == wanted
    assert read(three, "A.moves-target", counts) == wanted
    assert read(three, "A-moves-target", counts) == wanted


def _there_and_back(one: str, three: str) -> str:
    """From one node to three, at least once and exactly once, and from three nodes to one."""
    return f"""
clusters = A, B, C
A.bootstrap.servers = {one}
B.bootstrap.servers = {three}
C.bootstrap.servers = {three}
A->B.enabled = true
A->C.enabled = true
B->A.enabled = true
topics = moves-target
B->A.topics = moves-source
A->C.klamm.exactly.once = true
A->C.replication.policy.separator = -
C.offset.storage.topic = mm2-offsets.A.exact.internal
replication.factor = 3
B.offset.storage.replication.factor = 3
C.offset.storage.replication.factor = 3
offset-syncs.topic.replication.factor = 1
B->A.replication.factor = 1
A.offset.storage.replication.factor = 1
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
"""
