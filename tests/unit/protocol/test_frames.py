"""Frames and request headers, without a socket."""

from __future__ import annotations

import itertools
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.protocol.errors import ProtocolError
from klamm.protocol.frames import FrameReader, body_position, read_request_header, response_header

payloads = st.lists(st.binary(min_size=1, max_size=64), max_size=8)


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


@given(bodies=payloads, cuts=st.lists(st.integers(min_value=0, max_value=600), max_size=12))
def test_any_split_of_the_stream_gives_the_same_frames(bodies: list[bytes], cuts: list[int]) -> None:
    stream = framed(*bodies)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reader = FrameReader()
    frames = [bytes(frame) for start, end in itertools.pairwise(edges) for frame in reader.receive(stream[start:end])]
    assert frames == bodies
    assert reader.is_between_frames


@given(
    bodies=payloads,
    cuts=st.lists(st.integers(min_value=0, max_value=600), max_size=12),
    most=st.lists(st.integers(min_value=0, max_value=3), max_size=40),
)
def test_frames_received_in_parts_are_unchanged(bodies: list[bytes], cuts: list[int], most: list[int]) -> None:
    stream = framed(*bodies)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reader, frames, limits = FrameReader(), [], iter(most)
    for start, end in itertools.pairwise(edges):
        limit = next(limits, None)
        taken = reader.receive(stream[start:end], max_frames=limit)
        assert limit is None or len(taken) <= limit
        frames += taken
    while reader.has_kept:
        assert not reader.is_between_frames
        frames += reader.receive(max_frames=1)
    assert [bytes(frame) for frame in frames] == bodies
    assert reader.is_between_frames


@given(size=st.integers(min_value=70_000, max_value=3_000_000), chunk=st.integers(min_value=1_000, max_value=300_000))
def test_large_frame_received_in_place_is_unchanged(size: int, chunk: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    reader = FrameReader()
    frames = reader.receive(struct.pack(">i", size) + body[:1])
    position = 1
    while position < size:
        room = reader.direct_buffer()
        if room is None:
            frames += reader.receive(body[position:])
            break
        taken = min(len(room), chunk, size - position)
        room[:taken] = body[position : position + taken]
        room.release()
        position += taken
        frames += reader.received_directly(taken)
    assert [bytes(frame) for frame in frames] == [body]


@pytest.mark.parametrize("size", [-1, -(2**31), 1025, 2**31 - 1])
def test_frame_size_outside_the_limit_is_rejected(size: int) -> None:
    with pytest.raises(ProtocolError, match=r"outside 0\.\.1024"):
        FrameReader(max_frame_bytes=1024).receive(struct.pack(">i", size))


def test_announced_frame_allocates_no_memory_before_its_bytes_arrive() -> None:
    tracemalloc.start()
    reader = FrameReader()
    reader.receive(struct.pack(">i", 100_000_000) + b"x")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not reader.is_between_frames
    assert peak < 2_000_000


def test_request_header_is_decoded() -> None:
    frame = struct.pack(">hhih", 44, 1, 7, 4) + b"app1" + b"\x00" + b"body"
    header = read_request_header(frame)
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (44, 1, 7, "app1")
    assert frame[body_position(memoryview(frame), header, flexible=True) :] == b"body"


def test_null_client_id_is_none() -> None:
    assert read_request_header(struct.pack(">hhih", 18, 0, 1, -1)).client_id is None


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        struct.pack(">hhi", 18, 0, 1),
        struct.pack(">hhih", 18, 0, 1, 5) + b"abc",
        struct.pack(">hhih", 18, 0, 1, -2),
        struct.pack(">hhih", 18, 0, 1, 1) + b"\xff",
    ],
    ids=["nothing", "no client id", "client id cut", "negative length", "not UTF-8"],
)
def test_malformed_request_header_is_rejected(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_request_header(frame)


def test_tagged_fields_beyond_the_frame_are_rejected() -> None:
    frame = struct.pack(">hhih", 18, 3, 1, -1) + b"\x01\x00\x7f"
    with pytest.raises(ProtocolError):
        body_position(memoryview(frame), read_request_header(frame), flexible=True)


def test_response_size_includes_the_header() -> None:
    assert response_header(7, 10, flexible=False) == struct.pack(">ii", 14, 7)
    assert response_header(7, 10, flexible=True) == struct.pack(">iib", 15, 7, 0)
