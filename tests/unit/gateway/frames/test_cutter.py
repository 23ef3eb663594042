"""The cutter of a byte stream: frames pass, are taken or stop the stream, however the stream is split."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.gateway.frames.cutter import NEED, PASS, STOP, TAKE, FrameCutter, HeldBudget
from klamm.gateway.frames.peer import Peer
from klamm.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from klamm.gateway.frames.cutter import Cut, Decide, Piece

KEPT = 0xEE
"""First byte of a frame that the judge below takes: it answers with the frame in reverse."""


class Connection:
    """Connection of a client, which the budget can close."""

    def __init__(self, budget: HeldBudget, host: str = "client", decide: Decide | None = None) -> None:
        self.peer = Peer(host=host, port=1, node_id=1)
        self.cutter = FrameCutter(judge if decide is None else decide, budget, self)
        self.is_closed = False

    def give_up(self) -> None:
        self.is_closed = True
        self.cutter.drop()


def cutter_of(decide: Decide) -> FrameCutter:
    return Connection(HeldBudget(), decide=decide).cutter


def frame(kind: int, size: int) -> bytes:
    return size.to_bytes(4) + bytes([kind]) + bytes(index % 251 for index in range(size - 1))


def judge(chunk: memoryview, position: int, available: int) -> Cut:
    if available < 5:
        return NEED, 5, ()
    total = 4 + int.from_bytes(chunk[position : position + 4])
    if chunk[position + 4] != KEPT:
        return PASS, total, ()
    if available < total:
        return NEED, total, ()
    return TAKE, total, (bytes(chunk[position : position + total])[::-1],)


def joined(pieces: list[Piece]) -> bytes:
    return b"".join(bytes(piece) for piece in pieces)


@given(
    frames=st.lists(st.tuples(st.sampled_from([1, 2, KEPT]), st.integers(1, 300)), max_size=12),
    cuts=st.lists(st.integers(1, 200), min_size=1, max_size=50),
)
def test_output_does_not_depend_on_how_the_stream_is_split(frames: list[tuple[int, int]], cuts: list[int]) -> None:
    stream = b"".join(frame(*each) for each in frames)
    expected = b"".join(frame(*each)[::-1] if each[0] == KEPT else frame(*each) for each in frames)
    cutter = cutter_of(judge)
    out: list[bytes] = []
    position, index = 0, 0
    while position < len(stream):
        size = cuts[index % len(cuts)]
        pieces: list[Piece] = []
        cutter.cut(memoryview(stream)[position : position + size], pieces)
        out.append(joined(pieces))  # at once: a relay reuses its buffer
        position, index = position + size, index + 1
    assert b"".join(out) == expected
    assert cutter.is_empty


def test_bytes_that_pass_are_not_copied() -> None:
    chunk = memoryview(frame(1, 100) + frame(2, 100))
    out: list[Piece] = []
    cutter_of(judge).cut(chunk, out)
    assert [memoryview(piece).obj is chunk.obj for piece in out] == [True]


def test_frames_before_rejected_frame_are_forwarded() -> None:
    def rejecting(chunk: memoryview, position: int, available: int) -> Cut:
        if chunk[position + 4] == 2:
            raise ProtocolError("no")
        return judge(chunk, position, available)

    out: list[Piece] = []
    with pytest.raises(ProtocolError):
        cutter_of(rejecting).cut(memoryview(frame(1, 10) + frame(2, 10)), out)
    assert joined(out) == frame(1, 10)


def test_stopped_stream_keeps_its_bytes_until_it_resumes() -> None:
    stopped = True

    def stopping(chunk: memoryview, position: int, available: int) -> Cut:
        return (STOP, 0, ()) if stopped else judge(chunk, position, available)

    cutter = cutter_of(stopping)
    out: list[Piece] = []
    cutter.cut(memoryview(frame(1, 10)), out)
    cutter.cut(memoryview(frame(KEPT, 10)), out)
    assert (out, cutter.is_stopped) == ([], True)
    stopped = False
    cutter.resume(out)
    assert joined(out) == frame(1, 10) + frame(KEPT, 10)[::-1]


@pytest.mark.parametrize(
    ("connections", "closed"),
    [
        ([("a", 700_000), ("a", 400_000)], [0]),
        ([("a", 700_000), ("b", 400_000)], [0]),
        ([("a", 400_000), *[("b", size) for size in (200_000, 250_000, 200_000, 200_000)]], [2]),
    ],
    ids=["one client", "two clients", "client with several"],
)
def test_largest_connection_of_largest_client_is_closed_above_the_budget(
    connections: list[tuple[str, int]], closed: list[int]
) -> None:
    # given
    budget = HeldBudget(900_000)
    clients = [Connection(budget, host) for host, _ in connections]
    # when
    for client, (_, size) in zip(clients, connections, strict=True):
        client.cutter.cut(unfinished(size), [])
    # then
    assert [number for number, client in enumerate(clients) if client.is_closed] == closed
    for client in clients:
        client.cutter.drop()
    assert budget.held_bytes == 0


def test_connection_that_itself_exceeds_the_budget_closes_no_other() -> None:
    # given
    budget = HeldBudget(1_000_000)
    small, large = Connection(budget, "a"), Connection(budget, "b")
    small.cutter.cut(unfinished(400_000), [])
    # when
    with pytest.raises(ProtocolError, match="exceed 1000000 bytes"):
        large.cutter.cut(unfinished(2_000_000), [])
    # then: the caller closes it
    assert (small.is_closed, large.is_closed) == (False, False)


def unfinished(size: int) -> memoryview:
    """Return so many bytes of a frame that is kept until it is complete."""
    return memoryview((10_000_000).to_bytes(4) + bytes([KEPT]) + bytes(size - 5))
