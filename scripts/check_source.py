"""Rules of the source that ruff does not have. ``make check`` runs them; the exit code is 1 when one is broken.

They hold what CONTRIBUTING.md and docs/adding.md promise to a reader: a module has one idea, a class is found by its
name, a docstring says what the thing is, a handler starts with its contract and ends with its route.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = ROOT / "src" / "klamm"
GENERATED: Final = SOURCE / "protocol" / "messages"
MAX_LINES: Final = 500
"""Lines of code of a module. Docstrings, comments and blank lines are free: what needs explaining is explained."""

_QUESTION: Final = re.compile(r"(What|Who|Whose|How)\b")
_PLACE: Final = re.compile("|".join(["/" + "work/", "/" + "root/", "pypi" + r"\.org", "/home/" + r"\w+/"]))
_NO_CODE: Final = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def code_lines(text: str, tree: ast.Module) -> int:
    """Return the number of lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE and token.string:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring, also below a field
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def name_of(path: Path) -> str:
    """Return the name under which a module is imported."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts)


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and its functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def source_problems() -> Iterator[str]:
    """Yield what breaks a rule for modules, classes or docstrings."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        if GENERATED in path.parents:
            continue
        module, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        if text.count("\n") > MAX_LINES and (count := code_lines(text, tree)) > MAX_LINES:
            yield f"{module}: {count} lines of code, at most {MAX_LINES} are allowed: it has more than one idea"
        if any(isinstance(node, ast.ImportFrom) and node.module == name_of(path) for node in ast.walk(tree)):
            yield f"{module}: imports from itself: nothing is imported late by that"
        yield from (
            f"{module}: a docstring names the thing, it does not ask for it: {docstring.splitlines()[0]}"
            for docstring in docstrings(tree)
            if _QUESTION.match(docstring)
        )
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    if not places:
        yield f"{SOURCE}: no class was read"
    for name, modules in places.items():
        if len(modules) > 1:
            yield f"{', '.join(modules)}: each has a public class {name}"


def handler_problems() -> Iterator[str]:
    """Yield handlers whose first line does not name the API and its key, or whose last statement is not the route."""
    handlers = sorted(SOURCE.glob("*/handlers/api_*.py"))
    if not handlers:
        yield f"{SOURCE}: no handler was read"
    for path in handlers:
        lines = path.read_text(encoding="utf-8").splitlines()
        key = int(path.name.removeprefix("api_")[:3])
        if not re.search(rf"\(keys? (\d+ and )?{key}\b", lines[0]):
            yield f"{path.relative_to(ROOT)}: the first line names the API and (key {key})"
        if not lines[-1].startswith(("ROUTE", ")")):
            yield f"{path.relative_to(ROOT)}: the last statement is not its ROUTE"


def place_problems() -> Iterator[str]:
    """Yield tracked files that name a place on some machine."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, tracked.split("\0")):
        path = ROOT / name
        if name.startswith("tests/conformance/kit/") or not path.is_file():
            continue
        if place := _PLACE.search(path.read_text(encoding="utf-8", errors="replace")):
            yield f"{name}: names a place that other machines do not have: {place[0]}"


def main() -> int:
    """Print all problems."""
    problems = [*source_problems(), *handler_problems(), *place_problems()]
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
