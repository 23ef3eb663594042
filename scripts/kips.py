"""The page docs/kips.md: which requirement is met, and by which test.

Tests cite the requirements they prove by id in their docstrings (``K339-10``, ``K339-10, -11``, ``K339-10..13``).

``python scripts/kips.py``          says what the page and the citations disagree on; exit 1 when they do
``python scripts/kips.py --write``  writes the citations into the page

A row that says "not yet" becomes "done" when a test cites its id, unless its reason begins with "partly": such a row
is turned by hand. A row whose test is gone becomes "not yet" again.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "kips.md"
TESTS: Final = ROOT / "tests"
MOST_TESTS: Final = 3
"""How many tests a row names at most; those that need neither Java nor Maven come first."""

_FAMILY: Final = re.compile(r"\bK(?P<kip>\d{3})-(?P<first>\d{2})(?P<more>(?:\s*(?:\.\.|,\s*-|/-?)\s*\d{2})*)")
_MORE: Final = re.compile(r"(?P<how>\.\.|,|/)\s*-?\s*(?P<number>\d{2})")
_ROW: Final = re.compile(r"^\| (?P<id>K\d{3}-\d{2}) \| (?P<text>.*?) \| (?P<status>done|not yet): (?P<rest>.*?) \|$")
_TEST: Final = re.compile(r"`([^`]+?\.py::[^`]+)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One requirement on the page."""

    id: str
    text: str
    is_done: bool
    tests: tuple[str, ...]
    """``path::test`` relative to the root; empty unless done."""
    reason: str
    """Why not yet; empty when done."""

    def line(self) -> str:
        """Return the row as the page has it."""
        tests = ", ".join(f"`{test}`" for test in self.tests)
        return f"| {self.id} | {self.text} | {f'done: {tests}' if self.is_done else f'not yet: {self.reason}'} |"


def cited_ids(text: str) -> Iterator[str]:
    """Yield every requirement id that a docstring cites, lists and ranges spelled out."""
    for family in _FAMILY.finditer(text):
        kip, last = family["kip"], int(family["first"])
        yield f"K{kip}-{last:02d}"
        for more in _MORE.finditer(family["more"]):
            number = int(more["number"])
            for each in range(last + 1, number + 1) if more["how"] == ".." else (number,):
                yield f"K{kip}-{each:02d}"
            last = number


def citations(tests: Path = TESTS) -> Mapping[str, tuple[str, ...]]:
    """Return the tests that cite each id, as ``path::test`` relative to the directory above ``tests``."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(tests.rglob("test_*.py"), key=lambda path: (_needs(path), path)):
        for name, docstring in _test_docstrings(ast.parse(path.read_text(encoding="utf-8"))):
            test = f"{path.relative_to(tests.parent).as_posix()}::{name}"
            for requirement in cited_ids(docstring):
                if test not in found[requirement]:
                    found[requirement].append(test)
    return {requirement: tuple(tests) for requirement, tests in found.items()}


def _needs(path: Path) -> int:
    """Return what a test asks for: 0 nothing, 1 Java, 2 Maven."""
    parts = set(path.parts)
    return 2 if "interop" in parts else 1 if "spark" in parts else 0


def _test_docstrings(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, str]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _test_docstrings(node, f"{prefix}{node.name}::")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield f"{prefix}{node.name}", ast.get_docstring(node) or ""


def read_rows(page: str) -> tuple[Row, ...]:
    """Return the rows of the page's tables.

    Raises:
        ValueError: a line looks like a row and is none; the message has the line.
    """
    rows = []
    for line in page.splitlines():
        if not line.startswith("| K"):
            continue
        found = _ROW.match(line)
        if found is None:
            raise ValueError(f"not a row of docs/kips.md: {line}")
        is_done = found["status"] == "done"
        rows.append(
            Row(
                id=found["id"],
                text=found["text"],
                is_done=is_done,
                tests=tuple(_TEST.findall(found["rest"])) if is_done else (),
                reason="" if is_done else found["rest"],
            )
        )
    return tuple(rows)


def renewed(row: Row, tests: Sequence[str]) -> Row:
    """Return the row as the citations want it."""
    if tests and (row.is_done or not row.reason.startswith("partly")):
        return replace(row, is_done=True, tests=tuple(tests[:MOST_TESTS]), reason="")
    if row.is_done:
        return replace(row, is_done=False, tests=(), reason="its test is gone")
    return row


def main(arguments: Sequence[str]) -> int:
    """Compare or write the page."""
    cited = citations()
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = {row.line(): row for row in read_rows("\n".join(lines))}
    new_rows = {line: renewed(row, cited.get(row.id, ())) for line, row in rows.items()}
    changed = [row for line, row in new_rows.items() if row.line() != line]
    unknown = sorted(set(cited) - {row.id for row in rows.values()})
    for requirement in unknown:
        print(f"no such requirement: {requirement}, cited by {', '.join(cited[requirement])}")
    for row in changed:
        print(row.line())
    done = sum(row.is_done for row in new_rows.values())
    print(f"{done} of {len(rows)} rows done, {len(rows) - done} not yet")
    if "--write" in arguments:
        new_lines = [new_rows[line].line() if line in new_rows else line for line in lines]
        PAGE.write_text("\n".join(new_lines) + "\n", encoding="utf-8")
        return 1 if unknown else 0
    return 1 if changed or unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
