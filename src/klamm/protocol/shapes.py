"""Tell KIP-649 from SCRAM on API keys 50 and 51, which both own, by the bytes behind the client id.

A KIP-649 request has header version 1 and not flexible arrays: its body begins with an int32 count below 65536. A
SCRAM request (KIP-554) has header version 2: a tag byte, then a compact array, so that its first two bytes are 0
only where nothing, or nearly nothing, follows.
"""

from __future__ import annotations

from typing import Final, TypeVar

from klamm.protocol.codec import decode
from klamm.protocol.errors import ProtocolError
from klamm.protocol.primitives import skip_tagged_fields
from klamm.protocol.schema import Message

ClientConfigsMessage = TypeVar("ClientConfigsMessage", bound=Message)
ScramMessage = TypeVar("ScramMessage", bound=Message)

DESCRIBE_KEY: Final = 50
ALTER_KEY: Final = 51

_SMALLEST_DESCRIBE: Final = 10
"""Two arrays and two booleans."""
_SMALLEST_ALTER: Final = 5
"""One array and a boolean."""


def is_client_configs_request(api_key: int, rest: bytes | bytearray | memoryview) -> bool:
    """Tell whether a request on key 50 or 51 is KIP-649's; otherwise it is SCRAM's.

    Args:
        api_key: 50 or 51.
        rest: What follows the client id of the request header.
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
    """Read whichever of the two requests of a shared key it is, from behind the client id.

    Raises:
        ProtocolError: It is neither; whichever it is, it must also end where its frame ends, because a request that
            was meant for the other API may well begin like one of this.
    """
    rest = frame[position:]
    if is_client_configs_request(client_configs.API_KEY, rest):
        return decode(client_configs, api_version, rest, is_whole=True)
    try:
        body = skip_tagged_fields(rest, 0, len(rest))
    except IndexError as error:
        raise ProtocolError("Request header ends in its tagged fields") from error
    try:
        return decode(scram, api_version, rest, body, is_whole=True)
    except ProtocolError:
        if bytes(rest[-1:]) != b"\x00":
            raise
        # librdkafka ends AlterUserScramCredentials with one empty section of tagged fields more than there is.
        return decode(scram, api_version, rest[:-1], body, is_whole=True)
