"""A source whose leader is lost and followed by a replica that lacks records (unclean leader election)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from klamm.admin import AdminClient, NewTopic
from klamm.mirror.copy.copier import Copier
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.progress.partition_progress import CopyState
from tests.support.copiers import copy_all, copy_settings, run_until
from tests.support.exactly_once import assert_exactly_once
from tests.support.mirror import Seen, produce, wait_for_partitions
from tests.support.processes import wait_until
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.kafka import KafkaCluster

YEAR_2013 = 1_356_998_400_000
LEADER, STALE, LASTING = 1, 2, 3
RUN = unique("")
SOURCE = f"unclean-{RUN}"
ONCE, LEAST, RUNNING = (f"{mode}{RUN}" for mode in ("Once", "Least", "Running"))
SHARDS = {ONCE: 1, LEAST: 0, RUNNING: 1}
"""By alias of the flow: how it copies."""


def numbered(first: int, count: int) -> list[Seen]:
    return [Seen(None, b"%d" % number, (), YEAR_2013) for number in range(first, first + count)]


def write(address: str, records: list[Seen]) -> None:
    produce(address, SOURCE, [(0, record) for record in records])


def in_sync(address: str) -> tuple[int, ...]:
    with AdminClient(address) as admin:
        return admin.describe_topics([SOURCE]).values()[SOURCE].result(300).partitions[0].isr


def create(address: str, name: str, replicas: tuple[int, ...], configs: Mapping[str, str]) -> None:
    with AdminClient(address) as admin:
        new = NewTopic(name=name, replicas_assignments={0: replicas}, configs={"retention.ms": "-1", **configs})
        admin.create_topics([new]).all().result(300)
    wait_for_partitions(address, name, 1)


@pytest.mark.long
def test_records_replaced_by_unclean_election_are_reported_and_mirrored(
    real_kafka_3: KafkaCluster,
) -> None:
    """150 records are mirrored. The new leader has 100 of them and then gets 60 others."""
    # given
    address = real_kafka_3.bootstrap_servers
    create(address, SOURCE, (LEADER, STALE), {"unclean.leader.election.enable": "true"})
    flows = {}
    for alias, shards in SHARDS.items():
        create(address, f"{alias}.{SOURCE}", (LASTING,), {})
        create(address, f"mm2-offsets.{alias}.internal", (LASTING,), {"cleanup.policy": "compact"})
        flows[alias] = copy_settings(address, address, alias=alias, shards=shards)
    partition = {alias: PartitionId(SOURCE, 0, f"{alias}.{SOURCE}") for alias in flows}
    settings = replace(flows[RUNNING], continue_after_loss=True)
    ending = threading.Event()
    with (
        ThreadPoolExecutor(1) as threads,
        closing(Copier(settings, [partition[RUNNING]])) as copier,
        ExitStack() as stack,
    ):
        running = threads.submit(run_until, copier, ending.is_set, timeout_s=1800)
        stack.callback(ending.set)
        write(address, numbered(0, 100))
        real_kafka_3.nodes[STALE].kill()
        wait_until(lambda: in_sync(address) == (LEADER,), timeout_s=30, what="the loss of the follower")
        write(address, numbered(100, 50))
        for alias in (ONCE, LEAST):
            copy_all(flows[alias], partition[alias])
        # when
        wait_until(
            lambda: [row.next_offset for row in copier.progress()] == [150], timeout_s=300, what="150 mirrored records"
        )
        real_kafka_3.nodes[LEADER].kill()
        real_kafka_3.nodes[STALE].start(expected_nodes=2)
        wait_until(lambda: in_sync(address) == (STALE,), timeout_s=60, what="the unclean election")
        write(address, numbered(1000, 60))
        # then
        for alias in (ONCE, LEAST):
            (stopped,) = copy_all(flows[alias], partition[alias])
            assert stopped.state is CopyState.STOPPED
            assert (
                "its log diverges at offset 100 from what was read up to offset 150 of leader epoch" in stopped.reason
            )
            assert "klamm.on.source.loss=continue resumes at 100" in stopped.reason
            copy_all(replace(flows[alias], continue_after_loss=True), partition[alias])
        wait_until(
            lambda: sum(row.records for row in copier.progress()) >= 210, timeout_s=300, what="210 mirrored records"
        )
        ending.set()
        running.result()
    for alias in flows:
        assert_exactly_once(address, f"{alias}.{SOURCE}", {0: numbered(0, 150) + numbered(1000, 60)})
    real_kafka_3.nodes[LEADER].start(expected_nodes=3)
