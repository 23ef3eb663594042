"""Connections that are passed to worker processes over a Unix socket, with the facts about the client."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from pathlib import Path

import pytest

from klamm.gateway.frames.peer import Peer
from klamm.gateway.processes import control
from klamm.gateway.processes.passed_connections import PassedConnections
from klamm.gateway.processes.worker_pool import Worker, WorkerPool
from klamm.gateway.upstream.topology import Topology
from klamm.server.listeners import Address
from klamm.server.sockets import bind, bound_address, start_listening
from tests.support.by_thread import replace_for_this_thread
from tests.support.relay_rig import until


async def test_worker_serves_passed_connections_until_parent_ends() -> None:
    # given
    parent, end = control.channel()
    passed, topology = PassedConnections(end), Topology(Path("unused"))
    peers: list[Peer] = []

    def accept(sock: socket.socket, peer: Peer) -> None:
        sock.close()
        peers.append(peer)

    stopped = asyncio.Event()
    passed.attach(topology, accept)
    passed.on_stop = stopped.set
    passed.open(frozenset())
    # when: the second connection comes without its socket
    control.send(parent, {"base": ["gateway", 19092, 9092]})
    for has_socket in (True, False, True):
        with socket.socket() as sock:
            control.send(parent, {"open": ["10.0.0.1", 5000, 3, False]}, sock.fileno() if has_socket else None)
    parent.close()
    await stopped.wait()
    end.close()
    # then
    assert peers == [Peer(host="10.0.0.1", port=5000, node_id=3, is_bootstrap=False)] * 2
    assert (topology.base, topology.listen_port, passed.received) == (Address(host="gateway", port=19092), 9092, 3)


def test_unready_worker_gets_connections_only_if_all_are_unready() -> None:
    pool = WorkerPool(2, [], 1.0)
    idle, busy = pool.workers
    idle.end, end_of_idle = control.channel()
    busy.end, end_of_busy = control.channel()
    idle.is_up = busy.is_up = True
    busy.connections = 5
    passed = []
    for states in ((None, None), ("it reads the client configs", None), ("it reads the client configs", "it, too")):
        idle.why_not_ready, busy.why_not_ready = states
        pool.deal(socket.socket(), Peer(host="10.0.0.1", port=5000, node_id=3, is_bootstrap=False))
        passed.append((idle.passed, busy.passed))
    for end in (idle.end, busy.end, end_of_idle, end_of_busy):
        end.close()
    assert passed == [(1, 0), (1, 1), (2, 1)]


def test_worker_without_recent_report_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    replace_for_this_thread(monkeypatch, time, "monotonic", lambda: now)
    pool = WorkerPool(2, [], 1.0)
    ends = [control.channel(), control.channel()]
    report = {"connections": 0, "received": 0, "why_not_ready": None}
    with ends[0][0], ends[0][1], ends[1][0], ends[1][1]:
        for worker, (ours, theirs) in zip(pool.workers, ends, strict=True):
            worker.end, worker.is_up = ours, True
            control.send(theirs, report)
            worker.receive(ours)
        assert pool.why_not_ready() is None
        # when: the second one reports again after half a minute
        now += 30
        control.send(ends[1][1], report)
        pool.workers[1].receive(ends[1][0])
        # then
        assert pool.why_not_ready() == "a worker process does not respond"
        for _ in range(3):
            pool.deal(socket.socket(), Peer(host="10.0.0.1", port=5000, node_id=3, is_bootstrap=False))
        assert [worker.passed for worker in pool.workers] == [0, 3]
        # when
        control.send(ends[0][1], report)
        pool.workers[0].receive(ends[0][0])
        # then
        assert pool.why_not_ready() is None


def test_channel_to_process_that_does_not_read_becomes_full() -> None:
    parent, end = control.channel()
    with parent, end:
        count = 0
        while control.send(parent, {"page": "x" * 10_000}):
            count += 1
        assert count
        assert control.receive(end) == ({"page": "x" * 10_000}, None)


async def test_text_longer_than_the_channel_arrives_whole() -> None:
    parent, end = control.channel()
    passed, text = PassedConnections(end), "0123456789" * 100_000 + "\N{GRINNING FACE}" * 50_000
    worker = Worker(0, [], lambda *_: None)

    with parent, end:
        sending = asyncio.create_task(passed.send_long("page", text))
        await asyncio.sleep(0)
        assert not sending.done()
        while not sending.done() or not worker.page:
            match control.receive(parent) if readable(parent) else (None, None):
                case ({"part": [kind, part], "is_first": is_first, "is_last": is_last}, None):
                    worker.take_part(kind, part, is_first=is_first, is_last=is_last)
            await asyncio.sleep(0)
    assert worker.page == text


def readable(end: socket.socket) -> bool:
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(0))


async def test_text_to_an_ended_parent_is_dropped() -> None:
    parent, end = control.channel()
    passed = PassedConnections(end)

    with end:
        sending = asyncio.create_task(passed.send_long("status", "x" * 2_000_000))
        await asyncio.sleep(0)
        parent.close()
        await sending


def test_partial_text_is_not_joined_with_the_next() -> None:
    worker = Worker(0, [], lambda *_: None)
    worker.take_part("page", "half", is_first=True, is_last=False)
    worker.take_part("page", "whole", is_first=True, is_last=True)
    assert worker.page == "whole"


def test_two_gateways_share_their_ports_only_if_both_do() -> None:
    with bind(Address(host="127.0.0.1", port=0), shared=True) as first:
        start_listening(first)
        with bind(bound_address(first), shared=True) as other:
            start_listening(other)
        with pytest.raises(OSError, match="cannot listen on"):
            start_listening(bind(bound_address(first)))


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_connections_wait_for_a_worker_with_room(monkeypatch: pytest.MonkeyPatch, *, is_stopped: bool) -> None:
    """When all clients come at once, after a restart of the gateway, the socket to a worker is full for a while."""
    can_take, taken = False, []

    def send(_worker: Worker, message: control.Message, descriptor: int | None = None) -> bool:
        if can_take and descriptor is not None:
            taken.append(message["open"][1])
        return can_take

    monkeypatch.setattr(Worker, "send", send)
    monkeypatch.setattr("klamm.gateway.processes.worker_pool._MAX_WAITING", 3)

    pool = WorkerPool(1, [], 1.0)
    pool.workers[0].is_up = True
    accepted = [socket.socket() for _ in range(4)]
    for number, sock in enumerate(accepted):
        pool.deal(sock, Peer(host="10.0.0.1", port=number, node_id=3, is_bootstrap=False))
    assert [sock.fileno() == -1 for sock in accepted] == [True, False, False, False], "the oldest is one too many"
    if is_stopped:
        await pool.stop()
    can_take = True
    await until(lambda: all(sock.fileno() == -1 for sock in accepted))
    assert taken == ([] if is_stopped else [1, 2, 3])


async def test_connections_do_not_wait_for_workers_that_have_ended() -> None:
    accepted = socket.socket()
    WorkerPool(1, [], 1.0).deal(accepted, Peer(host="10.0.0.1", port=5000, node_id=3, is_bootstrap=False))
    assert accepted.fileno() == -1
