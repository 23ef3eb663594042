"""Compiler of struct writers."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct as Packer
from struct import error as PackingError  # noqa: N812 -- that is a class
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from klamm.protocol.code_generation import (
    FunctionSource,
    default_expression,
    fixed_run,
    once,
    plain_fields,
    tagged_fields,
)
from klamm.protocol.primitives import CHECKED_BY_HANDLER, FIXED_SIZE, MAX_STRING_BYTES, ZERO_UUID, write_uvarint

if TYPE_CHECKING:
    from klamm.protocol.schema import Field, Struct

Writer: TypeAlias = Callable[[Any, bytearray], None]
"""Writer of a struct: takes the struct and the buffer that it appends to."""

_NULL_INT16: Final = b"\xff\xff"
_NULL_INT32: Final = b"\xff\xff\xff\xff"


@once
def struct_writer(cls: type[Struct], version: int, flexible: bool) -> Writer:
    """Return the writer of a struct."""
    return _WriterCompiler(cls, version, flexible).compile()


class _WriterCompiler:
    def __init__(self, cls: type[Struct], version: int, flexible: bool) -> None:
        self._cls = cls
        self._version = version
        self._flexible = flexible
        self._source = FunctionSource(
            "def write(self, out):",
            {"uvarint": write_uvarint, "check": _check_string, "required": _required, "ZERO_UUID": ZERO_UUID},
        )

    def compile(self) -> Writer:
        source, fields = self._source, plain_fields(self._cls, self._version)
        index = 0
        while index < len(fields):
            run = fixed_run(fields, index)
            if run:
                pack = source.constant(Packer(">" + "".join(FIXED_SIZE[field.kind][0] for field in run)).pack)
                source.add(1, f"out += {pack}({', '.join('self.' + field.name for field in run)})")
                index += len(run)
            else:
                self._field(1, fields[index])
                index += 1
        if self._flexible:
            self._tags()
        elif not fields:
            source.add(1, "pass")
        writer: Writer = source.compile("write")
        return writer

    def _compact(self, field: Field) -> bool:
        return self._flexible and field.flexible

    def _field(self, depth: int, field: Field) -> None:
        source, value, nullable = self._source, f"self.{field.name}", field.is_nullable(self._version)
        is_plain = field.kind in FIXED_SIZE or field.kind == "uuid" or (field.kind == "struct" and not nullable)
        if is_plain and not field.is_array:
            self._value(depth, field, value)
            return
        item = source.variable()
        source.add(depth, f"{item} = {value}", f"if {item} is None:")
        source.add(depth + 1, self._null(field) if nullable else f"required({field.name!r})")
        source.add(depth, "else:")
        if field.is_array:
            self._array(depth + 1, field, item)
        else:
            if field.kind == "struct":
                source.add(depth + 1, "out.append(1)")
            self._value(depth + 1, field, item)

    def _null(self, field: Field) -> str:
        if field.kind == "struct" and not field.is_array:
            return "out.append(255)"
        if self._compact(field):
            return "out.append(0)"
        return f"out += {(_NULL_INT16 if field.kind == 'string' and not field.is_array else _NULL_INT32)!r}"

    def _length(self, depth: int, field: Field, value: str, code: str) -> None:
        if self._compact(field):
            is_limited = code == "h" and field.name != CHECKED_BY_HANDLER
            check = f"check({field.name!r}, {value}); " if is_limited else ""
            self._source.add(
                depth,
                f"if len({value}) < 127: out.append(len({value}) + 1)",
                f"else: {check}uvarint(out, len({value}) + 1)",
            )
        else:
            self._source.add(depth, f"out += {self._source.constant(Packer('>' + code).pack)}(len({value}))")

    def _array(self, depth: int, field: Field, items: str) -> None:
        source = self._source
        self._length(depth, field, items, "i")
        if field.kind in FIXED_SIZE:
            source.add(depth, f"out += {source.constant(_pack_many(FIXED_SIZE[field.kind][0]))}({items})")
            return
        item = source.variable()
        source.add(depth, f"for {item} in {items}:")
        self._value(depth + 1, field, item)

    def _value(self, depth: int, field: Field, value: str) -> None:
        source = self._source
        if field.kind in FIXED_SIZE:
            source.add(depth, f"out += {source.constant(Packer('>' + FIXED_SIZE[field.kind][0]).pack)}({value})")
        elif field.kind == "uuid":
            source.add(depth, f"out += ({value} or ZERO_UUID).bytes")
        elif field.struct is not None:
            write = source.constant(struct_writer(field.struct, self._version, self._compact(field)))
            source.add(depth, f"{write}({value}, out)")
        else:
            data = source.variable()
            source.add(depth, f"{data} = {value}.encode()" if field.kind == "string" else f"{data} = {value}")
            self._length(depth, field, data, "h" if field.kind == "string" else "i")
            source.add(depth, f"out += {data}")

    def _tags(self) -> None:
        """Emit code that writes tagged fields in tag order, and only if they differ from their default."""
        source, fields = self._source, tagged_fields(self._cls, self._version)
        if not fields:
            source.add(1, "out.append(0)")
            return
        source.add(1, "tags = []")
        for field in sorted(fields, key=lambda field: field.tag or 0):
            source.add(1, f"if self.{field.name} != {default_expression(source, field)}:")
            source.add(2, "whole, out = out, bytearray()")
            self._field(2, field)
            source.add(2, f"tags.append(({field.tag}, out))", "out = whole")
        source.add(1, "uvarint(out, len(tags))", "for tag, data in tags:")
        source.add(2, "uvarint(out, tag)", "uvarint(out, len(data))", "out += data")


def _check_string(name: str, data: bytes) -> None:
    if len(data) > MAX_STRING_BYTES:
        raise PackingError(f"{name} has {len(data)} bytes, more than the {MAX_STRING_BYTES} that a string may have")


def _required(name: str) -> None:
    raise ValueError(f"{name} is None, but null is not allowed")


def _pack_many(code: str) -> Callable[[list[int]], bytes]:
    def pack(items: list[int]) -> bytes:
        return Packer(f">{len(items)}{code}").pack(*items)

    return pack
