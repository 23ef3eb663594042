"""Structure of the project that no linter checks."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "klamm"
GENERATED = SOURCE / "protocol" / "messages"
MAX_LINES = 500
MAX_LINES_OF_A_FUNCTION = 70
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


@pytest.mark.parametrize("module", MODULES, ids=ids)
def test_modules_and_functions_are_short_and_modules_have_a_docstring(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree) or not text.strip(), "no docstring"
    lines = code_lines(text, tree)
    assert len(lines) <= MAX_LINES
    lengths = {
        node.name: len(lines.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: length for name, length in lengths.items() if length > MAX_LINES_OF_A_FUNCTION} == {}


def test_public_class_names_are_unique() -> None:
    # given
    places: dict[str, list[str]] = {}
    for module in MODULES:
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(ids(module))
    # then
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("handler", HANDLERS, ids=ids)
def test_handler_starts_with_contract_and_ends_with_route(handler: Path) -> None:
    # given
    text = handler.read_text(encoding="utf-8")
    key = int(handler.name.removeprefix("api_")[:3])
    # then
    assert re.search(rf"\(keys? (\d+ and )?{key}\b", text.splitlines()[0]), "the first line names the API and its key"
    assert text.rstrip().rpartition("\n")[2].startswith(("ROUTE", ")")), "the last statement is the route"


@pytest.mark.process
def test_tracked_files_contain_no_machine_paths() -> None:
    # given
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    places = re.compile("|".join(["/" + "work/", "/" + "root/", "pypi" + r"\.org", "/home/" + r"\w+/"]))
    texts = [ROOT / name for name in tracked.split("\0") if name and not name.startswith("tests/conformance/kit/")]
    # when
    found = [path.relative_to(ROOT).as_posix() for path in texts if path.is_file() and places.search(_text(path))]
    # then
    assert found == []


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
