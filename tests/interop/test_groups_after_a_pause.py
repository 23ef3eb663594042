"""Heartbeats that wait in the sockets of a paused broker keep their members in the group."""

from __future__ import annotations

import itertools
import os
import signal
import time
from typing import TYPE_CHECKING

from klamm.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tests.support.klamm import KlammBroker
from tests.support.processes import wait_until
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

SESSION_MS = 3000
MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID = 79, 25


def join_request(member_id: str) -> JoinGroupRequest:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[protocol],
    )


def alone_in_a_group(client: WireClient, group: str) -> tuple[str, int]:
    join = join_request("")
    join.group_id = group
    first = client.ask(join, JoinGroupResponse, 5)
    assert first.error_code == MEMBER_ID_REQUIRED
    join.member_id = first.member_id
    joined = client.ask(join, JoinGroupResponse, 5)
    assignment = SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"")
    synced = SyncGroupRequest(
        group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, assignments=[assignment]
    )
    assert client.ask(synced, SyncGroupResponse, 3).error_code == 0
    return joined.member_id, joined.generation_id


def members_of(broker: KlammBroker, groups: list[str]) -> list[str]:
    with WireClient(broker.bootstrap_servers) as client:
        described = client.ask(DescribeGroupsRequest(groups=groups), DescribeGroupsResponse, 5)
    return [member.member_id for group in described.groups for member in group.members]


def connections(broker: KlammBroker, count: int) -> Iterator[WireClient]:
    return (WireClient(broker.bootstrap_servers, timeout_s=20) for _ in range(count))


def test_heartbeats_queued_in_sockets_keep_members_alive() -> None:
    settings = {"group.min.session.timeout.ms": "100", "group.initial.rebalance.delay.ms": "0"}
    with KlammBroker(settings) as broker:
        clients = list(connections(broker, 5))
        for attempt in itertools.count():  # until the broker is paused before the session of the first member ends
            groups = [f"g{attempt}-{index}" for index in range(len(clients))]
            began = time.monotonic()
            members = [alone_in_a_group(client, group) for client, group in zip(clients, groups, strict=True)]
            os.kill(broker.pid, signal.SIGSTOP)
            if time.monotonic() - began < SESSION_MS / 1000:
                break
            os.kill(broker.pid, signal.SIGCONT)
        frames = []
        try:
            for client, group, (member_id, generation) in zip(clients, groups, members, strict=True):
                beat = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id)
                frames.append((client, beat))
                client.send(beat, 3)
            time.sleep(1.5 * SESSION_MS / 1000)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert [client.receive(HeartbeatResponse, 3).error_code for client, _ in frames] == [0] * len(clients)
        # and whoever is silent still loses its place
        wait_until(
            lambda: not members_of(broker, [beat.group_id for _, beat in frames]), timeout_s=30, what="no members"
        )
        for client, beat in frames:
            assert client.ask(beat, HeartbeatResponse, 3).error_code == UNKNOWN_MEMBER_ID
            client.close()
