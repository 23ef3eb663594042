"""Sans-I/O framing: splits a byte stream into frames and reads request headers.

A frame is an int32 size followed by that many bytes. The size is checked before any byte of the frame is kept, and
memory grows as bytes arrive. A peer that only announces a large frame therefore costs nothing.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ProtocolError
from klamm.protocol.primitives import read_nullable_string, skip_tagged_fields

if TYPE_CHECKING:
    from klamm.protocol.schema import Message

_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhi")
DEFAULT_MAX_FRAME_BYTES = 104_857_600
"""Default of ``socket.request.max.bytes``."""
SCRATCH_BYTES = 256 * 1024
FIRST_ALLOCATION_BYTES = 1024 * 1024


class RequestHeader(NamedTuple):
    """Request header up to ``client_id``, which all header versions have in common."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    end: int
    """Position after ``client_id``. In a flexible request, the tagged fields of the header start here."""


def read_request_header(frame: bytes | bytearray | memoryview) -> RequestHeader:
    """Read a request header.

    Raises:
        ProtocolError: The bytes are not a request header.
    """
    view = memoryview(frame)
    try:
        api_key, api_version, correlation_id = _HEADER.unpack_from(view)
        client_id, end = read_nullable_string(view, _HEADER.size, len(view))
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"Invalid request header: {error}") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id, end)


def body_position(frame: memoryview, header: RequestHeader, *, flexible: bool) -> int:
    """Return the position of the first byte of the request body.

    Raises:
        ProtocolError: The tagged fields of the header do not fit the frame.
    """
    if not flexible:
        return header.end
    try:
        if not frame[header.end]:  # hardly any client sends a tagged field
            return header.end + 1
        return skip_tagged_fields(frame, header.end, len(frame))
    except IndexError as error:
        raise ProtocolError("Request header ends in its tagged fields") from error


def has_tagged_header(response: type[Message], api_version: int) -> bool:
    """Return whether the header of a response has tagged fields.

    That of ApiVersions never has, so that any client can read it (KIP-511).
    """
    return response.API_KEY != ApiKey.API_VERSIONS and response.is_flexible(api_version)


def response_header(correlation_id: int, body_bytes: int, *, flexible: bool) -> bytes:
    """Return the frame size and header of a response whose body has ``body_bytes`` bytes."""
    if flexible:
        return _SIZE.pack(body_bytes + 5) + _SIZE.pack(correlation_id) + b"\x00"
    return _SIZE.pack(body_bytes + 4) + _SIZE.pack(correlation_id)


class FrameReader:
    """Incremental parser that splits a stream of bytes into frames.

    There are two ways to pass bytes in. ``receive`` takes a chunk. ``direct_buffer`` and ``received_directly`` let a
    transport write straight into the unfinished frame, without a copy.
    """

    def __init__(self, *, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._size = bytearray()
        self._frame: bytearray | None = None
        self._frame_bytes = 0
        self._filled = 0
        self._kept = memoryview(b"")

    @property
    def is_between_frames(self) -> bool:
        """Return whether no byte of an unfinished frame has arrived."""
        return not self._size and self._frame is None and not self._kept

    @property
    def has_kept(self) -> bool:
        """Return whether ``receive`` stopped at ``max_frames`` and kept the remaining bytes."""
        return bool(self._kept)

    def receive(self, data: bytes | bytearray | memoryview = b"", *, max_frames: int | None = None) -> list[bytearray]:
        """Add bytes of the stream and return the frames that are now complete.

        Args:
            data: The next bytes. May be empty, to continue with the bytes kept by an earlier call.
            max_frames: Limit for the number of returned frames. Bytes after them are kept for the next call. None means
                no limit.

        Raises:
            ProtocolError: A frame size is negative or above ``max_frame_bytes``. The caller closes the connection.
        """
        is_ours = not data
        view = memoryview(data)
        if self._kept:
            view = memoryview(bytes(self._kept) + view) if data else self._kept
            self._kept, is_ours = memoryview(b""), True
        frames: list[bytearray] = []
        position = 0
        while position < len(view):
            if max_frames is not None and len(frames) >= max_frames:
                self._kept = view[position:] if is_ours else memoryview(bytes(view[position:]))
                break
            if self._frame is None:
                if not self._size and (end := self._end_of_frame(view, position)):
                    frames.append(bytearray(view[position + _SIZE.size : end]))
                    position = end
                    continue
                position = self._take_size(view, position)
                if self._frame is None:
                    break
            taken = min(len(view) - position, self._frame_bytes - self._filled)
            self._make_room(taken)
            self._frame[self._filled : self._filled + taken] = view[position : position + taken]
            self._filled += taken
            position += taken
            if self._filled == self._frame_bytes:
                frames.append(self._finish())
        return frames

    def direct_buffer(self) -> memoryview | None:
        """Return the free part of the unfinished frame, or None if too little is missing to be worth it."""
        if self._frame is None or self._frame_bytes - self._filled < SCRATCH_BYTES // 4:
            return None
        if self._filled == len(self._frame):
            self._make_room(1)
        return memoryview(self._frame)[self._filled :]

    def received_directly(self, count: int) -> list[bytearray]:
        """Account for ``count`` bytes that were written into ``direct_buffer``."""
        self._filled += count
        return [self._finish()] if self._filled == self._frame_bytes else []

    def _end_of_frame(self, view: memoryview, position: int) -> int:
        """Return the end of the frame that begins at ``position``.

        Returns 0 if a part of it has not arrived, or if its size is not allowed: ``_take_size`` then raises the error.
        """
        if len(view) - position < _SIZE.size:
            return 0
        (size,) = _SIZE.unpack_from(view, position)
        end: int = position + _SIZE.size + size
        return end if 0 < size <= self.max_frame_bytes and end <= len(view) else 0

    def _take_size(self, view: memoryview, position: int) -> int:
        taken = view[position : position + 4 - len(self._size)]
        self._size += taken
        if len(self._size) == _SIZE.size:
            (size,) = _SIZE.unpack(self._size)
            if not 0 <= size <= self.max_frame_bytes:
                raise ProtocolError(f"Frame of {size} bytes is outside 0..{self.max_frame_bytes}")
            self._size.clear()
            self._frame_bytes, self._filled = size, 0
            self._frame = bytearray(min(size, FIRST_ALLOCATION_BYTES))
            if size == 0:
                raise ProtocolError("Frame of 0 bytes cannot hold a request")
        return position + len(taken)

    def _make_room(self, count: int) -> None:
        if self._frame is not None and self._filled + count > len(self._frame):
            wanted = min(self._frame_bytes, max(2 * len(self._frame), self._filled + count))
            self._frame.extend(bytes(wanted - len(self._frame)))

    def _finish(self) -> bytearray:
        frame, self._frame = self._frame, None
        if frame is None:
            raise RuntimeError("No frame is being filled")
        return frame
