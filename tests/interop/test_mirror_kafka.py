"""The mirror between two real Apache Kafka 4.4 clusters: one node to three."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import klamm
from klamm.mirror.records.worker_offsets import mirrored_offsets
from klamm.mirror.settings.mirror import parse_settings
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
from tests.support.shared_cluster import unique

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


@pytest.mark.long
def test_mirror_follows_source_changes_and_resumes_after_kill(
    real_kafka: KafkaCluster, real_kafka_3: KafkaCluster, tmp_path: Path
) -> None:
    """K894-04, K894-08, K894-10, K894-13, K894-23: only ``never`` clears what it does not sync.

    K894-36: New partitions on source -> target grown; deletions on source are not propagated; target topic deleted
    -> recreated at next refresh.
    K894-38: nothing is lost; what was not yet noted as mirrored may come twice.
    The mirror and the changes of its clusters go through gateways.
    """
    # given
    run = unique("")
    a, grows = f"A{run}", f"grows-{run}"
    with klamm.Gateway(real_kafka.bootstrap_servers) as left, klamm.Gateway(real_kafka_3.bootstrap_servers) as right:
        source, target = left.bootstrap_servers, right.bootstrap_servers
        modes = {f"{alias}{run}": mode for alias, mode in (("B", "requested"), ("C", "required"), ("D", "never"))}
        b = next(iter(modes))
        more = f"clusters = {a}, {','.join(modes)}\nemit.heartbeats.enabled = false\n"
        for alias, mode in modes.items():
            configs = {"retention.ms": "1000000", "max.message.bytes": "2000000"}
            create_topic(source, f"configs-{mode}-{run}", 1, configs)
            topics = f"configs-{mode}-{run}" + (f",{grows},later-{run}" if alias == b else "")
            more += (
                f"{alias}.bootstrap.servers = {target}\n{a}->{alias}.enabled = true\n{a}->{alias}.topics = {topics}\n"
                f"{a}->{alias}.use.incremental.alter.configs = {mode}\n"
            )
        create_topic(source, grows, 1, FOREVER)
        first = list(numbered(100, 1))
        produce(source, grows, first)
        file = properties(source, target, more, topics="none", alias=a, target_alias=b)
        with MirrorProcess(file, tmp_path) as mirror:
            for mode in modes.values():
                mirror.wait_for(f"created topic {a}.configs-{mode}-{run}")
                set_config(target, f"{a}.configs-{mode}-{run}", "follower.replication.throttled.replicas", "0:1")
            mirror.wait_for("100/100 records")
            # when
            for mode in modes.values():
                set_config(source, f"configs-{mode}-{run}", "retention.ms", "2000000")
                set_config(source, f"configs-{mode}-{run}", "max.message.bytes", None)
            grow_topic(source, grows, 3)
            create_topic(source, f"later-{run}", 1, FOREVER)
            later = list(numbered(3_000, 3, first=100))
            produce(source, grows, later)
            produce(source, f"later-{run}", list(numbered(10, 1)))
            # then
            for mode in modes.values():
                kept = {} if mode == "never" else {"follower.replication.throttled.replicas": "0:1"}
                _wait_for_configs(target, f"{a}.configs-{mode}-{run}", {"retention.ms": "2000000", **kept})
            mirror.wait_for("3,110/3,110 records")
            noted = by_partition(first + later, 3)
            assert read(target, f"{a}.{grows}", {at: len(records) for at, records in noted.items()}) == noted
            ends = {(grows, at): len(records) - 1 for at, records in noted.items()}
            wait_until(lambda: _are_noted(file, ends), timeout_s=40, what="their positions", interval_s=0.2)
            # when
            last = list(numbered(20_000, 3, first=3_100))
            produce(source, grows, last)
            mirror.kill()
        with MirrorProcess(file, tmp_path, "--until-caught-up") as mirror:
            code = mirror.wait()
        # then
        assert code == 0, mirror.text()[-4000:]
        wanted = by_partition(first + later + last, 3)
        arrived = read(target, f"{a}.{grows}", {at: len(records) for at, records in wanted.items()})
        assert {at: list(dict.fromkeys(records)) for at, records in arrived.items()} == wanted
        for at, records in noted.items():
            assert not set(records) & set(arrived[at][len(records) :]), "what was noted as mirrored came again"


def _are_noted(file: str, positions: dict[tuple[str, int], int]) -> bool:
    """Return whether the target holds these positions of the first flow."""
    flow, *_ = parse_settings(parse_properties(file)).flows
    return positions.items() <= mirrored_offsets(flow).items()


def _wait_for_configs(address: str, topic: str, wanted: dict[str, str]) -> None:
    wait_until(
        lambda: topic_configs(address, topic) == wanted,
        timeout_s=40,
        what=f"the configs of {topic}",
        interval_s=0.2,
    )


@pytest.mark.soak
def test_mirror_survives_leader_moves_and_broker_restart(
    real_kafka: KafkaCluster, real_kafka_3: KafkaCluster, tmp_path: Path
) -> None:
    """A source and a target of three nodes; transactions whose coordinator moves, too.

    Shorter forms are ``test_lost_nodes.py``, without Spark, and the rig of ``tests/spark``, with one node on each side.
    """
    # given
    run = unique("")
    one, three = real_kafka.bootstrap_servers, real_kafka_3.bootstrap_servers
    there, back = f"there-{run}", f"back-{run}"
    create_topic(one, there, 6, FOREVER)
    create_topic(three, back, 6, FOREVER, replication=3)
    batches = [list(numbered(3_000, 6, first=first)) for first in (0, 3_000, 6_000)]

    def write(batch: list[tuple[int, Seen]]) -> None:
        produce(one, there, batch)
        produce(three, back, batch, {"enable.idempotence": True})  # one of its nodes is killed

    def wait_for(count: str) -> None:
        for flow in ("A{0}->B{0}", "A{0}->C{0}", "B{0}->A{0}"):
            mirror.wait_for(f"{flow.format(run)} RUNNING: {count}/{count} records", timeout_s=120)

    write(batches[0])
    with MirrorProcess(_there_and_back(one, three, run), tmp_path) as mirror:
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
    assert read(one, f"B{run}.{back}", counts) == wanted
    assert read(three, f"A{run}.{there}", counts) == wanted
    assert read(three, f"A{run}-{there}", counts) == wanted


def _there_and_back(one: str, three: str, run: str) -> str:
    """From one node to three, at least once and exactly once, and from three nodes to one."""
    return f"""
clusters = A{run}, B{run}, C{run}
A{run}.bootstrap.servers = {one}
B{run}.bootstrap.servers = {three}
C{run}.bootstrap.servers = {three}
A{run}->B{run}.enabled = true
A{run}->C{run}.enabled = true
B{run}->A{run}.enabled = true
topics = there-{run}
B{run}->A{run}.topics = back-{run}
A{run}->C{run}.klamm.exactly.once = true
A{run}->C{run}.replication.policy.separator = -
C{run}.offset.storage.topic = mm2-offsets.A{run}.exact.internal
replication.factor = 3
B{run}.offset.storage.replication.factor = 3
C{run}.offset.storage.replication.factor = 3
offset-syncs.topic.replication.factor = 1
B{run}->A{run}.replication.factor = 1
A{run}.offset.storage.replication.factor = 1
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
"""
