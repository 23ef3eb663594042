"""Schema descriptions of wire messages: fields and the versions in which they exist.

The generated classes in ``klamm.protocol.messages`` carry these descriptions. ``klamm.protocol.codec`` compiles readers
and writers from them.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

NEVER = (1, 0)
"""Empty version range."""


class Field(NamedTuple):
    """One field of a struct, as in Kafka's message JSON."""

    name: str
    kind: str
    """Type of the field, or of its elements if ``is_array``: a primitive of Kafka's message JSON, or ``struct``."""
    versions: tuple[int, int]
    """First and last version that have the field."""
    is_array: bool = False
    struct: type[Struct] | None = None
    nullable_versions: tuple[int, int] = NEVER
    tag: int | None = None
    tagged_versions: tuple[int, int] = NEVER
    default: Any = None
    flexible: bool = True
    """False for a field that keeps its non-compact form in flexible versions (``client_id`` of the request header)."""

    def in_version(self, version: int) -> bool:
        """Return whether the field exists in this version, tagged or not."""
        return self.versions[0] <= version <= self.versions[1]

    def is_nullable(self, version: int) -> bool:
        """Return whether the field may be null in this version."""
        return self.nullable_versions[0] <= version <= self.nullable_versions[1]

    def is_tagged(self, version: int) -> bool:
        """Return whether the field is a tagged field in this version."""
        return self.tag is not None and self.tagged_versions[0] <= version <= self.tagged_versions[1]


class Struct:  # noqa: PLW1641  # mutable, like a list: not hashable
    """Base class of the generated classes. Attributes are Kafka's JSON names in snake_case."""

    __slots__ = ()
    FIELDS: ClassVar[tuple[Field, ...]] = ()

    def __eq__(self, other: object) -> bool:
        """Compare field by field."""
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.FIELDS)

    def __repr__(self) -> str:
        """Return a representation with every field."""
        inner = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in self.FIELDS)
        return f"{type(self).__name__}({inner})"


class Message(Struct):
    """A request or response: a struct with an API key and versions."""

    __slots__ = ()
    API_KEY: ClassVar[int]
    VERSIONS: ClassVar[tuple[int, int]]
    """Versions that the schema defines. The broker's routes list the versions that it serves, which may be fewer."""
    FLEXIBLE_FROM: ClassVar[int | None]
    """First version with compact types and tagged fields, or None."""

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """Return whether ``version`` uses compact types and tagged fields."""
        return cls.FLEXIBLE_FROM is not None and version >= cls.FLEXIBLE_FROM
