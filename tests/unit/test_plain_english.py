"""Docstrings, comments and messages of the source stay in plain English (CONTRIBUTING.md, "Style").

The limits leave room for the few places where a word is right, such as a Kafka term or a quoted message.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "klamm"
QUESTION = r"(What|Who|Whose|How)\b"


@functools.cache
def texts() -> dict[str, str]:
    """Return the modules' texts by their paths below ``src/klamm``."""
    modules = (path for path in sorted(SOURCE.rglob("*.py")) if SOURCE / "protocol" / "messages" not in path.parents)
    return {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in modules}


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
        f"{path}: {line.strip()}"
        for path, text in texts().items()
        if re.search(words, text)
        for line in text.splitlines()
        if re.search(words, line)
    ]
    assert len(found) <= most, "\n".join(found)


def test_docstrings_do_not_start_with_question_words() -> None:
    clauses = [
        f"{path}: {docstring.splitlines()[0]}"
        for path, text in texts().items()
        if re.search(rf'"""\s*{QUESTION}', text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (docstring := ast.get_docstring(node))
        and re.match(QUESTION, docstring)
    ]
    assert clauses == []
