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
MAX_TESTS: Final = 3
"""How many tests a row names at most; those that need neither Java nor Maven come first."""

_FAMILY: Final = re.compile(r"\bK(?P<kip>\d{3})-(?P<first>\d{2})(?P<more>(?:\s*(?:\.\.|,\s*-|/-?)\s*\d{2})*)")
_MORE: Final = re.compile(r"(?P<how>\.\.|,|/)\s*-?\s*(?P<number>\d{2})")
_ROW: Final = re.compile(r"^- \*\*(?P<id>K\d{3}-\d{2})\*\* (?P<text>.+)$")
_TEST: Final = re.compile(r"^  - `([^`]+?\.py::[^`]+)`$")
_NOT_YET: Final = "  - not yet: "


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

    def lines(self) -> list[str]:
        """Return the row as the page has it: the requirement, and below it its tests or the reason."""
        below = [f"  - `{test}`" for test in self.tests] if self.is_done else [f"{_NOT_YET}{self.reason}"]
        return [f"- **{self.id}** {self.text}", *below]


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
    for path in sorted(tests.rglob("test_*.py"), key=lambda path: (_needs(path.relative_to(tests)), path)):
        text = path.read_text(encoding="utf-8")
        if not _FAMILY.search(text):
            continue
        for name, docstring in _test_docstrings(ast.parse(text)):
            test = f"{path.relative_to(tests.parent).as_posix()}::{name}"
            for requirement in cited_ids(docstring):
                if test not in found[requirement]:
                    found[requirement].append(test)
    return {requirement: tuple(tests) for requirement, tests in found.items()}


def _needs(path: Path) -> int:
    """Return what a test below ``tests`` needs: 0 nothing, 1 Java, 2 Maven."""
    parts = set(path.parts)
    return 2 if "interop" in parts else 1 if "spark" in parts else 0


def _test_docstrings(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, str]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _test_docstrings(node, f"{prefix}{node.name}::")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield f"{prefix}{node.name}", ast.get_docstring(node) or ""


def read_rows(page: str) -> tuple[Row, ...]:
    """Return the requirements of the page.

    Raises:
        ValueError: A line of a requirement cannot be read. The message has the line.
    """
    return tuple(part for part in _parts(page) if isinstance(part, Row))


def _parts(page: str) -> Iterator[Row | str]:
    """Yield the page's requirements, and all other lines between them."""
    lines = page.splitlines()
    at = 0
    while at < len(lines):
        end = at + 1
        while end < len(lines) and lines[end].startswith("  - "):
            end += 1
        found = _ROW.match(lines[at])
        if found is None and (end > at + 1 or lines[at].startswith("- **K")):
            raise ValueError(f"docs/kips.md: not a requirement: {lines[at]}")
        yield lines[at] if found is None else _row(found["id"], found["text"], lines[at + 1 : end])
        at = end


def _row(requirement: str, text: str, below: Sequence[str]) -> Row:
    if len(below) == 1 and below[0].startswith(_NOT_YET):
        reason = below[0].removeprefix(_NOT_YET)
        return Row(id=requirement, text=text, is_done=False, tests=(), reason=reason)
    tests = [_TEST.match(line) for line in below]
    if not tests or None in tests:
        raise ValueError(f"docs/kips.md: {requirement}: expected tests, or not yet: and the reason")
    return Row(id=requirement, text=text, is_done=True, tests=tuple(test[1] for test in tests if test), reason="")


def renewed(row: Row, tests: Sequence[str]) -> Row:
    """Return the row as the citations want it."""
    if tests and (row.is_done or not row.reason.startswith("partly")):
        return replace(row, is_done=True, tests=tuple(tests[:MAX_TESTS]), reason="")
    if row.is_done:
        return replace(row, is_done=False, tests=(), reason="its test is gone")
    return row


def main(arguments: Sequence[str]) -> int:
    """Compare or write the page."""
    cited = citations()
    old = tuple(_parts(PAGE.read_text(encoding="utf-8")))
    new = [renewed(part, cited.get(part.id, ())) if isinstance(part, Row) else part for part in old]
    rows = [part for part in new if isinstance(part, Row)]
    changed = [row for row, before in zip(new, old, strict=True) if isinstance(row, Row) and row != before]
    unknown = sorted(set(cited) - {row.id for row in rows})
    for requirement in unknown:
        print(f"no such requirement: {requirement}, cited by {', '.join(cited[requirement])}")
    for row in changed:
        print("\n".join(row.lines()))
    done = sum(row.is_done for row in rows)
    print(f"{done} of {len(rows)} rows done, {len(rows) - done} not yet")
    if "--write" in arguments:
        lines = [line for part in new for line in (part.lines() if isinstance(part, Row) else [part])]
        PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return 1 if unknown else 0
    return 1 if changed or unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
