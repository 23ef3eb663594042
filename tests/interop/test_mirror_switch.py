"""Producers, groups and a database move to the target of a mirror that keeps offsets by replay, without Spark.

``spark/test_mirror_switch.py`` is the longer form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import klamm
from klamm.mirror.settings.mirror import parse_settings
from klamm.properties import parse_properties
from tests.support.families import AIOKAFKA, CONFLUENT_KAFKA, KAFKA_PYTHON
from tests.support.mirror import properties
from tests.support.mirror_groups import Copying, rounds
from tests.support.processes import wait_until
from tests.support.switch import MovingClients, SqliteReader, group_offsets, log_ends, write_by_new_producers

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from klamm.admin import TopicPartition

PRESERVE = """
klamm.offsets = preserve
replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
sync.group.offsets.enabled = true
"""


def are_mirrored(offsets: Mapping[str, Mapping[TopicPartition, int]], ends: Mapping[TopicPartition, int]) -> bool:
    return all(ends[at] >= offset for of_group in offsets.values() for at, offset in of_group.items())


def test_clients_continue_on_the_target_at_their_offsets(tmp_path: Path) -> None:
    clients = [MovingClients(each, records_per_s=500) for each in (CONFLUENT_KAFKA, KAFKA_PYTHON, AIOKAFKA)]
    topics, groups = [each.topic for each in clients], [each.group for each in clients]
    with klamm.Broker() as source, klamm.Broker() as target:
        a, b = source.bootstrap_servers, target.bootstrap_servers
        for each in clients:
            each.create(a)
            each.start_producer(a)
            each.start_member(a)
        file = properties(a, b, PRESERVE, topics="switch-.*")
        flow = parse_settings(parse_properties(file)).flows[0]
        database = SqliteReader(tmp_path / "sink.sqlite", topics[0])
        with Copying(flow):
            for each in clients:
                each.wait_for_acknowledged(200)
                each.wait_for_delivered(100)
                each.members[-1].stop()
            database.read_to_end(a)
            offsets = group_offsets(a, groups)
            wait_until(
                lambda: are_mirrored(offsets, log_ends(b, topics)), timeout_s=60, what="what the groups have read"
            )
            # when
            rounds(flow)
            for each in clients:
                each.producers[-1].stop()
            wait_until(lambda: log_ends(b, topics) == log_ends(a, topics), timeout_s=60, what="the log ends")
        assert group_offsets(b, groups) == offsets
        for each in clients:
            each.start_producer(b)
        for each in clients:
            each.use(b)
        database.read_to_end(b)
        # then
        for each in clients:
            each.assert_each_record_once_and_in_order()
        assert set(database.records()) == clients[0].written()
        write_by_new_producers(b, topics[0], 5)
