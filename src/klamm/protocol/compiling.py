"""Turns the description of a struct into a Python function, once for each version that is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from klamm.protocol.primitives import FIXED_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klamm.protocol.schema import Field, Struct

Built = TypeVar("Built")


def once(build: Callable[[type[Struct], int, bool], Built]) -> Callable[[type[Struct], int, bool], Built]:
    """Keep what was built for a struct, version and form (for the life of the process: the schemas are finite)."""
    built: dict[tuple[type[Struct], int, bool], Built] = {}

    def look_up(cls: type[Struct], version: int, flexible: bool) -> Built:
        key = (cls, version, flexible)
        found = built.get(key)
        if found is None:
            found = built[key] = build(cls, version, flexible)
        return found

    return look_up


class FunctionSource:
    """Lines of a function under construction, with the objects they name."""

    def __init__(self, signature: str, names: dict[str, Any]) -> None:
        self.names = names
        self._lines = [signature]
        self._counter = 0

    def add(self, depth: int, *lines: str) -> None:
        """Append lines, indented ``depth`` times."""
        self._lines.extend("    " * depth + line for line in lines)

    def constant(self, value: Any) -> str:
        """Return a name under which the function sees ``value``."""
        self._counter += 1
        name = f"k{self._counter}"
        self.names[name] = value
        return name

    def variable(self) -> str:
        """Return a name that is used nowhere else."""
        self._counter += 1
        return f"v{self._counter}"

    def compile(self, function: str) -> Any:
        """Return the function."""
        exec(compile("\n".join(self._lines), f"<{function}>", "exec"), self.names)  # noqa: S102  # our own text
        return self.names[function]


def plain_fields(cls: type[Struct], version: int) -> list[Field]:
    """Return the fields that stand in their place, in order."""
    return [field for field in cls.FIELDS if field.in_version(version) and not field.is_tagged(version)]


def tagged_fields(cls: type[Struct], version: int) -> list[Field]:
    """Return the fields that stand behind a tag."""
    return [field for field in cls.FIELDS if field.in_version(version) and field.is_tagged(version)]


def fixed_run(fields: Sequence[Field], index: int) -> list[Field]:
    """Return the fields of fixed size from ``index`` on: they are read and written by one call."""
    run: list[Field] = []
    while index < len(fields) and not fields[index].is_array and fields[index].kind in FIXED_SIZE:
        run.append(fields[index])
        index += 1
    return run


def default_expression(source: FunctionSource, field: Field) -> str:
    """Return an expression for a field's default; lists and structs are made anew each time."""
    if field.is_array and field.default is not None:
        return "[]"
    if field.kind == "struct" and not field.is_array and field.default is not None:
        return f"{source.constant(field.struct)}()"
    return source.constant(field.default)
