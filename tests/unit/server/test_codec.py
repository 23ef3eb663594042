"""Messages coded on the event loop, and messages coded in the codec thread."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import TYPE_CHECKING, Any

import pytest

from klamm.configs.quotas import QuotaLimit
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ProtocolError, TooManyElementsError
from klamm.protocol.frames import read_request_header
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest
from klamm.server import codec
from klamm.server.codec import free, read_large_request, read_request, write, write_large
from klamm.server.quotas.throttles import Stopwatch
from klamm.server.route import Route
from klamm.server.time_slice import TimeSlice
from tests.support.wire import request_frame

if TYPE_CHECKING:
    from klamm.protocol.frames import RequestHeader

VERSION = 9


async def handle(_: object, __: object) -> None:
    return None


ROUTE = Route(api=Api(key=ApiKey.METADATA, min_version=0, max_version=12), request=MetadataRequest, handle=handle)


def request(topics: int) -> tuple[RequestHeader, memoryview]:
    names = [MetadataRequest.MetadataRequestTopic(name=f"t{number}") for number in range(topics)]
    frame = memoryview(request_frame(MetadataRequest(topics=names), VERSION))[4:]
    return read_request_header(frame), frame


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that decoded or encoded."""
    seen: list[str] = []

    def noting(original: Any) -> Any:
        def wrapped(*args: Any, **named: Any) -> Any:
            seen.append(threading.current_thread().name.partition("_")[0])
            return original(*args, **named)

        return wrapped

    for name in ("decode", "encode"):
        monkeypatch.setattr(codec, name, noting(getattr(codec, name)))
    return seen


def test_many_small_elements_are_decoded_in_the_codec_thread(threads: list[str]) -> None:
    header, frame = request(3000)
    decoded = asyncio.run(read_large_request(ROUTE, header, frame, None))
    assert (len(decoded.topics), threads) == (3000, ["klamm-codec"])


@pytest.mark.parametrize(("topics", "expected"), [(10, ["MainThread"]), (3000, ["MainThread", "klamm-codec"])])
def test_frame_of_record_data_is_decoded_at_once_unless_it_has_many_elements(
    threads: list[str], topics: int, expected: list[str]
) -> None:
    header, frame = request(topics)
    route = dataclasses.replace(ROUTE, is_mostly_data=True)
    decoded = asyncio.run(read_large_request(route, header, frame, None))
    assert (len(decoded.topics), threads) == (topics, expected)


def test_long_responses_are_encoded_in_the_codec_thread_and_their_time_is_counted(threads: list[str]) -> None:
    response, stopwatch = MetadataResponse(cluster_id="here"), Stopwatch(QuotaLimit(1.0, (None, None)))
    body = asyncio.run(write_large(response, VERSION, stopwatch))
    assert (body, threads) == (write(response, VERSION), ["klamm-codec", "MainThread"])
    assert stopwatch.seconds > 0


def test_request_with_too_many_elements_for_its_api_is_rejected() -> None:
    header, frame = request(100)
    with pytest.raises(TooManyElementsError):
        read_request(dataclasses.replace(ROUTE, most_elements=50), header, frame, max_elements=50)


def test_version_announced_only_for_old_clients_is_rejected() -> None:
    header, frame = request(1)
    with pytest.raises(ProtocolError, match="METADATA v9 is announced for old clients only"):
        read_request(dataclasses.replace(ROUTE, rejected_below=10), header, frame)


def test_frame_truncated_at_any_byte_is_a_protocol_error() -> None:
    header, frame = request(3)
    for end in range(header.end, len(frame)):
        with pytest.raises(ProtocolError):
            read_request(ROUTE, header, frame[:end])


def test_api_may_decode_its_own_frames() -> None:
    header, frame = request(1)
    route = dataclasses.replace(ROUTE, decode_raw=lambda version, content, position: (version, len(content), position))
    assert read_request(route, header, frame) == (VERSION, len(frame), header.end)


def test_long_array_of_a_message_is_freed_unless_shared() -> None:
    topics = [MetadataRequest.MetadataRequestTopic(name=f"t{number}") for number in range(1000)]
    kept, freed = MetadataRequest(topics=topics), MetadataRequest(topics=list(topics))
    asyncio.run(free((kept, None, freed), TimeSlice()))
    assert len(topics) == 1000
    assert kept.topics is topics
    assert freed.topics == []


def test_nested_long_array_is_freed() -> None:
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=list(range(1000)))
    message = OffsetFetchRequest(group_id="g", topics=[topic])
    asyncio.run(free((message,), TimeSlice()))
    assert message.topics is not None
    assert [each.partition_indexes for each in message.topics] == [[]]
