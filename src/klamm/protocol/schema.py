"""How a wire message is described: fields with the versions they exist in.

The classes in ``klamm.protocol.messages`` are generated with such descriptions; ``klamm.protocol.codec``
compiles readers and writers from them.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

NEVER = (1, 0)
"""The range of versions that holds no version."""


class Field(NamedTuple):
    """One field of a struct, after Kafka's message JSON."""

    name: str
    kind: str
    """A primitive of Kafka's message JSON, or ``struct``; of the elements when ``is_array``."""
    versions: tuple[int, int]
    """First and last version that has the field."""
    is_array: bool = False
    struct: type[Struct] | None = None
    nullable_versions: tuple[int, int] = NEVER
    tag: int | None = None
    tagged_versions: tuple[int, int] = NEVER
    default: Any = None
    flexible: bool = True
    """False for a field that keeps its old form in flexible versions (``client_id`` of the header)."""

    def in_version(self, version: int) -> bool:
        """Tell whether the field exists, tagged or not."""
        return self.versions[0] <= version <= self.versions[1]

    def is_nullable(self, version: int) -> bool:
        """Tell whether null may stand for the field."""
        return self.nullable_versions[0] <= version <= self.nullable_versions[1]

    def is_tagged(self, version: int) -> bool:
        """Tell whether the field is written behind a tag."""
        return self.tag is not None and self.tagged_versions[0] <= version <= self.tagged_versions[1]


class Struct:  # noqa: PLW1641  # mutable, like a list: not hashable
    """Base of the generated classes: attributes as in Kafka's JSON, in snake_case."""

    __slots__ = ()
    FIELDS: ClassVar[tuple[Field, ...]] = ()

    def __eq__(self, other: object) -> bool:
        """Compare field by field."""
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.FIELDS)

    def __repr__(self) -> str:
        """Show every field."""
        inner = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in self.FIELDS)
        return f"{type(self).__name__}({inner})"


class Message(Struct):
    """A request or a response: a struct with a key and versions."""

    __slots__ = ()
    API_KEY: ClassVar[int]
    VERSIONS: ClassVar[tuple[int, int]]
    """Versions that the schema knows; what the broker serves is narrower and stands in its routes."""
    FLEXIBLE_FROM: ClassVar[int | None]
    """First version with compact types and tagged fields, or None."""

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """Tell whether ``version`` has compact types and tagged fields."""
        return cls.FLEXIBLE_FROM is not None and version >= cls.FLEXIBLE_FROM
