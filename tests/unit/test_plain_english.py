"""Docstrings, comments and messages of the source stay in plain English (CONTRIBUTING.md, "Style").

The limits leave room for the few places where a word is right, such as a Kafka term or a quoted message.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "klamm"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if SOURCE / "protocol" / "messages" not in path.parents)


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (r"\b(tell|tells|told)\b", 20),
        (r"\b(nobody|somebody|whoever|everybody)\b", 12),
        (r"\banew\b", 0),
        (r"\bcan not\b", 1),  # in a message that is Kafka's
    ],
)
def test_vague_words_are_rare(words: str, most: int) -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in MODULES
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(words, line)
    ]
    assert len(found) <= most, "\n".join(found)


def test_docstrings_do_not_start_with_question_words() -> None:
    clauses = [
        f"{path.relative_to(SOURCE)}: {text.splitlines()[0]}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node))
        and re.match(r"(What|Who|Whose|How)\b", text)
    ]
    assert clauses == []
