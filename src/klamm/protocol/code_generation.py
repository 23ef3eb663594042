"""Code generation: a Python function for each struct and each version in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from klamm.protocol.primitives import FIXED_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klamm.protocol.schema import Field, Struct

Built = TypeVar("Built")


def once(build: Callable[[type[Struct], int, bool], Built]) -> Callable[[type[Struct], int, bool], Built]:
    """Cache the function built for a struct, version and form. The schemas are finite, so entries are never evicted."""
    built: dict[tuple[type[Struct], int, bool], Built] = {}

    def look_up(cls: type[Struct], version: int, flexible: bool) -> Built:
        key = (cls, version, flexible)
        function = built.get(key)
        if function is None:
            function = built[key] = build(cls, version, flexible)
        return function

    return look_up


class FunctionSource:
    """Lines of a function under construction, and the objects that the function refers to."""

    def __init__(self, signature: str, names: dict[str, Any]) -> None:
        self.names = names
        self._lines = [signature]
        self._counter = 0

    def add(self, depth: int, *lines: str) -> None:
        """Append lines, indented ``depth`` times."""
        self._lines.extend("    " * depth + line for line in lines)

    def constant(self, value: Any) -> str:
        """Return a name that refers to ``value`` inside the function."""
        self._counter += 1
        name = f"k{self._counter}"
        self.names[name] = value
        return name

    def variable(self) -> str:
        """Return an unused variable name."""
        self._counter += 1
        return f"v{self._counter}"

    def compile(self, function: str) -> Any:
        """Compile the lines and return the function."""
        exec(compile("\n".join(self._lines), f"<{function}>", "exec"), self.names)  # noqa: S102  # our own text
        return self.names[function]


def plain_fields(cls: type[Struct], version: int) -> list[Field]:
    """Return the untagged fields in wire order."""
    return [field for field in cls.FIELDS if field.in_version(version) and not field.is_tagged(version)]


def tagged_fields(cls: type[Struct], version: int) -> list[Field]:
    """Return the tagged fields of a struct in a version."""
    return [field for field in cls.FIELDS if field.in_version(version) and field.is_tagged(version)]


def fixed_run(fields: Sequence[Field], index: int) -> list[Field]:
    """Return the fields of fixed size that start at ``index``. One call reads or writes all of them."""
    run: list[Field] = []
    while index < len(fields) and not fields[index].is_array and fields[index].kind in FIXED_SIZE:
        run.append(fields[index])
        index += 1
    return run


def default_expression(source: FunctionSource, field: Field) -> str:
    """Return an expression for a field's default value. It creates a new list or struct on each evaluation."""
    if field.is_array and field.default is not None:
        return "[]"
    if field.kind == "struct" and not field.is_array and field.default is not None:
        return f"{source.constant(field.struct)}()"
    return source.constant(field.default)
