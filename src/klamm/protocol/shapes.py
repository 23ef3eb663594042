"""Distinction between the KIP-649 and SCRAM requests that share API keys 50 and 51, by the bytes after the client id.

A KIP-649 request has header version 1 and non-flexible arrays: its body begins with an int32 count below 65536, so its
first two bytes are 0. A SCRAM request (KIP-554) has header version 2: a tagged-field count, then a compact array. Its
first two bytes are 0 only if (almost) no bytes follow.
"""

from __future__ import annotations

from typing import Final, TypeVar

from klamm.protocol.codec import decode, granted_elements
from klamm.protocol.errors import ProtocolError
from klamm.protocol.primitives import skip_tagged_fields
from klamm.protocol.schema import Message

ClientConfigsMessage = TypeVar("ClientConfigsMessage", bound=Message)
ScramMessage = TypeVar("ScramMessage", bound=Message)

DESCRIBE_KEY: Final = 50

_SMALLEST_DESCRIBE: Final = 10
"""Size in bytes of the smallest DescribeClientConfigs body: two arrays and two booleans."""
_SMALLEST_ALTER: Final = 5
"""Size in bytes of the smallest AlterClientConfigs body: one array and a boolean."""


def is_client_configs_request(api_key: int, rest: bytes | bytearray | memoryview) -> bool:
    """Return whether a request with key 50 or 51 is a KIP-649 request; otherwise it is a SCRAM request.

    Args:
        api_key: 50 or 51.
        rest: Bytes after the client id of the request header.
    """
    smallest = _SMALLEST_DESCRIBE if api_key == DESCRIBE_KEY else _SMALLEST_ALTER
    return len(rest) >= smallest and rest[0] == 0 and rest[1] == 0


def decode_by_shape(
    client_configs: type[ClientConfigsMessage],
    scram: type[ScramMessage],
    api_version: int,
    frame: memoryview,
    position: int,
) -> ClientConfigsMessage | ScramMessage:
    """Decode a request of a shared API key from the bytes after the client id, as the API that its bytes indicate.

    Raises:
        ProtocolError: The bytes are neither request. The request must end exactly at the end of its frame, because a
            request of one API can begin like a request of the other.
    """
    rest = frame[position:]
    max_elements = granted_elements(len(rest))
    if is_client_configs_request(client_configs.API_KEY, rest):
        return decode(client_configs, api_version, rest, max_elements=max_elements, is_whole=True)
    try:
        body = skip_tagged_fields(rest, 0, len(rest))
    except IndexError as error:
        raise ProtocolError("Request header ends in its tagged fields") from error
    try:
        return decode(scram, api_version, rest, body, max_elements=max_elements, is_whole=True)
    except ProtocolError:
        if bytes(rest[-1:]) != b"\x00":
            raise
        # librdkafka ends AlterUserScramCredentials with one section of tagged fields too many (an empty one).
        return decode(scram, api_version, rest[:-1], body, max_elements=max_elements, is_whole=True)
