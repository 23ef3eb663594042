"""Heartbeats and groups beside the data path of a running mirror."""

from __future__ import annotations

from typing import TYPE_CHECKING

import klamm
from klamm.mirror.formats import Checkpoint, Heartbeat
from tests.support.mirror import MirrorProcess, Seen, create_topic, produce, properties, wait_for_records
from tests.support.mirror_groups import commit, committed
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from pathlib import Path

SOON = """
sync.group.offsets.enabled = true
emit.checkpoints.interval.seconds = 1
sync.group.offsets.interval.seconds = 1
"""


def test_heartbeats_arrive_and_groups_follow_while_records_are_copied(tmp_path: Path) -> None:
    """K894-41, K894-43, K894-44: heartbeats of both pairs; those of the source are mirrored, and not counted."""
    with klamm.Broker() as source, klamm.Broker() as target:
        # given
        here, there = source.bootstrap_servers, target.bootstrap_servers
        create_topic(here, "orders")
        produce(here, "orders", [(0, Seen(b"k", b"%d" % number, (), 1_700_000_000_000)) for number in range(500)])
        commit(here, "billing", "orders", 321)
        # when
        with MirrorProcess(properties(here, there, SOON, topics="orders"), tmp_path) as mirror:
            mirror.wait_for("500/500 records", 120)
            own = wait_for_records(there, "heartbeats", 2)
            mirrored = wait_for_records(there, "A.heartbeats", 2)
            wait_until(
                lambda: committed(there, "billing") == {"A.orders": 321}, timeout_s=60, what="billing", interval_s=0.2
            )
            commit(here, "billing", "orders", 432)
            assert mirror.stop() == 0
        # then
        pairs = {
            (heartbeat.source_alias, heartbeat.target_alias)
            for record in (*own, *mirrored)
            for heartbeat in (Heartbeat.parse(record.key or b"", record.value or b""),)
        }
        assert pairs == {("A", "B"), ("B", "A")}
        assert committed(there, "billing") == {"A.orders": 432}, "a mirror that ends does a last round"
        found = wait_for_records(there, "A.checkpoints.internal", 2)
        checkpoints = [Checkpoint.parse(record.key or b"", record.value or b"") for record in found]
        assert [(each.group, each.downstream_offset) for each in checkpoints] == [("billing", 321), ("billing", 432)]
