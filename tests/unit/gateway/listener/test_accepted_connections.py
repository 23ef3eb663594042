"""Accepted connections whose handshake does not end: they make room for those that are served."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.gateway.frames.peer import Peer
from klamm.gateway.listener import accepted_connections as module
from klamm.gateway.listener.accepted_connections import AcceptedConnections
from klamm.kafka_client.connection.transport import PlainTransport
from tests.support.relay_rig import request, response, shared_objects, until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.gateway.relay.relay import Relay


class SlowEntrance:
    """ClientHandshake that admits only the clients of one host."""

    async def admit(self, _accepted: socket.socket, peer: Peer) -> Any:
        if peer.host == "silent":
            await asyncio.Event().wait()
        if peer.host == "late":
            raise TimeoutError
        raise OSError("admitted")


@pytest.mark.parametrize("limit", [{"_CROWDED_FROM": 3, "_LATE_S": -1.0}, {"_CROWDED_FROM": 1, "_MAX_OPENING": 3}])
async def test_unfinished_handshakes_block_no_other_client(
    monkeypatch: pytest.MonkeyPatch, limit: Mapping[str, float]
) -> None:
    for name, value in limit.items():
        monkeypatch.setattr(module, name, value)

    shared = shared_objects()
    arrivals = AcceptedConnections(shared, cast("Any", None), cast("Any", SlowEntrance()))
    silent = [socket.socketpair() for _ in range(4)]
    for number, (near, _) in enumerate(silent):
        near.setblocking(False)
        arrivals.add(near, Peer(host="silent", port=number, node_id=0))
    await until(lambda: silent[0][0].fileno() == -1)
    assert [near.fileno() == -1 for near, _ in silent] == [True, False, False, False]
    served, far = socket.socketpair()
    arrivals.add(served, Peer(host="prompt", port=1, node_id=0))
    await until(lambda: served.fileno() == -1)
    assert dict(shared.figures.closed) == {"crowded": 2, "handshake": 1}
    await until(lambda: arrivals.count == 2)
    arrivals.close()
    await until(lambda: all(near.fileno() == -1 for near, _ in silent))
    for each in (far, *(end for _, end in silent)):
        each.close()


async def test_simultaneous_clients_are_all_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restart of the gateway."""
    monkeypatch.setattr(module, "_CROWDED_FROM", 2)

    shared = shared_objects()
    arrivals = AcceptedConnections(shared, cast("Any", None), cast("Any", SlowEntrance()))
    pairs = [socket.socketpair() for _ in range(20)]
    for number, (near, _) in enumerate(pairs):
        arrivals.add(near, Peer(host="prompt", port=number, node_id=0))
    await until(lambda: all(near.fileno() == -1 for near, _ in pairs))
    assert dict(shared.figures.closed) == {"handshake": len(pairs)}, "each has reached its handshake"
    for _, far in pairs:
        far.close()


async def test_handshake_that_takes_too_long_has_a_reason_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    arrivals = AcceptedConnections(shared_objects(), cast("Any", None), cast("Any", SlowEntrance()))
    near, far = socket.socketpair()
    with far:
        arrivals.add(near, Peer(host="late", port=1, node_id=0))
        await until(lambda: near.fileno() == -1)
    assert "Connection of late:1 closed: no handshake: TimeoutError" in caplog.messages


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        return near, listener.accept()[0]


@pytest.mark.parametrize(("sent", "upstream_connections"), [(b"", 0), (b"\0", 1)])
async def test_upstream_connection_is_opened_once_the_client_has_sent_a_byte(
    sent: bytes, upstream_connections: int
) -> None:
    # given
    nodes: list[int] = []

    class Entrance:
        async def admit(self, accepted: socket.socket, _peer: Peer) -> Any:
            return PlainTransport(accepted)

    class Upstream:
        async def connect(self, node_id: int, *, any_other: bool) -> Any:
            nodes.append(node_id)
            raise ConnectionRefusedError

    arrivals = AcceptedConnections(shared_objects(), cast("Any", Upstream()), cast("Any", Entrance()))
    near, client = connected()
    # when: a health check closes its connection
    arrivals.add(near, Peer(host="client", port=1, node_id=0))
    client.sendall(sent)
    client.close()
    await until(lambda: arrivals.count == 0)
    # then
    assert len(nodes) == upstream_connections


@pytest.mark.parametrize(
    ("limit", "needs_login", "reason"), [("STUCK_S", False, "waiting"), ("ENDED_S", True, "login")]
)
async def test_silent_client_is_disconnected(
    limit: str, needs_login: bool, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Entrance:
        async def admit(self, accepted: socket.socket, _peer: Peer) -> Any:
            return PlainTransport(accepted)

    monkeypatch.setattr(module, limit, 0.0)
    shared = shared_objects(needs_login=needs_login)
    arrivals = AcceptedConnections(shared, cast("Any", None), cast("Any", Entrance()))
    near, client = connected()
    with client:
        arrivals.add(near, Peer(host="client", port=1, node_id=0))
        await until(lambda: near.fileno() == -1)
    assert "Connection of client:1 closed: it has sent nothing" in caplog.messages
    assert shared.figures.closed[reason] == 1


async def test_connection_to_another_broker_ends_when_its_own_one_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN_S", 0.01)
    answers = iter([False, False, True])

    class Entrance:
        async def admit(self, accepted: socket.socket, _peer: Peer) -> Any:
            return PlainTransport(accepted.dup())

    class Upstream:
        async def connect(self, node_id: int, *, any_other: bool) -> Any:
            assert any_other
            return PlainTransport(upstream), None, node_id == 0

        async def is_back(self, node_id: int) -> bool:
            assert node_id == 0
            return next(answers)

    shared = shared_objects()
    arrivals = AcceptedConnections(shared, cast("Any", Upstream()), cast("Any", Entrance()))
    pairs = [(connected(), connected()) for _ in range(2)]
    for node_id, ((near, client), (upstream, broker)) in enumerate(pairs):
        upstream.setblocking(False)
        arrivals.add(near, Peer(host="prompt", port=1, node_id=node_id, is_bootstrap=True))
        client.sendall(request(12, 0))
        broker.setblocking(False)
        await asyncio.get_running_loop().sock_recv(broker, 100)
        broker.sendall(response(1))
        await until(lambda: all(cast("Relay", relay).is_idle for relay in shared.connections))
    relays = {relay.peer.node_id: cast("Relay", relay) for relay in shared.connections}
    await until(lambda: relays[0].is_closed)
    assert next(answers, None) is None
    assert not relays[1].is_closed
    relays[1].drain()
    arrivals.close()
    for pair in pairs:
        for side in pair:
            for each in side:
                each.close()
