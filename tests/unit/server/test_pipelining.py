"""A connection with many pipelined requests does not delay other connections."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import pytest

from klamm.protocol.messages.metadata import MetadataRequest
from klamm.server import time_slice as module
from klamm.server.time_slice import ROUND_S, SLICE_S, Turns
from tests.support.held_loop import HeldLoop, a_held_broker
from tests.support.wire import request_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

PIPELINED: Final = 5_000
MAX_HELD_S: Final = 0.03
"""Of processor time, in one callback of the event loop. A turn is 5 ms, and a read is cut into frames besides."""
API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 7, -1)
METADATA: Final = request_frame(MetadataRequest(topics=[], allow_auto_topic_creation=False), 1, client_id="")


@pytest.fixture(scope="module")
def held_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldLoop]:
    with a_held_broker(tmp_path_factory.mktemp("held") / "data") as broker:
        yield broker


def read_answers(peer: socket.socket, count: int) -> list[int]:
    """Return the correlation ids of so many answers."""
    ids = []
    with peer.makefile("rb") as stream:
        for _ in range(count):
            size, correlation_id = struct.unpack(">ii", stream.read(8))
            ids.append(correlation_id)
            assert len(stream.read(size - 4)) == size - 4
    return ids


def connect(held_broker: HeldLoop) -> socket.socket:
    host, _, port = held_broker.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


@pytest.mark.parametrize("frame", [API_VERSIONS, METADATA], ids=["ApiVersions", "Metadata"])
def test_thousands_of_pipelined_requests_do_not_block_the_event_loop(held_broker: HeldLoop, frame: bytes) -> None:
    def read_all() -> None:
        with connect(held_broker) as peer:
            sender = threading.Thread(target=peer.sendall, args=(frame * PIPELINED,))
            sender.start()
            assert len(read_answers(peer, PIPELINED)) == PIPELINED
            sender.join()

    assert held_broker.longest_s_of(read_all, limit_s=MAX_HELD_S) < MAX_HELD_S


def test_pipelined_requests_are_answered_in_order_however_they_are_cut(held_broker: HeldLoop) -> None:
    count = 1_000
    stream = b"".join(struct.pack(">ihhih", 10, 18, 0, number, -1) for number in range(count))

    def send() -> None:
        for start in range(0, len(stream), 97):
            peer.sendall(stream[start : start + 97])

    with connect(held_broker) as peer:
        sender = threading.Thread(target=send)
        sender.start()
        assert read_answers(peer, count) == list(range(count))
        sender.join()


async def test_turns_become_shorter_with_more_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a round over all of them stays some 20 ms."""
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    turns, lengths = Turns(), []

    async def take_turns() -> None:
        lengths.append(await turns.next())

    lengths.append(turns.ends_at())
    await asyncio.gather(*(take_turns() for _ in range(50)))

    assert lengths[0] == SLICE_S
    assert min(lengths) < 2 * ROUND_S / 50
