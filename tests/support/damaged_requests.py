"""Requests of every API and version, and damaged copies of them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from klamm.broker.routes import ROUTES

if TYPE_CHECKING:
    import random

    from klamm.protocol.schema import Field, Message, Struct

NOBODY: Final = "nosuch"
_VALUES: Final = {
    "bool": True,
    "float64": 3.0,
    "string": NOBODY,
    "bytes": b"nosuch",
    "records": b"nosuch" * 12,
    "uuid": UUID(int=3),
}


def sample(cls: type[Struct], version: int) -> Any:
    """Return a request with a value in every field, none of which exists on the broker."""
    return cls(**{f.name: sample_value(f, version) for f in cls.FIELDS if f.in_version(version)})


def sample_value(field: Field, version: int) -> Any:
    element = sample(field.struct, version) if field.struct is not None else _VALUES.get(field.kind, 3)
    return [element, element] if field.is_array else element


def valid_requests() -> list[tuple[type[Message], int]]:
    return [
        (route.request, version)
        for route in ROUTES.values()
        for version in range(route.api.min_version, route.api.max_version + 1)
        if route.request.VERSIONS[0] <= version <= route.request.VERSIONS[1]
    ]


def damaged(frame: bytes, generator: random.Random) -> bytes:
    """The frame with some of its bytes changed, cut out, put in or made huge; its length is right again."""
    body = bytearray(frame[4:])
    for _ in range(generator.choice((1, 1, 1, 2, 3))):
        if not body:
            break
        at = generator.randrange(8, len(body)) if len(body) > 8 else len(body) - 1
        match generator.randrange(6):
            case 0:
                body[at] ^= 1 << generator.randrange(8)
            case 1:
                del body[at:]
            case 2:
                del body[at : at + generator.randrange(1, 9)]
            case 3:
                body[at:at] = generator.randbytes(generator.randrange(1, 9))
            case 4:
                body[at : at + 4] = generator.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x00\x10\x00\x00"))
            case _:
                body[at : at + 1] = generator.choice((b"\xff\xff\xff\xff\x0f", b"\x80\x80\x04", b"\x00"))
    return struct.pack(">i", len(body)) + bytes(body)
