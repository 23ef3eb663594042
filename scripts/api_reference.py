"""Writes docs/api/ from the docstrings of the public modules. ``python scripts/api_reference.py`` after a change.

A page per module: its docstring, then each public class with its constructor, attributes and methods, and each public
function. tests/unit/test_api_reference.py fails if a page is not what this writes.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import itertools
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

PAGES = Path(__file__).resolve().parents[1] / "docs" / "api"
MODULES = (
    "klamm",
    "klamm.pytest_plugin",
    "klamm.testing",
    "klamm.admin",
    "klamm.policy",
    "klamm.policy.testing",
    "klamm.clients",
    "klamm.clients.aio",
    "klamm.clients.confluent",
    "klamm.mirror.spark",
    "klamm.dataframes.spark",
)
_SECTION = re.compile(r"(Args|Raises|Returns|Yields|Warns|Attributes):")
_LINE = 100
"""Longest signature on one line."""


def main() -> None:
    """Write all pages, and remove those of modules that are gone."""
    PAGES.mkdir(parents=True, exist_ok=True)
    pages = dict(rendered())
    for old in PAGES.glob("*.md"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        (PAGES / name).write_text(text, encoding="utf-8")


def rendered() -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of each page."""
    rows = []
    for name in MODULES:
        module = importlib.import_module(name)
        yield f"{name}.md", _page(module)
        rows.append(f"| [{name}]({name}.md) | {_summary(module)} |")
    head = "# API reference\n\nMade from the docstrings by `scripts/api_reference.py`."
    table = "\n".join(["| module | contents |", "|---|---|", *rows])
    yield "README.md", f"{head}\n\n{table}\n"


def _page(module: ModuleType) -> str:
    parts = [f"# {module.__name__}", _prose(inspect.getdoc(module) or "")]
    for name in _public_names(module):
        parts += _member(name, getattr(module, name))
    return "\n\n".join(part for part in parts if part) + "\n"


def _public_names(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith(("_", "pytest_")) and getattr(value, "__module__", "") == module.__name__
    ]


def _member(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield from _class(name, value)
    elif callable(value):
        yield f"## {name}"
        function = inspect.unwrap(getattr(value, "_fixture_function", value))
        if function is value:
            yield _signature(name, function)
        yield _prose(inspect.getdoc(function) or "")
    else:
        yield f"## {name}"
        yield f"`{value!r}`"


def _class(name: str, cls: type[Any]) -> Iterator[str]:
    bases = [base.__name__ for base in cls.__bases__ if base is not object]
    yield f"## class {name}" + (f"({', '.join(bases)})" if bases else "")
    if issubclass(cls, enum.Enum):
        yield _prose(inspect.getdoc(cls) or "")
        yield ", ".join(f"`{one.name}`" for one in cls)
        return
    if "__init__" in vars(cls):
        yield _signature(name, cls)
    yield _prose(inspect.getdoc(cls) or "")
    if "__init__" in vars(cls) and vars(cls)["__init__"].__doc__ and not dataclasses.is_dataclass(cls):
        yield _prose(inspect.getdoc(vars(cls)["__init__"]) or "")
    texts = _fields(cls)
    fields = [(field, texts.get(field, "")) for field in _field_names(cls)]
    if fields:
        yield "\n".join(f"- `{field}`" + (f": {_inline(text)}" if text else "") for field, text in fields)
    for method, value in _methods(cls):
        if isinstance(value, property | functools.cached_property):
            yield f"### {name}.{method}"
            yield _prose(inspect.getdoc(value) or "")
        else:
            yield f"### {name}.{method}()"
            yield _signature(method, inspect.unwrap(value))
            yield _prose(inspect.getdoc(value) or "")


def _methods(cls: type[Any]) -> list[tuple[str, Any]]:
    """Return the public methods and properties that klamm defines for a class, inherited ones included."""
    found: dict[str, Any] = {}
    for each in reversed(cls.__mro__):
        if each.__module__.startswith("klamm"):
            for name, value in vars(each).items():
                unbound = value.__func__ if isinstance(value, staticmethod | classmethod) else value
                if name.startswith("_"):
                    continue
                if inspect.isfunction(unbound) or isinstance(unbound, property | functools.cached_property):
                    found.pop(name, None)
                    found[name] = unbound
    return [(name, value) for name, value in found.items() if inspect.getdoc(value)]


def _field_names(cls: type[Any]) -> list[str]:
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls) if not field.name.startswith("_")]
    return list(getattr(cls, "_fields", ()))


def _fields(cls: type[Any]) -> dict[str, str]:
    """Return the texts below the fields of a class."""
    out: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if not each.__module__.startswith("klamm"):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, text in itertools.pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                out[field.target.id] = inspect.cleandoc(str(text.value.value))
    return out


def _signature(name: str, function: Any) -> str:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return ""
    kept = [_bare(one) for one in signature.parameters.values() if one.name not in {"self", "cls"}]
    returned: object = _Bare(str(signature.return_annotation))
    if signature.return_annotation is signature.empty or inspect.isclass(function):
        returned = signature.empty
    text = str(signature.replace(parameters=kept, return_annotation=returned))
    if len(name + text) > _LINE and kept:
        arrow = "" if returned is signature.empty else f" -> {returned!r}"
        text = "(\n" + "".join(f"    {line},\n" for line in _listed(kept)) + f"){arrow}"
    return f"```python\n{name}{text}\n```"


class _Bare:
    """An annotation that is printed without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _bare(parameter: inspect.Parameter) -> inspect.Parameter:
    if parameter.annotation is parameter.empty:
        return parameter
    return parameter.replace(annotation=_Bare(str(parameter.annotation)))


def _listed(parameters: list[inspect.Parameter]) -> Iterator[str]:
    has_star = False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not has_star:
            yield "*"
        has_star = has_star or each.kind in {each.KEYWORD_ONLY, each.VAR_POSITIONAL}
        yield str(each)


def _summary(module: ModuleType) -> str:
    return _inline((inspect.getdoc(module) or "").partition("\n")[0])


def _inline(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _prose(text: str) -> str:
    """Return a docstring as Markdown: its sections as lists, its literal blocks as code."""
    out: list[str] = []
    section = in_code = False
    for line in text.splitlines():
        if in_code and line and not line.startswith(" "):
            _end_code(out)
            in_code = False
        if in_code:
            out.append(line[4:])
            continue
        if _SECTION.fullmatch(line):
            section = True
            out += [f"**{line[:-1]}**", ""]
        elif line.rstrip().endswith("::") and not section:
            before = line.rstrip().rstrip(":").replace("``", "`")
            out += [f"{before}:" if before else "", "", "```python"]
            in_code = True
        elif section and re.match(r" {4}\S", line):
            name, colon, rest = line.strip().partition(":")
            out.append(
                f"- `{name}`: {_inline(rest)}" if colon and " " not in name.replace("...", "") else f"- {_inline(line)}"
            )
        elif section and line.strip():
            out[-1] += " " + _inline(line)
        else:
            out.append(line.replace("``", "`"))
    if in_code:
        _end_code(out)
    return re.sub(r"```python\n\n+", "```python\n", re.sub(r"\n{3,}", "\n\n", "\n".join(out))).strip()


def _end_code(out: list[str]) -> None:
    while not out[-1]:
        out.pop()
    out += ["```", ""]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
    main()
