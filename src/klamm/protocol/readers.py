"""Compiler of struct readers. The readers are strict, and arrays are bounded by the remaining bytes."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct as Packer
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from klamm.protocol.code_generation import (
    FunctionSource,
    default_expression,
    fixed_run,
    once,
    plain_fields,
    tagged_fields,
)
from klamm.protocol.errors import ProtocolError, TooManyElementsError
from klamm.protocol.primitives import (
    CHECKED_BY_HANDLER,
    FIXED_SIZE,
    MAX_STRING_BYTES,
    UUID_BYTES,
    check_length,
    read_uvarint,
)

if TYPE_CHECKING:
    from klamm.protocol.schema import Field, Struct

ELEMENT_COST: Final = 4
"""Cost of a string or struct in an array, charged to ``max_elements``. An element of a fixed size costs 1."""
Reader: TypeAlias = Callable[[memoryview, int, int, list[int]], tuple[Any, int]]
"""Reader of a struct.

It takes the buffer, the position, the end, and the number of elements that arrays may still hold. It returns the
struct and the position after it.
"""

_VALUE_OF: Final = {"string": "str({}, 'utf-8')", "bytes": "bytes({})", "records": "{}"}


@once
def struct_reader(cls: type[Struct], version: int, flexible: bool) -> Reader:
    """Return the reader of a struct."""
    return _ReaderCompiler(cls, version, flexible).compile()


@once
def _min_size(cls: type[Struct], version: int, flexible: bool) -> int:
    """Return the smallest encoded size of a struct in bytes. It bounds the counts of arrays."""
    size = 1 if flexible else 0
    for field in plain_fields(cls, version):
        if field.is_array:
            size += 1 if flexible else 4
        elif field.kind == "struct" and field.is_nullable(version):
            size += 1
        else:
            size += _min_element_size(field, version, flexible)
    return max(size, 1)


def _min_element_size(field: Field, version: int, flexible: bool) -> int:
    """Return the smallest encoded size in bytes of a field's value, or of one array element."""
    if field.struct is not None:
        return _min_size(field.struct, version, flexible)
    if field.kind in FIXED_SIZE:
        return FIXED_SIZE[field.kind][1]
    if field.kind == "uuid":
        return UUID_BYTES
    if flexible:
        return 1
    return 2 if field.kind == "string" else 4


