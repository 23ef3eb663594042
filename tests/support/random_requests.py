"""Requests of random content, in which every struct has a tagged field that no gateway knows."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from klamm.gateway.frames.wire import REQUEST_HEAD
from klamm.protocol.schema import Field
from klamm.protocol.writers import struct_writer

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from klamm.protocol.schema import Message, Struct

CORRELATION_ID: Final = 7
_UNKNOWN: Final = Field("unknown", "bytes", (0, 99), tag=77, tagged_versions=(0, 99), default=b"")
_HEADER_TAG: Final = b"\x01\x4d\x02hi"
_CHOICES: Final = {"resource_type": (2,), "config_operation": (0, 1), "acks": (1, -1), "member_epoch": (-1, 0, 3)}
"""Values of fields that decide what a gateway does with a request."""
_NEVER_NULL: Final = frozenset({"value", "name"})
_numbers: Final = count()
_tagged: Final[dict[type[Struct], type[Struct]]] = {}


def with_unknown_tags(cls: type[Struct]) -> type[Struct]:
    """Return a struct with one more tagged field, in all its structs."""
    if cls not in _tagged:
        fields = [
            field if field.struct is None else field._replace(struct=with_unknown_tags(field.struct))
            for field in cls.FIELDS
        ]
        _tagged[cls] = type(cls.__name__, (cls,), {"__slots__": ("unknown",), "FIELDS": (*fields, _UNKNOWN)})
    return _tagged[cls]


def random_struct(cls: type[Struct], version: int, generator: random.Random) -> Any:
    """Return a struct with a random value in every field that its version has, and an unknown tagged field."""
    tagged = with_unknown_tags(cls)
    made = tagged.__new__(tagged)
    for field in tagged.FIELDS:
        setattr(made, field.name, _random_value(field, version, generator))
    return made


def _random_value(field: Field, version: int, generator: random.Random) -> Any:
    if field.name in _CHOICES:
        return generator.choice(_CHOICES[field.name])
    if field.is_nullable(version) and field.name not in _NEVER_NULL and generator.random() < 0.2:
        return None
    if field.is_array:
        return [_random_item(field, version, generator) for _ in range(generator.randrange(1, 4))]
    return _random_item(field, version, generator)


def _random_item(field: Field, version: int, generator: random.Random) -> Any:
    if field.struct is not None:
        return random_struct(field.struct.__mro__[1], version, generator)
    values: dict[str, Callable[[], object]] = {
        "string": lambda: f"{generator.choice(('denied', 'kept', 'größer', 'k' * 300))}-{next(_numbers)}",
        "bool": lambda: generator.random() < 0.5,
        "bytes": lambda: generator.randbytes(generator.randrange(1, 9)),
        "records": lambda: generator.randbytes(80),
        "uuid": lambda: UUID(int=0),
    }
    return values.get(field.kind, lambda: generator.randrange(128))()


def frame_of(made: Struct, request: type[Message], version: int) -> bytes:
    """Return the frame of a request that ``random_struct`` made."""
    is_flexible = request.is_flexible(version)
    body = bytearray(_HEADER_TAG if is_flexible else b"")
    struct_writer(type(made), version, is_flexible)(made, body)
    size = REQUEST_HEAD.size - 4 + 4 + len(body)
    return REQUEST_HEAD.pack(size, request.API_KEY, version, CORRELATION_ID, 4) + b"tool" + body
