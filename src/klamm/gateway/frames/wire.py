"""Request and response frames as the relay needs them: the fixed part of a header, and frames made from messages."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.protocol.codec import decode, encode, granted_elements
from klamm.protocol.errors import ProtocolError
from klamm.protocol.frames import has_tagged_header, response_header
from klamm.protocol.primitives import read_uvarint, skip_tagged_fields

if TYPE_CHECKING:
    from klamm.protocol.schema import Message

REQUEST_HEAD: Final = struct.Struct(">ihhih")
"""Size, API key, API version, correlation id and length of the client id."""
RESPONSE_HEAD: Final = struct.Struct(">ii")
"""Size and correlation id."""
SIZE_BYTES: Final = 4
INT32: Final = struct.Struct(">i")
INT16: Final = struct.Struct(">h")
_MAX_ID_BYTES: Final = 32_767


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


def after_compact_string(view: memoryview, position: int) -> int:
    """Return the position after a compact string or a compact nullable string."""
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
    if encoded_id is not None and len(encoded_id) > _MAX_ID_BYTES:
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
