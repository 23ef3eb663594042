"""Structure of the project that no linter checks."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "klamm"
GENERATED = SOURCE / "protocol" / "messages"
MAX_LINES = 500
MAX_FUNCTION_LINES = 70
"""Lines of code. Docstrings, comments and blank lines are free: what needs explaining is explained."""

MODULES = sorted(path for path in SOURCE.rglob("*.py") if GENERATED not in path.parents)
HANDLERS = sorted(SOURCE.glob("*/handlers/api_*.py"))


def ids(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def code_lines(text: str, tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that hold code."""
    stripped = enumerate(map(str.strip, text.splitlines()), 1)
    lines = {number for number, line in stripped if line and not line.startswith("#")}
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and _is_text(node.value):  # a docstring, also below a field
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Constant | ast.JoinedStr):  # a line of a text may be blank or begin with #
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines - docstrings


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_docstrings_comments_and_blank_lines_are_not_code_lines() -> None:
    text = '"""Module.\n\nMore.\n"""\n\n# why\nX = """a\n\n# b"""  # code\n"""Of X."""\n\n\ndef f():\n    """Do."""\n'
    assert code_lines(text, ast.parse(text)) == {7, 8, 9, 13}


class Outline(NamedTuple):
    """What the tests compare of a module. Its syntax tree is large, so none is kept."""

    module: str
    has_docstring: bool
    public_classes: tuple[str, ...]
    too_long: dict[str, int]
    """Lines of code of the module and of its functions that have more than they may."""


@functools.cache
def outlines() -> tuple[Outline, ...]:
    return tuple(outline_of(ids(path), path.read_text(encoding="utf-8")) for path in MODULES)


def outline_of(module: str, text: str) -> Outline:
    tree = ast.parse(text)
    classes = (node.name for node in tree.body if isinstance(node, ast.ClassDef))
    return Outline(
        module=module,
        has_docstring=not text.strip() or ast.get_docstring(tree) is not None,
        public_classes=tuple(name for name in classes if not name.startswith("_")),
        too_long=too_long(text, tree),
    )


def too_long(text: str, tree: ast.Module) -> dict[str, int]:
    functions = [
        (node.name, range(node.lineno, (node.end_lineno or node.lineno) + 1))
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    if text.count("\n") <= MAX_LINES and max((len(lines) for _, lines in functions), default=0) <= MAX_FUNCTION_LINES:
        return {}
    code = code_lines(text, tree)
    lengths = [("module", len(code), MAX_LINES)]
    lengths += [(name, len(code.intersection(lines)), MAX_FUNCTION_LINES) for name, lines in functions]
    return {name: length for name, length, limit in lengths if length > limit}


def test_modules_have_a_docstring() -> None:
    assert [outline.module for outline in outlines() if not outline.has_docstring] == []


def test_modules_and_functions_are_short() -> None:
    assert {outline.module: outline.too_long for outline in outlines() if outline.too_long} == {}


def test_public_class_names_are_unique() -> None:
    # given
    places: dict[str, list[str]] = {}
    for module, _, names, _ in outlines():
        for name in names:
            places.setdefault(name, []).append(module)
    # then
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_handlers_start_with_contract_and_end_with_route() -> None:
    texts = {handler.name: handler.read_text(encoding="utf-8") for handler in HANDLERS}
    assert texts
    without_key = [name for name, text in texts.items() if not names_key(text.splitlines()[0], name)]
    assert without_key == [], "the first line names the API and its key"
    last_lines = {name: text.rstrip().rpartition("\n")[2] for name, text in texts.items()}
    without_route = [name for name, line in last_lines.items() if not line.startswith(("ROUTE", ")"))]
    assert without_route == [], "the last statement is the route"


def names_key(line: str, handler: str) -> bool:
    key = int(handler.removeprefix("api_")[:3])
    return re.search(rf"\(keys? (\d+ and )?{key}\b", line) is not None


@pytest.mark.process
def test_tracked_files_contain_no_machine_paths() -> None:
    # given
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    places = re.compile("|".join(["/" + "work/", "/" + "root/", "pypi" + r"\.org", "/home/" + r"\w+/"]))
    texts = [ROOT / name for name in tracked.split("\0") if name and not name.startswith("tests/conformance/kit/")]
    # when
    offending = [path.relative_to(ROOT).as_posix() for path in texts if path.is_file() and places.search(_text(path))]
    # then
    assert offending == []


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
