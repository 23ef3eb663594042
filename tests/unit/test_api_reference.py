"""docs/api/ matches the docstrings."""

from __future__ import annotations

from functools import cache

from scripts import api_reference
from scripts.api_reference import PAGES


@cache
def rendered() -> tuple[tuple[str, str], ...]:
    return tuple(api_reference.rendered())


def test_api_pages_match_docstrings() -> None:
    expected = dict(rendered())
    pages = {path.name: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    stale = [name for name in expected | pages if expected.get(name) != pages.get(name)]
    assert not stale, "run: make generate"


def test_every_public_name_has_documentation() -> None:
    empty = [
        f"{name}: {heading}"
        for name, text in rendered()
        for heading, following in zip(text.split("\n\n"), [*text.split("\n\n")[1:], ""], strict=True)
        if heading.startswith("#") and (not following or following.startswith("#"))
    ]
    assert not empty
