"""The house keeps its shape: what no linter looks at."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "klamm"
GENERATED = SOURCE / "protocol" / "messages"
MOST_LINES = 400
MOST_LINES_OF_A_FUNCTION = 70
"""Docstrings and comments count: what needs more wants to be two functions."""

MODULES = sorted(path for path in SOURCE.rglob("*.py") if GENERATED not in path.parents)
HANDLERS = sorted((SOURCE / "broker" / "handlers").glob("api_*.py"))


def ids(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@pytest.mark.parametrize("module", MODULES, ids=ids)
def test_a_module_says_what_it_is_for_and_fits_in_a_head(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)) or not text.strip(), "no docstring"
    assert len(text.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("module", MODULES, ids=ids)
def test_functions_are_short(module: Path) -> None:
    functions = (
        node
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}
    assert {name: length for name, length in lengths.items() if length > MOST_LINES_OF_A_FUNCTION} == {}


@pytest.mark.parametrize("handler", HANDLERS, ids=ids)
def test_a_handler_begins_with_its_contract_and_ends_with_its_route(handler: Path) -> None:
    # given
    text = handler.read_text(encoding="utf-8")
    key = int(handler.name.removeprefix("api_")[:3])
    # then
    assert re.search(rf"\(keys? (\d+ and )?{key}\b", text.splitlines()[0]), "the first line names the API and its key"
    assert text.rstrip().rpartition("\n")[2].startswith(("ROUTE", ")")), "the last statement is the route"


def test_nothing_in_the_project_names_a_machine_it_was_made_on() -> None:
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
