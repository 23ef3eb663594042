"""JSON documents in the keys and values of internal topics: registrations, and client configs of the gateway."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


_SHOWN_BYTES: Final = 200
_MAX_TEXT_BYTES: Final = 32_767
"""Largest string in a message of the protocol."""


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
        text = (data or b"").decode()
        document = json.loads(text)
        if "\\u" in text:
            encode_document(document)  # fails for a lone surrogate
    except (ValueError, RecursionError) as error:
        raise RecordFormatError(f"not JSON: {excerpt(data)}") from error
    if not isinstance(document, dict):
        raise RecordFormatError(f"not a JSON object: {excerpt(data)}")
    return document


def is_text(value: object) -> bool:
    """Return whether a value is a string that a response can contain. Other programs may have written a longer one."""
    return isinstance(value, str) and len(value.encode()) <= _MAX_TEXT_BYTES


def excerpt(data: bytes | None) -> str:
    """Return the start of a key or value for a message."""
    if data is None or len(data) <= _SHOWN_BYTES:
        return repr(data)
    return f"{data[:_SHOWN_BYTES]!r}..."
