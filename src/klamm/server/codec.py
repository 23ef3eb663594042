"""Decoding of requests and encoding of responses.

Short messages are coded on the event loop. Long ones are coded in a separate thread, so other connections are served
meanwhile.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from sys import getrefcount
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from klamm.protocol.codec import decode, encode, granted_elements
from klamm.protocol.errors import ProtocolError, TooManyElementsError
from klamm.protocol.frames import RequestHeader, body_position
from klamm.protocol.schema import Message, Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from klamm.server.quotas.throttles import Stopwatch
    from klamm.server.route import Piece, RawResponse, Route
    from klamm.server.time_slice import TimeSlice

_CODEC: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="klamm-codec")
"""Thread that codes long messages. A single one for the whole process: each further thread would compete with the event
loop for the interpreter lock.
"""
LARGE_FRAME_BYTES: Final = 32 * 1024
"""Frame size in bytes from which decoding may take milliseconds."""
ELEMENTS_AT_ONCE: Final = 1000
"""Number of elements that may be decoded on the event loop when the rest of a large frame is record data."""
LONG_PAUSES: Final = 2
"""Number of pauses of a handler from which its response counts as long and is encoded in the thread."""

_LONG_ARRAY: Final = 1000
"""Number of elements from which an array is freed in time slices."""
_ONLY_HERE: Final = 3
"""Number of references to an array of a message that nothing else holds: the message, a variable and an argument."""

Body: TypeAlias = "Sequence[Piece]"
Coded = TypeVar("Coded")


def read_request(route: Route, header: RequestHeader, frame: memoryview, *, max_elements: int | None = None) -> Any:
    """Decode a request on the event loop.

    Args:
        route: Route of the API.
        header: Header of the request.
        frame: Whole frame.
        max_elements: Maximum number of elements to decode. None derives the limit from the size of the frame.

    Raises:
        ProtocolError: The frame is malformed, or its version is announced by ApiVersions but not served.
    """
    version = header.api_version
    if version < route.rejected_below:
        raise ProtocolError(f"{route.api.key.name} v{version} is announced for old clients only and not served")
    if route.decode_raw is not None:
        return route.decode_raw(version, frame, header.end)
    position = body_position(frame, header, flexible=route.request.is_flexible(version))
    if max_elements is None:
        max_elements = granted_elements(len(frame), route.most_elements)
    return decode(route.request, version, frame, position, max_elements=max_elements)


async def read_large_request(
    route: Route, header: RequestHeader, frame: memoryview, stopwatch: Stopwatch | None
) -> Any:
    """Decode a request of ``LARGE_FRAME_BYTES`` or more; in the codec thread when it has many small elements.

    Raises:
        ProtocolError: As in ``read_request``.
    """
    if route.is_mostly_data:
        try:
            return read_request(route, header, frame, max_elements=ELEMENTS_AT_ONCE)
        except TooManyElementsError:
            pass  # the frame has many small elements after all
    return await _in_thread(partial(read_request, route, header, frame), stopwatch)


def write(response: Message | RawResponse, version: int) -> Body:
    """Encode a response on the event loop."""
    return [encode(response, version)] if isinstance(response, Message) else response.buffers(version)


async def write_large(response: Message | RawResponse, version: int, stopwatch: Stopwatch | None) -> Body:
    """Encode a response in the codec thread. For handlers that paused at least ``LONG_PAUSES`` times."""
    body: Body = await _in_thread(partial(write, response, version), stopwatch)
    return body


async def coded(work: Callable[[], Coded], size: int) -> Coded:
    """Decode or encode a message: on the event loop if it is short, else in the codec thread.

    Args:
        work: Function that does it. It must not use objects that the event loop changes meanwhile.
        size: Size of the message in bytes; of one about as long if it is unknown.
    """
    if size < LARGE_FRAME_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_CODEC, work)


async def free(messages: Iterable[Message | RawResponse | None], time_slice: TimeSlice) -> None:
    """Free the long arrays of messages in time slices. Arrays that are still in use elsewhere stay as they are."""
    for message in messages:
        if isinstance(message, Message):
            await _free_arrays(message, time_slice)


async def _free_arrays(struct: Struct, time_slice: TimeSlice) -> None:
    for field in struct.FIELDS:
        items = getattr(struct, field.name)
        if not isinstance(items, list):
            continue
        if len(items) < _LONG_ARRAY:
            for item in items:
                if isinstance(item, Struct):
                    await _free_arrays(item, time_slice)
        elif getrefcount(items) == _ONLY_HERE:
            await time_slice.free(items)


async def _in_thread(work: partial[Any], stopwatch: Stopwatch | None) -> Any:
    measured = work if stopwatch is None else partial(stopwatch.call, work)
    return await asyncio.get_running_loop().run_in_executor(_CODEC, measured)
