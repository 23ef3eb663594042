"""The page docs/kips.md: every requirement appears once, and every test that it names exists and runs."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.scripts import load_script

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = {"K339": 41, "K649": 99, "K894": 48, "K108": 27, "K714": 9, "K848": 17}
"""How many requirements each KIP has; they are numbered from 01."""


@cache
def script() -> Any:
    """Load scripts/kips.py, which is no package."""
    return load_script("kips")


def rows() -> tuple[Any, ...]:
    return tuple(script().read_rows((ROOT / "docs" / "kips.md").read_text(encoding="utf-8")))


def named_tests() -> list[str]:
    return sorted({test for row in rows() for test in row.tests})


def test_kips_page_lists_every_requirement_once() -> None:
    # given
    expected = [f"{kip}-{number:02d}" for kip, count in REQUIREMENTS.items() for number in range(1, count + 1)]
    # when
    counts = Counter(row.id for row in rows())
    # then
    assert sorted(counts.elements()) == sorted(expected)


def test_every_requirement_has_a_test_or_a_reason() -> None:
    assert [row.id for row in rows() if not (row.tests if row.is_done else row.reason.strip())] == []


def test_tests_on_kips_page_exist() -> None:
    assert [test for test in named_tests() if not exists(test)] == []


def test_tests_on_kips_page_are_not_skipped() -> None:
    assert [test for test in named_tests() if is_skipped(test)] == []


def test_tests_cite_existing_requirements_only() -> None:
    ids = {row.id for row in rows()}
    assert {cited: tests for cited, tests in script().citations().items() if cited not in ids} == {}


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Nothing.", []),
        ("K339-10", ["K339-10"]),
        ("K339-10, -12 and K649-01", ["K339-10", "K339-12", "K649-01"]),
        ("(K108-03..05, -09)", ["K108-03", "K108-04", "K108-05", "K108-09"]),
        ("K339-10/-11", ["K339-10", "K339-11"]),
        ("K339-10, K339-11.", ["K339-10", "K339-11"]),
    ],
)
def test_ids_are_read_from_a_docstring(docstring: str, expected: list[str]) -> None:
    assert list(script().cited_ids(docstring)) == expected


# --- reading tests ----------------------------------------------------------------------------------------------------


def exists(test: str) -> bool:
    """Return whether pytest collects a test: a function of that name stands in the file, outside classes."""
    path, _, name = test.partition("::")
    return re.search(rf"^(?:async )?def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE) is not None


SKIPS = ("skip", "skipif", "xfail", "importorskip")


@cache
def tree_of(path: str) -> ast.AST | None:
    """Return the tree of a file; None if it skips nothing."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return ast.parse(text) if any(word in text for word in SKIPS) else None


def is_skipped(test: str) -> bool:
    path, _, name = test.partition("::")
    if (tree := tree_of(path)) is None:
        return False
    nodes = [tree]
    for part in name.split("::"):
        nodes.append(_child(nodes[-1], part))
    return any(_says_skip(node) for node in nodes[1:])


def _child(node: ast.AST, name: str) -> ast.AST:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and child.name == name:
            return child
    raise LookupError(name)


def _says_skip(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr in SKIPS for part in _statements(node))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.ClassDef):
        for decorator in node.decorator_list:
            yield from ast.walk(decorator)
    else:
        yield from ast.walk(node)
