"""A mirror with ``client.rack`` fetches from the replica of its rack (KIP-392)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from klamm.admin import AdminClient, NewTopic
from klamm.kafka_client.data.cluster import Cluster
from klamm.mirror.copy.copier import Copier
from klamm.mirror.copy.partition import PartitionId
from tests.support.copiers import copy_settings, run_until
from tests.support.exactly_once import assert_exactly_once
from tests.support.mirror import Seen, produce, wait_for_partitions
from tests.support.processes import wait_until
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    from klamm.kafka_client.connection.connection import Connection
    from tests.support.kafka import KafkaCluster

YEAR_2013 = 1_356_998_400_000
ALIAS = unique("R")
TOPIC = f"racks-{ALIAS}"
REMOTE_TOPIC = f"{ALIAS}.{TOPIC}"
LEADER, NEAR, LASTING = 1, 2, 3


@pytest.mark.long
def test_client_rack_fetches_from_replica_and_falls_back_to_leader(
    real_kafka_3: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    address = real_kafka_3.bootstrap_servers
    replicas = {TOPIC: (LEADER, NEAR), REMOTE_TOPIC: (LASTING,), f"mm2-offsets.{ALIAS}.internal": (LASTING,)}
    with AdminClient(address) as admin:
        new = [
            NewTopic(name=name, replicas_assignments={0: nodes}, configs={"retention.ms": "-1"})
            for name, nodes in replicas.items()
        ]
        admin.create_topics(new).all().result(300)
    for name in replicas:
        wait_for_partitions(address, name, 1)
    records = [Seen(None, b"%d" % number, (), YEAR_2013) for number in range(300)]
    asked: list[int] = []
    connection = Cluster.connection

    def noting(of: Cluster, node_id: int, lane: int = 0) -> Connection:
        if of is copier._source:
            asked.append(node_id)
        return connection(of, node_id, lane)

    settings = copy_settings(address, address, alias=ALIAS)
    settings = replace(settings, fetch_limits=settings.fetch_limits._replace(rack_id=f"rack-{NEAR}"))
    ending = threading.Event()
    with ThreadPoolExecutor(1) as threads, closing(Copier(settings, [PartitionId(TOPIC, 0, REMOTE_TOPIC)])) as copier:
        monkeypatch.setattr(Cluster, "connection", noting)
        running = threads.submit(run_until, copier, ending.is_set, timeout_s=120)

        def write_and_wait(first: int) -> None:
            produce(address, TOPIC, [(0, record) for record in records[first : first + 100]])
            wait_until(
                lambda: [row.next_offset for row in copier.progress()] == [first + 100],
                timeout_s=60,
                what=f"{first + 100} records",
            )

        try:
            # when
            write_and_wait(0)
            wait_until(lambda: asked[-1:] == [NEAR], timeout_s=30, what="a fetch from the near replica")
            asked.clear()
            write_and_wait(100)
            # then
            assert set(asked) == {NEAR}
            # when
            real_kafka_3.nodes[NEAR].kill()
            write_and_wait(200)
            # then
            assert LEADER in asked
        finally:
            ending.set()
        running.result()
    assert_exactly_once(address, REMOTE_TOPIC, {0: records})
    real_kafka_3.nodes[NEAR].start(expected_nodes=3)
