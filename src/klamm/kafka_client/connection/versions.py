"""Negotiation of message versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.protocol.errors import UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.protocol.schema import Message


def negotiate(
    request_class: type[Message],
    offered: Mapping[int, tuple[int, int]],
    *,
    min_version: int = 0,
    max_version: int = 0x7FFF,
) -> int:
    """Return the highest version that the broker, the schema and the caller support.

    Args:
        request_class: The message to send.
        offered: First and last version per API key, from the broker's ApiVersions response.
        min_version: Lowest version that can carry the request.
        max_version: Highest version that the caller supports.

    Raises:
        UnsupportedVersionError: The broker does not offer the API, or no usable version of it.
    """
    name = request_class.__name__
    if request_class.API_KEY not in offered:
        raise UnsupportedVersionError(f"The broker does not offer {name} (key {request_class.API_KEY})")
    first, last = offered[request_class.API_KEY]
    lowest = max(first, min_version, request_class.VERSIONS[0])
    highest = min(last, max_version, request_class.VERSIONS[1])
    if lowest > highest:
        raise UnsupportedVersionError(
            f"The broker offers {name} {first}-{last}, but this call requires a version in "
            f"{max(min_version, request_class.VERSIONS[0])}-{min(max_version, request_class.VERSIONS[1])}"
        )
    return highest
