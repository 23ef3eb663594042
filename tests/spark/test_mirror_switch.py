"""Producers, groups, a database and a Spark query move to the target of a mirror that keeps offsets.

``interop/test_mirror_switch.py`` is the shorter form, by replay and without load.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Final

import pytest

from klamm.cli import main
from tests.spark.test_mirror_commands import listener
from tests.spark.test_mirror_replica import KLAMM, replica_keys
from tests.support.families import FAMILIES
from tests.support.kafka import KafkaCluster, started
from tests.support.mirror import MirrorProcess, create_topic, properties
from tests.support.mirror_groups import commit
from tests.support.processes import wait_until
from tests.support.spark_query import query_output, run_query
from tests.support.switch import (
    LOAD,
    VALUE_BYTES,
    MovingClients,
    SqliteReader,
    group_offsets,
    log_ends,
    write_by_new_producers,
)

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

SOAK: Final = bool(os.environ.get("KLAMM_SOAK"))
LOAD_MB_PER_S: Final = float(os.environ.get("KLAMM_SOAK_MB_PER_S", "20"))
LOAD_RECORDS: Final = (1_000 if SOAK else 100) * 1_000_000 // VALUE_BYTES
"""Records of the load before the switch."""
REPLAY: Final = "klamm.offsets = preserve\n"
IDENTICAL: Final = """
replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 1
emit.checkpoints.interval.seconds = 1
refresh.groups.interval.seconds = 1
klamm.metrics.listen = 127.0.0.1:0
"""


@pytest.mark.long
@pytest.mark.parametrize("by", ["replay", "replica"])
def test_clients_under_load_continue_on_the_target_at_their_offsets(by: str, tmp_path: Path, java: None) -> None:
    load = MovingClients(LOAD, records_per_s=int(LOAD_MB_PER_S * 1e6 / VALUE_BYTES))
    clients = [load, *(MovingClients(family, records_per_s=200) for family in FAMILIES)]
    topics, groups = [each.topic for each in clients], [each.group for each in clients]
    source, target = KafkaCluster(), KafkaCluster()
    with started(source, target):
        # given
        a, b = source.bootstrap_servers, target.bootstrap_servers
        create_topic(b, "other")
        commit(b, "first", "other", 0)  # creates __consumer_offsets before klamm is a broker of the target
        for each in clients:
            each.create(a)
        keys = REPLAY if by == "replay" else replica_keys(KLAMM, target.bootstrap_controllers)
        database, query = SqliteReader(tmp_path / "sink.sqlite", load.topic), tmp_path / "query"
        with MirrorProcess(properties(a, b, keys + IDENTICAL, topics="switch-.*"), tmp_path) as mirror:
            address = listener(mirror)
            for each in clients[1:]:
                each.start_producer(a)
                each.start_member(a)
            for each in clients[1:]:
                each.wait_for_acknowledged(400)
                each.wait_for_delivered(200)
            run_query(a, clients[1].topic, query)
            began = time.monotonic()
            load.start_producer(a)
            load.start_member(a)
            load.wait_for_acknowledged(LOAD_RECORDS // 2)
            database.read_to_end(a)
            load.wait_for_acknowledged(LOAD_RECORDS)
            rate = len(load.producers[-1].acknowledged) * VALUE_BYTES / 1e6 / (time.monotonic() - began)
            # when
            for each in clients:
                each.members[-1].stop()
            offsets = group_offsets(a, groups)
            wait_until(lambda: group_offsets(b, groups) == offsets, timeout_s=120, what="the offsets of the groups")
            for each in reversed(clients):
                each.producers[-1].stop()
            stopped = time.monotonic()
            if by == "replica":
                file = str(tmp_path / "mm2.properties")
                assert main(["mirror", "promote", file, "--yes", "--metrics", address]) == 0
            ends = log_ends(a, topics)
            wait_until(lambda: log_ends(b, topics) == ends, timeout_s=120, what="the log ends", interval_s=0.01)
            caught_up = time.monotonic()
            load.start_producer(b)
            load.wait_for_acknowledged(1)
            waited = time.monotonic() - stopped
            assert mirror.stop() == 0
        for each in clients[1:]:
            each.start_producer(b)
        for each in clients:
            each.use(b)
        database.read_to_end(b)
        run_query(b, clients[1].topic, query)
        # then
        for each in clients:
            each.assert_each_record_once_and_in_order()
        assert set(database.records()) == load.written()
        assert sorted(query_output(query)) == sorted(clients[1].written())
        write_by_new_producers(b, load.topic, 100)
    logger.info(
        "%s: %.1f MB/s; producers waited %.2f s, of which %.2f s until the target was complete; %d records",
        by, rate, waited, caught_up - stopped, sum(len(each.written()) for each in clients),
    )  # fmt: skip
