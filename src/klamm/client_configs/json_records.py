"""JSON documents in the keys and values of internal topics: registrations, and client configs of the gateway."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class RecordFormatError(ValueError):
    """A record of an internal topic cannot be read."""


def encode_document(document: Mapping[str, Any]) -> bytes:
    """Return a document as JSON with sorted keys, so that equal documents are equal bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def decode_document(data: bytes | None) -> dict[str, Any]:
    """Return the document in a key or value.

    Raises:
        RecordFormatError: The bytes are not a JSON object.
    """
    try:
        document = json.loads(data or b"")
    except (ValueError, RecursionError) as error:
        raise RecordFormatError(f"not JSON: {data!r}") from error
    if not isinstance(document, dict):
        raise RecordFormatError(f"not a JSON object: {data!r}")
    return document
