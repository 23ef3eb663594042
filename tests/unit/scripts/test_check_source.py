"""Rules of the source in scripts/check_source.py."""

from __future__ import annotations

import ast

from tests.support.scripts import load_script


def test_docstrings_comments_and_blank_lines_are_not_code_lines() -> None:
    text = '"""Module.\n\nMore.\n"""\n\n# why\nX = """a\n\n# b"""  # code\n"""Of X."""\n\n\ndef f():\n    """Do."""\n'
    assert load_script("check_source").code_lines(text, ast.parse(text)) == 4
