"""The cutter of a byte stream: frames pass, are taken or stop the stream, however the stream is split."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.gateway.frames.cutter import NEED, PASS, STOP, TAKE, FrameCutter, HeldBudget
from klamm.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from klamm.gateway.frames.cutter import Cut, Piece

KEPT = 0xEE
"""First byte of a frame that the judge below takes: it answers with the frame in reverse."""


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
    cutter = FrameCutter(judge, HeldBudget())
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
    FrameCutter(judge, HeldBudget()).cut(chunk, out)
    assert [memoryview(piece).obj is chunk.obj for piece in out] == [True]


def test_frames_before_rejected_frame_are_forwarded() -> None:
    def rejecting(chunk: memoryview, position: int, available: int) -> Cut:
        if chunk[position + 4] == 2:
            raise ProtocolError("no")
        return judge(chunk, position, available)

    out: list[Piece] = []
    with pytest.raises(ProtocolError):
        FrameCutter(rejecting, HeldBudget()).cut(memoryview(frame(1, 10) + frame(2, 10)), out)
    assert joined(out) == frame(1, 10)


def test_stopped_stream_keeps_its_bytes_until_it_resumes() -> None:
    stopped = True

    def stopping(chunk: memoryview, position: int, available: int) -> Cut:
        return (STOP, 0, ()) if stopped else judge(chunk, position, available)

    cutter = FrameCutter(stopping, HeldBudget())
    out: list[Piece] = []
    cutter.cut(memoryview(frame(1, 10)), out)
    cutter.cut(memoryview(frame(KEPT, 10)), out)
    assert (out, cutter.is_stopped) == ([], True)
    stopped = False
    cutter.resume(out)
    assert joined(out) == frame(1, 10) + frame(KEPT, 10)[::-1]


def test_oldest_partial_frame_is_dropped_above_the_budget() -> None:
    budget = HeldBudget(1_000_000)
    given_up: list[int] = []
    cutters = [FrameCutter(judge, budget, on_given_up=partial(given_up.append, number)) for number in range(4)]
    unfinished = memoryview((10_000_000).to_bytes(4) + bytes([KEPT]) + bytes(500_000))
    for cutter in cutters[:3]:
        cutter.cut(unfinished, [])
    assert given_up == [0]
    with pytest.raises(ProtocolError, match="exceed 1000000 bytes"):
        cutters[3].cut(memoryview((10_000_000).to_bytes(4) + bytes([KEPT]) + bytes(2_000_000)), [])
    assert given_up == [0, 1, 2]
    for cutter in cutters:
        cutter.drop()
    assert budget.held_bytes == 0
