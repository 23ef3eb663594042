"""Limits, pauses and restarts reach the copiers of running tasks. The clusters of the flow are unavailable."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.copy.settings import copy_settings
from klamm.mirror.records.requested_states import RequestedState
from klamm.mirror.settings.mirror import LiveKeys, parse_settings
from klamm.mirror.spark import leases, worker
from klamm.mirror.spark.channel import ChannelClient
from klamm.mirror.spark.driver import ControlLoops
from klamm.mirror.spark.leases import FlowShare
from klamm.properties import read_properties
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from pathlib import Path

FILE = """clusters=A,B
A.bootstrap.servers=127.0.0.1:1
B.bootstrap.servers=127.0.0.1:1
A->B.enabled=true
emit.heartbeats.enabled=false
emit.checkpoints.enabled=false
klamm.max.bytes.per.second="""
WAIT_S = 10.0


def test_live_values_reach_running_task(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    path.write_text(f"{FILE}100")
    settings = parse_settings(read_properties(path))
    share = FlowShare(settings=copy_settings(settings.flows[0]), partitions=(PartitionId("t", 0, "A.t"),))
    with ControlLoops(settings, join_s=0.1, live_keys=LiveKeys(path)) as loops, ThreadPoolExecutor(1) as threads:
        server = loops.coordinator.server
        server.listen()
        loops.coordinator.publish("A->B", share)
        planner = ChannelClient(server.address, server.token)
        planner.send({"ask": "groups", "lease": 1})
        plan = planner.receive(timeout_s=WAIT_S)
        assert plan is not None
        group = leases.from_json(plan["groups"][0])
        assert [live.limit for live in group.live] == [100]
        session = worker.LeaseSession(group.shares)
        worker.kept_sessions.keep(0, session)
        resumed = replace(group, session=session.token)
        task = threads.submit(
            lambda: [
                *worker.serve([resumed], task=0, lease=1, seconds=60.0, address=server.address, token=server.token)
            ]
        )
        (copier,) = session.copiers
        wait_until(lambda: copier.throttle.limit == 100, timeout_s=WAIT_S, what="the limit of 100")
        path.write_text(f"{FILE}7")
        wait_until(lambda: copier.throttle.limit == 7, timeout_s=WAIT_S, what="the limit of 7")
        loops.coordinator.set_topic_states("A->B", {"t": RequestedState.PAUSED})
        wait_until(lambda: copier.paused == {"t"}, timeout_s=WAIT_S, what="the pause")
        loops.coordinator.set_topic_states("A->B", {"t": RequestedState.PROMOTED})
        wait_until(lambda: copier.promoted == {"t": "PROMOTED"}, timeout_s=WAIT_S, what="the promotion")
        assert not copier.paused
        loops.coordinator.restart("A->B", ["t"])
        wait_until(lambda: copier.restarts == {"t": 1}, timeout_s=WAIT_S, what="the restart")
        assert not loops.coordinator.wait_released("A->B", {"t"}, 0.0)
        assert loops.coordinator.wait_released("A->B", {"others"}, 0.0)
        loops.coordinator.end()
        assert len(task.result(WAIT_S)) == 1
        worker.kept_sessions.take_all().pop(0).close()
        planner.close()