class _ReaderCompiler:
    def __init__(self, cls: type[Struct], version: int, flexible: bool) -> None:
        self._cls = cls
        self._version = version
        self._flexible = flexible
        self._source = FunctionSource(
            "def read(buffer, position, end, left):",
            {
                "cls": cls,
                "new": cls.__new__,
                "uvarint": read_uvarint,
                "check": check_length,
                "too_many": _reject_elements,
                "ProtocolError": ProtocolError,
                "UUID": UUID,
            },
        )

    def compile(self) -> Reader:
        source, fields = self._source, plain_fields(self._cls, self._version)
        source.add(1, "self = new(cls)")
        index = 0
        while index < len(fields):
            run = fixed_run(fields, index)
            if run:
                packer = Packer(">" + "".join(FIXED_SIZE[field.kind][0] for field in run))
                targets = ", ".join(f"self.{field.name}" for field in run)
                source.add(1, f"{targets}, = {source.constant(packer.unpack_from)}(buffer, position)")
                source.add(1, f"position += {packer.size}")
                index += len(run)
            else:
                self._field(1, fields[index])
                index += 1
        present = {field.name for field in fields}
        for field in self._cls.FIELDS:
            if field.name not in present:
                source.add(1, f"self.{field.name} = {default_expression(source, field)}")
        if self._flexible:
            self._tags()
        source.add(1, "return self, position")
        reader: Reader = source.compile("read")
        return reader

    def _compact(self, field: Field) -> bool:
        return self._flexible and field.flexible

    def _field(self, depth: int, field: Field) -> None:
        target, nullable = f"self.{field.name}", field.is_nullable(self._version)
        if field.is_array:
            self._array(depth, field, target, nullable=nullable)
        else:
            self._value(depth, field, target, nullable=nullable)

    def _length(self, depth: int, field: Field, code: str) -> str:
        """Emit code that reads a length or count. It yields -1 for null in both the compact and the old form."""
        source, length = self._source, self._source.variable()
        if self._compact(field):
            source.add(
                depth,
                f"{length} = buffer[position]",
                f"if {length} < 128: position += 1",
                f"else: {length}, position = uvarint(buffer, position)",
                f"{length} -= 1",
            )
        else:
            packer = Packer(">" + code)
            source.add(depth, f"({length},) = {source.constant(packer.unpack_from)}(buffer, position)")
            source.add(depth, f"position += {packer.size}")
        return length

    def _array(self, depth: int, field: Field, target: str, *, nullable: bool) -> None:
        source = self._source
        length = self._length(depth, field, "i")
        if nullable:
            source.add(depth, f"if {length} == -1: {target} = None", "else:")
            depth += 1
        least = _min_element_size(field, self._version, self._compact(field))
        source.add(
            depth,
            f"if {length} < 0 or {length} * {least} > end - position: "
            f"check({length}, (end - position) // {least}, 'Array {field.name}')",
        )
        # Elements of a fixed size are cheap to read, but a handler does some work for each of them.
        is_fixed = field.kind in FIXED_SIZE and field.kind != "bool"
        cost = "" if is_fixed else f" * {ELEMENT_COST}"
        source.add(depth, f"left[0] -= {length}{cost}", "if left[0] < 0: too_many(end)")
        if is_fixed:
            code, size = FIXED_SIZE[field.kind]
            source.add(depth, f"{target} = {source.constant(_unpack_many(code, size))}(buffer, position, {length})")
            source.add(depth, f"position += {length} * {size}")
            return
        items, item = source.variable(), source.variable()
        source.add(depth, f"{target} = {items} = []", f"for _ in range({length}):")
        self._value(depth + 1, field, item, nullable=False)
        source.add(depth + 1, f"{items}.append({item})")

    def _value(self, depth: int, field: Field, target: str, *, nullable: bool) -> None:
        source = self._source
        if field.kind in FIXED_SIZE:
            packer = Packer(">" + FIXED_SIZE[field.kind][0])
            source.add(depth, f"({target},) = {source.constant(packer.unpack_from)}(buffer, position)")
            source.add(depth, f"position += {packer.size}")
        elif field.kind == "uuid":
            source.add(
                depth,
                f"check({UUID_BYTES}, end - position, 'Uuid')",
                f"{target} = UUID(bytes=bytes(buffer[position:position + {UUID_BYTES}]))",
                f"position += {UUID_BYTES}",
            )
        elif field.struct is not None:
            self._struct(depth, field.struct, target, compact=self._compact(field), nullable=nullable)
        else:
            self._sized(depth, field, target, nullable=nullable)

    def _struct(self, depth: int, struct: type[Struct], target: str, *, compact: bool, nullable: bool) -> None:
        source = self._source
        read = f"{source.constant(struct_reader(struct, self._version, compact))}(buffer, position, end, left)"
        if nullable:
            source.add(depth, "present = buffer[position]", "position += 1", f"if present == 255: {target} = None")
            source.add(depth, f"else: {target}, position = {read}")
        else:
            source.add(depth, f"{target}, position = {read}")

    def _sized(self, depth: int, field: Field, target: str, *, nullable: bool) -> None:
        source = self._source
        length = self._length(depth, field, "h" if field.kind == "string" else "i")
        if nullable:
            source.add(depth, f"if {length} == -1: {target} = None", "else:")
            depth += 1
        if field.kind == "string" and self._compact(field) and field.name != CHECKED_BY_HANDLER:
            excess = f"'{field.name} has more than {MAX_STRING_BYTES} bytes'"
            source.add(depth, f"if {length} > {MAX_STRING_BYTES}: raise ProtocolError({excess})")
        source.add(
            depth,
            f"if {length} < 0 or {length} > end - position: check({length}, end - position, '{field.name}')",
            f"{target} = {_VALUE_OF[field.kind].format('buffer[position:position + ' + length + ']')}",
            f"position += {length}",
        )

    def _tags(self) -> None:
        source = self._source
        source.add(
            1,
            "count = buffer[position]",
            "if count == 0: return self, position + 1",
            "count, position = uvarint(buffer, position)",
            f"left[0] -= count * {ELEMENT_COST}",
            "if left[0] < 0: too_many(end)",
            "for _ in range(count):",
            "    tag, position = uvarint(buffer, position)",
            "    size, position = uvarint(buffer, position)",
            "    if size > end - position: check(size, end - position, 'Tagged field')",
            "    stop = position + size",
        )
        for field in tagged_fields(self._cls, self._version):
            source.add(2, f"if tag == {field.tag}:")
            self._field(3, field)
            source.add(
                3,
                "if position != stop: raise ProtocolError('Tagged field differs from its declared length')",
            )
        source.add(2, "position = stop")


def _reject_elements(end: int) -> None:
    raise TooManyElementsError(f"Arrays hold more elements than a request of {end} bytes may have")


def _unpack_many(code: str, size: int) -> Callable[[memoryview, int, int], list[int]]:
    def unpack(buffer: memoryview, position: int, count: int) -> list[int]:
        return list(Packer(f">{count}{code}").unpack(buffer[position : position + count * size]))

    return unpack
