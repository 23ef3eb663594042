"""Request and response frames as the relay needs them: the fixed part of a header, and frames made from messages."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.protocol.api import ApiKey
from klamm.protocol.codec import decode, encode, granted_elements
from klamm.protocol.errors import ErrorCode, ProtocolError
from klamm.protocol.frames import response_header
from klamm.protocol.primitives import read_uvarint, skip_tagged_fields

if TYPE_CHECKING:
    from klamm.protocol.schema import Message

REQUEST_HEAD: Final = struct.Struct(">ihhih")
"""Size, API key, API version, correlation id and length of the client id."""
RESPONSE_HEAD: Final = struct.Struct(">ii")
"""Size and correlation id."""
SIZE_BYTES: Final = 4
INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")
_MOST_ID_BYTES: Final = 32_767
_JOIN_GROUP_FLEXIBLE_SINCE: Final = 6
_PRODUCE_FLEXIBLE_SINCE: Final = 9
_TRANSACTIONAL_ID_SINCE: Final = 3
_PLAIN_PRODUCE: Final = bytes(2)
"""No tagged fields in the header, and no transactional id: the beginning of most Produce requests."""


class RequestHead(NamedTuple):
    """Header of a request at some position of a chunk."""

    size: int
    """Size of the frame without the size itself."""
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def end_of_client_id(id_length: int) -> int:
    """Return the position after the client id, counted from the size of the frame.

    Raises:
        ProtocolError: The length is below -1.
    """
    if id_length < -1:
        raise ProtocolError(f"Request header has a client id of {id_length} bytes")
    return REQUEST_HEAD.size + max(id_length, 0)


def acks_of(view: memoryview, api_version: int, body: int) -> tuple[int, int]:
    """Return ``acks`` of a Produce request, and the position after it.

    Args:
        view: Bytes of the frame, size included.
        api_version: Version of the request.
        body: Position after the client id.

    Raises:
        IndexError: The view ends before ``acks``.
        struct.error: The view ends before ``acks``.
        ProtocolError: The request is malformed.
    """
    if api_version >= _PRODUCE_FLEXIBLE_SINCE and view[body : body + 2] == _PLAIN_PRODUCE:
        body += len(_PLAIN_PRODUCE)
    elif api_version >= _PRODUCE_FLEXIBLE_SINCE:
        body = skip_tagged_fields(view, body, len(view))
        length, body = read_uvarint(view, body)
        body += max(length - 1, 0)
    elif api_version >= _TRANSACTIONAL_ID_SINCE:
        (length,) = _INT16.unpack_from(view, body)
        body += _INT16.size + max(length, 0)
    acks: int = _INT16.unpack_from(view, body)[0]
    return acks, body + _INT16.size


def put_acks(view: memoryview, end: int, acks: int) -> None:
    """Replace ``acks`` in a Produce request, given the position after it."""
    _INT16.pack_into(view, end - _INT16.size, acks)


def session_timeout_at(view: memoryview, api_version: int, body: int) -> int:
    """Return the position of ``session_timeout_ms``, an int32, in a JoinGroup request.

    Args:
        view: Bytes of the frame, size included.
        api_version: Version of the request.
        body: Position after the client id.

    Raises:
        IndexError: The view ends before it.
        struct.error: The view ends before it.
        ProtocolError: The request is malformed.
    """
    if api_version >= _JOIN_GROUP_FLEXIBLE_SINCE:
        return _after_compact_string(view, skip_tagged_fields(view, body, len(view)))
    length: int = _INT16.unpack_from(view, body)[0]
    return body + _INT16.size + max(length, 0)


def heartbeat_interval_at(view: memoryview) -> int | None:
    """Return the position of ``heartbeat_interval_ms``, an int32, in a ConsumerGroupHeartbeat response.

    Args:
        view: Bytes of the frame, size included.

    Returns:
        The position; None if the response is an error.

    Raises:
        IndexError: The view ends before it.
        struct.error: The view ends before it.
        ProtocolError: The response is malformed.
    """
    position = skip_tagged_fields(view, RESPONSE_HEAD.size, len(view)) + INT32.size  # throttle_time_ms
    if _INT16.unpack_from(view, position)[0] != ErrorCode.NONE:
        return None
    position = _after_compact_string(view, position + _INT16.size)  # error_message
    return _after_compact_string(view, position) + INT32.size  # member_id and member_epoch


def _after_compact_string(view: memoryview, position: int) -> int:
    length, position = read_uvarint(view, position)
    return position + max(length - 1, 0)


def decode_request(
    request_class: type[Message],
    head: RequestHead,
    frame: memoryview,
    body: int,
    *,
    max_elements: int | None = None,
    is_whole: bool = False,
) -> Any:
    """Decode a request.

    Args:
        request_class: Class of the message.
        head: Header of the request.
        frame: The whole frame, size included.
        body: Position after the client id.
        max_elements: Maximum number of elements to decode. None derives the limit from the size of the frame.
        is_whole: Whether the message must end at the end of the frame.

    Raises:
        TooManyElementsError: The request has more than ``max_elements`` elements.
        ProtocolError: The request is malformed, or its version has no schema.
    """
    first, last = request_class.VERSIONS
    if not first <= head.api_version <= last:
        raise ProtocolError(f"{request_class.__name__} v{head.api_version} is not served, only v{first}-{last}")
    try:
        if request_class.is_flexible(head.api_version):
            body = skip_tagged_fields(frame, body, len(frame))
    except IndexError as error:
        raise ProtocolError("Request header ends in its tagged fields") from error
    if max_elements is None:
        max_elements = granted_elements(len(frame))
    return decode(request_class, head.api_version, frame, body, max_elements=max_elements, is_whole=is_whole)


def request_frame(request: Message, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Return a request as a frame.

    Raises:
        ProtocolError: The client id is too long, because it was received with many bytes that are not UTF-8.
    """
    encoded_id = None if client_id is None else client_id.encode()
    if encoded_id is not None and len(encoded_id) > _MOST_ID_BYTES:
        raise ProtocolError(f"A client id of {len(encoded_id)} bytes cannot be forwarded")
    head = REQUEST_HEAD.pack(
        0, request.API_KEY, api_version, correlation_id, -1 if encoded_id is None else len(encoded_id)
    )
    tags = b"\0" if request.is_flexible(api_version) else b""
    frame = bytearray().join((head, encoded_id or b"", tags, encode(request, api_version)))
    frame[:SIZE_BYTES] = (len(frame) - SIZE_BYTES).to_bytes(SIZE_BYTES)
    return bytes(frame)


def replaced_frame(head: RequestHead, request: Message) -> bytes:
    """Return the frame of a request that takes the place of another one."""
    return request_frame(request, head.api_version, head.correlation_id, head.client_id)


def response_frame(response: Message, api_version: int, correlation_id: int) -> bytes:
    """Return a response as a frame."""
    body = encode(response, api_version)
    return response_header(correlation_id, len(body), flexible=has_tagged_header(type(response), api_version)) + body


def has_tagged_header(response_class: type[Message], api_version: int) -> bool:
    """Return whether the header of a response has tagged fields.

    That of ApiVersions never has, so that any client can read it.
    """
    return response_class.API_KEY != ApiKey.API_VERSIONS and response_class.is_flexible(api_version)


def response_body(response_class: type[Message], api_version: int, frame: memoryview) -> int:
    """Return the position of the body in a response frame, size included.

    Raises:
        ProtocolError: The frame ends in its header.
    """
    if not has_tagged_header(response_class, api_version):
        return RESPONSE_HEAD.size
    try:
        return skip_tagged_fields(frame, RESPONSE_HEAD.size, len(frame))
    except IndexError as error:
        raise ProtocolError("Response ends in its header") from error
